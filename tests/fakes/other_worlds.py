"""FSDP2 state that one world saves and others restore: `python -m tests.fakes.other_worlds SAVED RESTORED... FOLDER`.

Each world is as many processes; what the first one had, and what every other one has after the restore, are digests of
whole tensors in FOLDER/WORLD.json.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from spotproof.checkpoint.dcp import Peers
from spotproof.checkpoint.restore import restore
from spotproof.checkpoint.sharded import gathered
from spotproof.checkpoint.snapshot import Snapshotter
from spotproof.contract import layout
from spotproof.contract.layout import Layout, image_name
from tests.fakes.sharding import STEP, Sharded
from tests.fakes.training import Memory
from tests.fakes.worlds import alone_on_loopback, in_world


def digests(training: Sharded) -> dict[str, str]:
    """Every tensor of the state, whole, to the last bit."""
    return {
        key: hashlib.sha256(value.contiguous().flatten().view(torch.uint8).numpy().tobytes()).hexdigest()
        for key, value in training.named().items()
    }


def save(world: int, folder: Path) -> dict[str, str]:
    rank, memory = dist.get_rank(), Memory(count=1)
    training = Sharded("fsdp", world, seed=1)
    training.train(STEP)
    snapshotter = Snapshotter(training.objects, provide=memory.provide, rank=rank, peers=Peers(gather=gathered))
    copy = snapshotter.begin(step=STEP, generation=1, counters={}, then=lambda _: None)
    assert copy is not None
    copy.gate()
    assert snapshotter.finish(copy)
    (folder / image_name(rank)).write_bytes(memory.image(copy.arena))
    (folder / f"layout-{rank}").write_bytes(layout.encode(memory.plans[-1].layout))
    snapshotter.close()
    memory.close()
    return digests(training)


def load(world: int, folder: Path, saved_by: int) -> dict[str, str]:
    def part(rank: int) -> tuple[bytearray, Layout]:
        return bytearray((folder / image_name(rank)).read_bytes()), layout.decode(
            (folder / f"layout-{rank}").read_bytes()
        )

    training = Sharded("fsdp", world, seed=2)
    training.train(1)
    own, described = part(dist.get_rank() % saved_by)
    restore(training.objects, own, described, step=STEP, parts=lambda: [part(rank) for rank in range(saved_by)])
    found = digests(training)
    training.train(1)  # it is state that can be trained on
    return found


def told(world: int, folder: Path, work: Callable[[], dict[str, str]]) -> None:
    """Rank 0 writes what the world found: all have the same."""

    def rank_main(rank: int) -> None:
        found = work()
        if rank == 0:
            (folder / f"{world}.json").write_text(json.dumps(found))

    in_world(world, folder / f"init-{world}", rank_main)


def main() -> None:
    saved_by, *others = (int(word) for word in sys.argv[1:-1])
    folder = Path(sys.argv[-1])
    alone_on_loopback()
    told(saved_by, folder, lambda: save(saved_by, folder))
    for world in others:
        told(world, folder, lambda: load(world, folder, saved_by))  # noqa: B023 -- called at once


if __name__ == "__main__":
    main()
