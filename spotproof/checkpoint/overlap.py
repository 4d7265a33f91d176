"""Copying while training goes on: which tensors rest until the next optimizer step, and the copier that uses it.

Parameters and optimizer state do not change in forward and backward, so they are copied behind them; everything else
(buffers, averages, counters, generators) is copied at the boundary. The optimizer's next step waits for the copy. What
cannot be known to rest is copied at the boundary too, and a loop that turns out to write to a resting tensor loses that
save, with a warning, and the tensor its privilege: a snapshot is whole or it is none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from spotproof.checkpoint.memcopy import Mover, Piece

COPIER: Final = "spotproof-copier"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resting:
    """Addresses of the tensors that rest until an optimizer steps; none, and `why`, where nobody can promise that."""

    pointers: frozenset[int]
    why: str = ""


def resting(objects: Mapping[str, object]) -> Resting:
    """What of the tracked `objects` only an optimizer's step changes, and that step can be made to wait."""
    optimizers = {name: thing for name, thing in objects.items() if isinstance(thing, torch.optim.Optimizer)}
    if not optimizers:
        return Resting(pointers=frozenset(), why="no optimizer is tracked")
    for name, optimizer in optimizers.items():
        if why := _cannot_wait(optimizer):
            return Resting(pointers=frozenset(), why=f"{name}: {why}")
    found = {tensor.data_ptr() for optimizer in optimizers.values() for tensor in _owned(optimizer)}
    found |= {frozen.data_ptr() for thing in objects.values() for frozen in _frozen(thing)}
    return Resting(pointers=frozenset(found))


def _frozen(thing: object) -> list[Tensor]:
    """Parameters that nobody trains: a base model, an average that is updated behind the optimizer's step."""
    parameters = thing.parameters() if isinstance(thing, torch.nn.Module) else ()
    return [parameter for parameter in parameters if not parameter.requires_grad]


def _cannot_wait(optimizer: torch.optim.Optimizer) -> str:
    """Why this optimizer may change its state without `step` and its hooks; empty: it does not."""
    replaced = vars(optimizer).get("step")
    if not getattr(type(optimizer).step, "hooked", False):
        return "its step runs no hooks"
    if replaced is not None and not hasattr(replaced, "_wrapped_by_lr_sched"):
        return "its step has been replaced, for example by a compiled one"
    for group in optimizer.param_groups:
        if group.get("capturable"):
            return "its step can be captured in a graph"
        if any(getattr(parameter, "_post_accumulate_grad_hooks", None) for parameter in group["params"]):
            return "it has hooks that run within the backward pass"
    return ""


def _owned(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    states = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    return parameters + states


@dataclass(frozen=True, slots=True)
class Pair:
    """A live tensor and its payload in the arena."""

    key: str
    source: Tensor
    target: Tensor

    def can_be_moved(self) -> bool:
        """Whether its bytes are, in one piece, the payload's; on a GPU torch copies, in whatever form it has."""
        return self.source.is_cuda or (self.source.device.type == "cpu" and self.source.is_contiguous())


@dataclass(slots=True, kw_only=True)
class Copy:
    """A snapshot that is being taken. `changed` names a tensor that was written to meanwhile: it is no snapshot."""

    arena: int
    changed: str = ""
    error: BaseException | None = None
    events: tuple[Any, ...] = ()  # CUDA events that the main stream has to wait for
    is_over: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None

    def attempt(self, act: Callable[[], None]) -> None:
        """Do it in the copier's thread; what it meets is raised by `finish`, in the loop's."""
        try:
            act()
        except BaseException as error:  # noqa: BLE001 -- carried over, not swallowed
            self.error = self.error or error.with_traceback(None)  # whose frames hold views of the arena

    def gate(self) -> None:
        """Return when an optimizer may step: on a GPU its stream waits, and the host does not."""
        if not self.events:
            self.is_over.wait()
        for event in self.events:
            torch.cuda.current_stream(event.device).wait_event(event)

    def finish(self) -> bool:
        """Wait until it is over; whether the snapshot is whole. Raises what the copier met."""
        self.is_over.wait()
        if self.thread is not None:
            self.thread.join()  # it holds views of the arena, which cannot be unmapped under them
        if self.error is not None:
            raise self.error
        return not self.changed


class Copier:
    """Copies pairs in a thread of its own. One copy at a time."""

    def __init__(self) -> None:
        self._movers: dict[int, tuple[tuple[Piece, ...], Mover]] = {}  # by arena: tensors rarely move

    def start(self, arena: int, pairs: Sequence[Pair], *, then: Callable[[bool], None]) -> Copy:
        """Begin. `then(whole)` is called in the copier's thread, before `finish` returns."""
        on_host = [pair for pair in pairs if not pair.source.is_cuda]
        mover = self._mover(arena, on_host)
        seen = mover.sample()
        versions = [_version(pair.source) for pair in pairs]
        copy = Copy(arena=arena, events=_on_device([pair for pair in pairs if pair.source.is_cuda]))

        def copied() -> None:
            mover.move()
            for event in copy.events:
                event.synchronize()
            index = mover.differs(seen, mover.sample())
            copy.changed = _changed(pairs, versions) or ("" if index is None else on_host[index].key)

        def run() -> None:
            try:
                copy.attempt(copied)
                copy.attempt(lambda: then(copy.error is None and not copy.changed))
            finally:
                copy.is_over.set()

        copy.thread = threading.Thread(target=run, name=COPIER, daemon=True)
        copy.thread.start()
        return copy

    def forget(self) -> None:
        """The arenas are going to be unmapped."""
        self._movers.clear()

    def _mover(self, arena: int, pairs: Sequence[Pair]) -> Mover:
        pieces = tuple(
            Piece(pair.target.data_ptr(), pair.source.data_ptr(), pair.source.numel() * pair.source.element_size())
            for pair in pairs
        )
        known = self._movers.get(arena)
        if known is None or known[0] != pieces:
            known = self._movers[arena] = (pieces, Mover(pieces))
        return known[1]


def _version(tensor: Tensor) -> int:
    """Rises with every write in place that autograd sees (inference tensors do not count theirs)."""
    return -1 if tensor.is_inference() else tensor._version  # noqa: SLF001 - torch's name for it


def _changed(pairs: Sequence[Pair], versions: Sequence[int]) -> str:
    written = (pair.key for pair, version in zip(pairs, versions, strict=True) if _version(pair.source) != version)
    return next(written, "")


def _on_device(pairs: Sequence[Pair]) -> tuple[Any, ...]:
    """Enqueue copies on a stream of their own, behind what the current stream was told so far; an event per device."""
    events = []
    for device in {pair.source.device for pair in pairs}:
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for pair in pairs:
                if pair.source.device == device:
                    pair.target.copy_(pair.source, non_blocking=True)
                    pair.source.record_stream(stream)
            event = torch.cuda.Event()
            event.record(stream)
        events.append(event)
    return tuple(events)
