"""Valid values of the contract, with only what a test cares about said."""

from __future__ import annotations

from spotproof.contract import s3keys
from spotproof.contract.items import Generation, PointerItem, pointer_rank
from spotproof.contract.manifest import Chunk, File, Part, Receipt

SEALED_AT = 1_796_000_000


def generation(run: str, number: int, *members: str) -> Generation:
    return Generation(run=run, generation=number, members=members or ("0:1:i-a",), sealed_at=SEALED_AT)


def pointer(run: str, generation_number: int, step: int, *, digest: str = "d" * 64) -> PointerItem:
    return PointerItem(
        run=run,
        generation=generation_number,
        step=step,
        rank=pointer_rank(generation_number, step),
        manifest_key=s3keys.manifest(run, generation_number, step),
        manifest_digest=digest,
    )


def part(run: str, generation_number: int, step: int, rank: int, world: int) -> Part:
    def file(name: str) -> File:
        return File(name=name, chunks=(Chunk(digest="c" * 64, bytes=1000),))

    return Part(
        run=run,
        generation=generation_number,
        step=step,
        rank=rank,
        world=world,
        image=file(f"__{rank}_0.distcp"),
        layout=file("layout.json"),
        metadata=file(".metadata") if rank == 0 else None,
        receipt=Receipt(rank=rank, step=step, samples=step, sample_chain="", state_digest="e" * 64),
    )
