"""Writes the manifest of a checkpoint that is complete and whose agents are gone, then raises the pointer."""

from __future__ import annotations

from lambdas.effects.stores import Stores
from spotproof.contract import s3keys
from spotproof.contract.items import PointerItem, pointer_rank
from spotproof.contract.manifest import Manifest, decode_part, encode
from spotproof.errors import Lost, StoreError, Superseded
from spotproof.store.digest import digest_of
from spotproof.store.objects import PutOutcome


def commit(stores: Stores, *, run: str, generation: int, step: int, world: int, now: int) -> bool:
    """Commit as an agent would have: parts, manifest if absent, pointer. False: a newer generation or commit stands.

    The manifest is deterministic, so that finding it there with the same bytes is success. Raises StoreError, Missing
    or BadManifest where a part is not what the checkpoint item promised.
    """
    parts = [decode_part(stores.objects.read(s3keys.part(run, generation, step, rank))) for rank in range(world)]
    data = encode(Manifest(run=run, generation=generation, step=step, world=world, parts=tuple(parts)))
    key, digest = s3keys.manifest(run, generation, step), digest_of(data)
    if stores.objects.put_if_absent(key, data, digest=digest) is PutOutcome.DIFFERENT:
        raise StoreError(f"{key} holds another manifest", next_step="look who wrote it; nothing was overwritten")
    pointer = PointerItem(
        run=run,
        generation=generation,
        step=step,
        rank=pointer_rank(generation, step),
        manifest_key=key,
        manifest_digest=digest,
        committed_at=now,
    )
    try:
        stores.pointers.rise(pointer, own_generation=generation)
    except (Lost, Superseded):
        return False
    stores.checkpoints.committed(run, generation, step, manifest_key=key, now=now)
    return True
