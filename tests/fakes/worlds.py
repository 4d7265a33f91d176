"""Ranks as forked processes of one machine, with a gloo group among them. The parent must not have used one before."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist


def alone_on_loopback() -> None:
    """Call it once before the first world: one thread for each rank, and no network."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)


def in_world(world: int, meets_at: Path, work: Callable[[int], None]) -> None:
    """Fork `world` ranks that meet at this file, let each do its work, wait for all. Exits with 1 if one has failed."""
    children = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                dist.init_process_group("gloo", init_method=f"file://{meets_at}", rank=rank, world_size=world)
                work(rank)
                dist.barrier()
                dist.destroy_process_group()
                status = 0
            except BaseException:  # noqa: BLE001 -- the end of a process
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        children.append(pid)
    if any([os.waitpid(pid, 0)[1] for pid in children]):  # noqa: C419 -- all are waited for
        sys.exit(1)
