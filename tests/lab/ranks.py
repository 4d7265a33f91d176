"""Ranks of one machine that agree on a stop step, trial after trial; prints a line of JSON for each.

python -m tests.lab.ranks WORLD TRIALS EVERY
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path


def rank_main(rank: int, world: int, trials: int, every: int, folder: str) -> None:
    import torch
    import torch.distributed as dist

    from spotproof.rendezvous.consensus import StopConsensus

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/init", rank=rank, world_size=world)
    for trial in range(trials):
        plan = random.Random(trial)
        noticing = set(plan.sample(range(world), k=1 + trial % 2))
        notice_at = plan.randrange(1, 12)
        skew = random.Random(trial * 100 + rank)
        consensus = StopConsensus(every=every)
        step = 0
        while True:
            step += 1
            dist.all_reduce(torch.ones(4))
            time.sleep(skew.random() * 0.004)
            if consensus.boundary(wants_to_stop=rank in noticing and step >= notice_at):
                break
        consensus.end()
        line = {"trial": trial, "rank": rank, "step": step, "notice_at": notice_at, "noticing": sorted(noticing)}
        (Path(folder) / f"{trial}-{rank}").write_text(json.dumps(line))
    dist.destroy_process_group()


def main() -> None:
    world, trials, every = map(int, sys.argv[1:4])
    import torch.distributed  # noqa: F401

    import spotproof.rendezvous.consensus  # noqa: F401

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(world):
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    rank_main(rank, world, trials, every, folder)
                    status = 0
                finally:
                    os._exit(status)
            children.append(pid)
        statuses = [os.waitpid(pid, 0)[1] for pid in children]
        for path in Path(folder).glob("*-*"):
            print(path.read_text())
    sys.exit(int(any(statuses)))


if __name__ == "__main__":
    main()
