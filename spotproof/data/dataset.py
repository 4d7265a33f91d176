"""The position in the data, as one counter that is exact over any number of interruptions.

A tracked loop sees the batches of the plain loop `for batch in loader`, bit for bit: nothing here draws from a random
generator. Where an epoch's permutation is drawn the generators are noted as they are; to go on inside that epoch they
are put back, the loader draws its permutation again, the batches that are done are passed over by their indices (no
sample is fetched for them), and the generators get back what the checkpoint says.

What worker processes draw for themselves (augmentation with `num_workers` > 0) is not the run's to put back: the order
of samples is exact, such noise is not.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field
from typing import Any, Final, cast

import torch
from torch.utils.data import DataLoader, IterableDataset

from spotproof.data.worldwide import GlobalBatches
from spotproof.errors import MismatchedState, SpotproofError
from spotproof.store.digest import digest_of

GENESIS: Final = digest_of(b"spotproof sample chain")
_CLONED: Final = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
)


def chained(chain: str, ids: object) -> str:
    """The chain after one more batch: blake3 over the chain so far and the batch's sample ids, in order."""
    return digest_of(f"{chain}:{json.dumps(ids, separators=(',', ':'))}".encode())


@dataclass(slots=True)
class Position:
    """Micro-batches consumed since the run began, and where the current epoch began. `samples` and `chain` prove it."""

    batches: int = 0
    samples: int = 0
    chain: str = GENESIS
    epoch: int = 0
    epoch_began_at: int = 0

    @property
    def in_epoch(self) -> int:
        """Batches of the current epoch that are done."""
        return self.batches - self.epoch_began_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One micro-batch. `ends_group`: the optimizer steps after it."""

    batch: Any  # Any: what the user's collate function makes
    ends_group: bool
    weight: float = 1.0  # of its mean loss in the sum that the optimizer steps on


class _Indices:
    """Stands before the loader's own batch sampler: passes over what is done and remembers what it handed out."""

    def __init__(self, inner: Iterable[Any]) -> None:
        self._inner = inner
        self._source: Iterator[Any] | None = None
        self._skip = 0
        self._before_draw: Callable[[], None] = _nothing
        self.handed: deque[Any] = deque()

    def begin(self, *, skip: int, before_draw: Callable[[], None]) -> None:
        """The next iterator begins a new epoch, `skip` batches into it. `before_draw` is called once, just before the
        permutation is drawn: what a loader draws before it (the seed of its workers) is not the same every time."""
        self._source, self._skip, self._before_draw = None, skip, before_draw
        self.handed.clear()

    def draw(self) -> None:
        """Draw the permutation now, unless a worker's prefetching has done it."""
        if self._source is None:
            self._before_draw()
            self._source = iter(self._inner)
            for _ in range(self._skip):
                next(self._source, None)

    def __iter__(self) -> _Indices:
        return self

    def __next__(self) -> Any:  # Any: an index or a list of them
        self.draw()
        indices = next(cast("Iterator[Any]", self._source))
        self.handed.append(indices)
        return indices

    def __len__(self) -> int:
        return len(cast("Sized", self._inner))


@dataclass(slots=True)
class Feed:
    """A loader with its position. One epoch at a time: `pieces`, and `advance` when what was yielded is trained on."""

    loader: Iterable[Any]
    accumulate: int = 1
    position: Position = field(default_factory=Position)
    _indices: _Indices | None = None
    _source: Iterable[Any] = ()
    _epoch_start: dict[str, object] = field(default_factory=dict)
    _unconfirmed: list[object] = field(default_factory=list)
    _shared: GlobalBatches | None = None  # of all ranks together: the position counts optimizer steps

    def __post_init__(self) -> None:
        """Look at the loader; a stock DataLoader over a map-style dataset can be entered anywhere by index."""
        self._source = self.loader
        loader = self.loader
        if type(loader) is DataLoader and not isinstance(loader.dataset, IterableDataset):
            self._indices = _Indices(cast("Iterable[Any]", loader.batch_sampler or loader.sampler))
            self._source = _clone(loader, self._indices)
            if isinstance(loader.batch_sampler, GlobalBatches):
                self._shared = loader.batch_sampler
        if self._shared is not None and self.accumulate > 1:
            raise SpotproofError(
                "GlobalBatches accumulates by itself, as many pieces as its rank has of a step",
                next_step="leave accumulate out of run.batches()",
            )
        if self.accumulate > 1 and self.length is None:
            raise SpotproofError(
                "gradient accumulation needs to know where an epoch ends, and this loader has no length",
                next_step="give it __len__, or accumulate yourself and call run.boundary() once per optimizer step",
            )

    @property
    def length(self) -> int | None:
        """Batches per epoch, of all ranks together steps; None where the loader cannot say."""
        if self._shared is not None:
            return self._shared.steps
        try:
            return len(self.loader) if isinstance(self.loader, Sized) else None
        except TypeError:  # a DataLoader over an IterableDataset has __len__ and no length
            return None

    def pieces(self) -> Iterator[Piece]:
        """The rest of the current epoch. The last group of an epoch may be smaller than `accumulate`."""
        length = self.length
        done = self.position.in_epoch
        self._unconfirmed.clear()
        if length is not None and done >= length > 0:
            return
        if self._shared is not None:
            yield from self._pieces_of_steps(self._shared)
            return
        for batch in self._iterate(done):
            done += 1
            self._unconfirmed.append(self._ids(batch))
            is_full = len(self._unconfirmed) == self.accumulate
            yield Piece(batch=batch, ends_group=is_full or done == length, weight=1 / self.accumulate)

    def _pieces_of_steps(self, shared: GlobalBatches) -> Iterator[Piece]:
        """This rank's pieces of the steps that are left of the epoch, whatever world the steps before were made in."""
        for batch in self._iterate(self.position.in_epoch):
            ids = self._ids(batch)
            self._unconfirmed.append(ids)
            size = len(ids) if isinstance(ids, list) else 1
            yield Piece(batch=batch, ends_group=len(self._unconfirmed) == shared.pieces, weight=shared.weight_of(size))

    def advance(self) -> None:
        """Count what was yielded since the last call: it is in the model now."""
        position = self.position
        if self._shared is not None and self._unconfirmed:  # the proof is of all ranks' samples, and each has it whole
            self._unconfirmed = [self._shared.ids_of(position.epoch, position.in_epoch)]
        for ids in self._unconfirmed:
            position.batches += 1
            position.samples += len(ids) if isinstance(ids, list) else 1
            position.chain = chained(position.chain, ids)
        self._unconfirmed.clear()

    def end_epoch(self) -> None:
        """The epoch is over: the next one begins at its first batch, never in an empty rest (DP-03)."""
        self._unconfirmed.clear()
        self.position.epoch += 1
        self.position.epoch_began_at = self.position.batches

    @property
    def is_epoch_over(self) -> bool:
        """Whether every batch of the epoch has been counted."""
        return self.length is not None and self.position.in_epoch >= self.length > 0

    def state(self) -> dict[str, object]:
        """What a checkpoint holds of it."""
        position = self.position
        return {
            "batches": position.batches,
            "samples": position.samples,
            "chain": position.chain,
            "epoch": position.epoch,
            "epoch_began_at": position.epoch_began_at,
            "accumulate": self.accumulate,
            "length": -1 if self.length is None else self.length,
            "world": _world(),
            "epoch_start": self._epoch_start,
            "own": _own_generators(self.loader),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go to where `state` says. Raises MismatchedState if the loader is another one now."""
        length = -1 if self.length is None else self.length
        if state["length"] != length:
            raise MismatchedState(
                f"loader: {state['length']} batches per epoch in the checkpoint, {length} here",
                next_step="use the same dataset and batch size, or begin a new run",
            )
        world = state.get("world", _world())
        if world != _world() and self._shared is None:
            raise MismatchedState(
                f"loader: its samples were shared out to {world} ranks, here are {_world()}",
                next_step="use spotproof.data.worldwide.GlobalBatches, whose order is the same in any world",
            )
        self.position = position_of(state)
        self._epoch_start = dict(state["epoch_start"])
        _put_back(self.loader, state["own"])

    def _iterate(self, done: int) -> Iterator[Any]:
        _set_epoch(self.loader, self.position.epoch)
        if self._shared is not None:
            return self._enter(self._shared, done)
        if done > 0:
            return self._enter_again(done)
        self._note_start()
        if self._indices is not None:
            self._indices.begin(
                skip=0, before_draw=self._go_to_start if self._draws_a_seed_anew() else self._note_start
            )
        return iter(self._source)

    def _enter_again(self, done: int) -> Iterator[Any]:
        now = _global_generators()
        self._go_to_start()
        if self._indices is not None:
            self._indices.begin(skip=done, before_draw=self._go_to_start)
        iterator = iter(self._source)
        if self._indices is not None:
            self._indices.draw()
        else:
            for _ in range(done):  # no indices to pass over: these batches are made and thrown away
                next(iterator, None)
        _put_back_global(now)
        return iterator

    def _enter(self, shared: GlobalBatches, done: int) -> Iterator[Any]:
        """Its order follows from the epoch alone: nothing is drawn again. A loader draws a seed for its workers when it
        is entered; inside an epoch the uninterrupted run does not."""
        shared.begin(epoch=self.position.epoch, step=done)
        now = _global_generators()
        if self._indices is not None:
            self._indices.begin(skip=0, before_draw=_nothing)
        iterator = iter(self._source)
        if done > 0:
            _put_back_global(now)
        return iterator

    def _draws_a_seed_anew(self) -> bool:
        """Workers that persist are seeded once per run. A later process draws a seed for them that the uninterrupted
        run did not draw in this epoch."""
        is_persistent = bool(getattr(self._source, "persistent_workers", False))
        return is_persistent and self.position.epoch > 0 and getattr(self._source, "_iterator", None) is None

    def _note_start(self) -> None:
        self._epoch_start = {**_global_generators(), "own": _own_generators(self.loader)}

    def _go_to_start(self) -> None:
        _put_back(self.loader, cast("Mapping[str, Any]", self._epoch_start["own"]))
        _put_back_global(self._epoch_start)

    def _ids(self, batch: object) -> object:
        if self._indices is not None:
            return _plain(self._indices.handed.popleft())
        return len(batch) if isinstance(batch, Sized) else 1  # no ids are known: the chain counts


def position_of(state: Mapping[str, Any]) -> Position:
    """The position in a feed's state."""
    names = ("batches", "samples", "chain", "epoch", "epoch_began_at")
    return Position(**{name: state[name] for name in names})


def _nothing() -> None:
    """Nothing is to be done."""


def _world() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def _plain(indices: Any) -> object:  # Any: whatever a sampler yields
    if isinstance(indices, list | tuple):
        return [_plain(index) for index in indices]
    item = getattr(indices, "item", None)
    return item() if callable(item) else indices


def _clone(loader: DataLoader[Any], indices: _Indices) -> DataLoader[Any]:
    """The same loader with our indices before its sampler: a DataLoader does not let its sampler be replaced."""
    settings = {name: getattr(loader, name) for name in _CLONED if hasattr(loader, name)}
    if hasattr(loader, "in_order"):
        settings["in_order"] = loader.in_order
    if loader.batch_sampler is None:
        return DataLoader(loader.dataset, batch_size=None, sampler=indices, **settings)
    return DataLoader(loader.dataset, batch_sampler=cast("Any", indices), **settings)


def _set_epoch(loader: object, epoch: int) -> None:
    set_epoch = getattr(getattr(loader, "sampler", None), "set_epoch", None)
    if callable(set_epoch):
        set_epoch(epoch)


def _global_generators() -> dict[str, object]:
    """The generators of this process from which a sampler may draw, as values that a checkpoint holds."""
    states: dict[str, object] = {"python": random.getstate(), "torch": _bytes(torch.get_rng_state())}
    numpy = sys.modules.get("numpy")  # without it none of its states can exist
    if numpy is not None:
        state = numpy.random.get_state(legacy=False)
        states["numpy"] = {**state, "state": {**state["state"], "key": state["state"]["key"].tobytes()}}
    return states


def _put_back_global(states: Mapping[str, Any]) -> None:
    random.setstate(states["python"])
    torch.set_rng_state(_tensor(states["torch"]))
    numpy = sys.modules.get("numpy")  # without it none of its states can exist
    if numpy is not None and "numpy" in states:
        state = states["numpy"]
        key = numpy.frombuffer(state["state"]["key"], dtype=numpy.uint32)
        numpy.random.set_state({**state, "state": {**state["state"], "key": key}})


def _generators_of(loader: object) -> dict[str, torch.Generator]:
    batch_sampler = getattr(loader, "batch_sampler", None)
    owners = {
        "loader": loader,
        "sampler": getattr(loader, "sampler", None),
        "batch_sampler": batch_sampler,
        "batch_sampler.sampler": getattr(batch_sampler, "sampler", None),  # with one of one's own, it draws
    }
    found = {name: getattr(owner, "generator", None) for name, owner in owners.items()}
    return {name: one for name, one in found.items() if isinstance(one, torch.Generator)}


def _own_generators(loader: object) -> dict[str, object]:
    return {name: _bytes(generator.get_state()) for name, generator in _generators_of(loader).items()}


def _put_back(loader: object, states: Mapping[str, Any]) -> None:
    for name, generator in _generators_of(loader).items():
        if name in states:
            generator.set_state(_tensor(states[name]))


def _bytes(state: torch.Tensor) -> bytes:
    return bytes(state.tolist())


def _tensor(state: bytes) -> torch.Tensor:
    return torch.tensor(list(state), dtype=torch.uint8)
