"""Where a checkpoint of one's own DCP calls lies: a bucket, a folder, and which one of a run is meant."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from spotproof.contract import s3keys
from spotproof.errors import BadSettings, Missing
from spotproof.plan.candidates import Order
from spotproof.store.clients import Clients
from spotproof.store.folder import FolderObjects
from spotproof.store.objects import Objects
from spotproof.store.s3 import S3Objects

S3_SCHEME: Final = "s3://"

Place = str | Path | Objects
"""`s3://BUCKET`, a folder, or any `Objects`."""


def objects_at(place: Place) -> Objects:
    """The objects that a place means. Raises BadSettings: a bucket with a path, since keys begin with `runs/`."""
    if isinstance(place, str) and place.startswith(S3_SCHEME):
        bucket, _, path = place.removeprefix(S3_SCHEME).partition("/")
        if path or not bucket:
            raise BadSettings(f"{place}: name a bucket and nothing behind it", next_step="s3://BUCKET, and the run")
        return S3Objects(Clients().s3, bucket)
    return FolderObjects(Path(place)) if isinstance(place, str | Path) else place


def orders(objects: Objects, run: str) -> tuple[set[Order], set[Order]]:
    """(checkpoints that are whole, all of which there is anything)."""
    whole, begun = set[Order](), set[Order]()
    for key in _keys(objects, run):
        order = s3keys.order_of(key)
        if order is not None:
            begun.add(order)
            if s3keys.is_manifest(key):
                whole.add(order)
    return whole, begun


def newest(objects: Objects, run: str) -> Order:
    """The newest whole checkpoint. Raises Missing where there is none."""
    whole, begun = orders(objects, run)
    if not whole:
        rest = f"; {len(begun)} have no manifest, so they were never finished" if begun else ""
        raise Missing(f"run {run} has no checkpoint{rest}")
    return max(whole)


def order_named(objects: Objects, run: str, name: str) -> Order:
    """The whole checkpoint that STEP or GENERATION-STEP means, of one step the newest.

    Raises Missing, BadSettings.
    """
    generation, _, step = name.rpartition("-")
    if not step.isdecimal() or (generation and not generation.isdecimal()):
        raise BadSettings(f"{name!r} is no checkpoint", next_step="say STEP or GENERATION-STEP, as in 1-500")
    whole, _ = orders(objects, run)
    found = [order for order in whole if order[1] == int(step) and (not generation or order[0] == int(generation))]
    if not found:
        raise Missing(f"run {run} has no checkpoint {name}; it has {_listed(whole)}")
    return max(found)


def next_order(begun: set[Order], step: int | None) -> Order:
    """The name of a save that is to be the newest: another generation where its step has been passed or spent."""
    last = max(begun, default=(1, -1))
    wanted = (last[0], last[1] + 1 if step is None else step)
    return wanted if wanted > last else (last[0] + 1, wanted[1])


def _keys(objects: Objects, run: str) -> Iterator[str]:
    return (info.key for info in objects.list(s3keys.checkpoints_prefix(run)))


def _listed(whole: set[Order]) -> str:
    shown = ", ".join(f"{generation}-{step}" for generation, step in sorted(whole, reverse=True)[:5])
    return shown or "none"
