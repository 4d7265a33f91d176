"""A process that has imported torch once and forks launchers: lines of JSON in, a pid out for each.

Warm nodes in the lab cost a fork instead of seconds of imports; what is measured cold starts a Python of its own.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback


def main() -> None:
    import torch._dynamo  # what an optimizer imports at its first step
    import torch.distributed.checkpoint.state_dict
    import torch.distributed.elastic.rendezvous.dynamic_rendezvous
    import torch.distributed.fsdp
    import torch.distributed.launcher.api
    import torch.nn.parallel  # noqa: F401

    import spotproof.rendezvous.handler  # noqa: F401
    import tests.lab.together
    import tests.lab.toy  # noqa: F401
    from tests.lab.launcher import die_with_parent, launch

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the lab looks at /proc; nobody waits for these
    assert threading.active_count() == 1, "a fork with threads is not a clean start"
    print("ready", flush=True)
    for line in sys.stdin:
        pid = os.fork()
        if pid:
            print(pid, flush=True)
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        die_with_parent()
        status = 1
        try:
            launch(json.loads(line))
            status = 0
        except BaseException:  # noqa: BLE001 - a child must not fall back into the zygote's loop
            traceback.print_exc()
        os._exit(status)


if __name__ == "__main__":
    main()
