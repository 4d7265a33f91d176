"""One node's torchrun, in this process: `python -m tests.lab.launcher SPEC` cold, or forked from the zygote, warm."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import sys
from typing import Any

CLONE_NEWNET = 0x40000000
CLONE_NEWNS = 0x00020000
PR_SET_PDEATHSIG = 1
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000


def enter_namespace(path: str, hosts: str) -> None:
    """Move this thread into a network namespace, with a hosts file of its own: there is no DNS to wait for."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(path, os.O_RDONLY)
    _must(libc.setns(descriptor, CLONE_NEWNET), path)
    os.close(descriptor)
    _must(libc.unshare(CLONE_NEWNS), "unshare")
    _must(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "private mounts")
    _must(libc.mount(hosts.encode(), b"/etc/hosts", None, MS_BIND, None), hosts)


def die_with_parent() -> None:
    """Be killed when the parent ends, however it ends: a lab that is killed leaves nothing running."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _must(status: int, what: str) -> None:
    if status:
        raise OSError(ctypes.get_errno(), what)


def launch(spec: dict[str, Any]) -> None:
    """Be the node that `spec` describes, until its run ends."""
    log = os.open(spec["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(spec["environment"])
    if spec["namespace"]:
        enter_namespace(spec["namespace"], spec["hosts"])
    if spec["backend"] == "in-process":
        from tests.lab.together import launch_in_process

        launch_in_process(spec)
        return
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from tests.lab.peers import register
    from tests.lab.toy import train

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    register()
    smallest, largest = spec["nodes"]
    config = LaunchConfig(
        min_nodes=smallest,
        max_nodes=largest,
        nproc_per_node=1,
        run_id=spec["run"],
        rdzv_backend=spec["backend"],
        rdzv_endpoint=spec["endpoint"],
        rdzv_configs=spec["config"],
        local_addr=spec["address"],
        max_restarts=1000,
        monitor_interval=0.1,
        start_method="fork",
        shutdown_timeout=int(os.environ.get("LAB_PATIENCE_S", "30")),
    )
    elastic_launch(config, train)(*spec["training"])


if __name__ == "__main__":
    launch(json.loads(sys.argv[1]))
