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
from operator import attrgetter
from typing import Any, Final

import torch
from torch import Tensor

from spotproof.checkpoint.memcopy import Mover, Piece
from spotproof.checkpoint.sharded import local_of

COPIER: Final = "spotproof-copier"
_COMPILED: Final = "_torchdynamo_orig_callable"  # a compiled function looks like what it was made of but for this
_version: Final = attrgetter("_version")  # torch's name for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Resting:
    """Addresses of the tensors that rest until an optimizer steps; none, and `why`, where nobody can promise that."""

    pointers: frozenset[int]
    why: str = ""


def resting(objects: Mapping[str, object]) -> Resting:
    """What of the tracked `objects` only an optimizer's step changes, and that step can be made to wait."""
    if why := cannot_rest(objects):
        return Resting(pointers=frozenset(), why=why)
    optimizers = [thing for thing in objects.values() if isinstance(thing, torch.optim.Optimizer)]
    found = {local_of(tensor).data_ptr() for optimizer in optimizers for tensor in _owned(optimizer)}
    found |= {local_of(frozen).data_ptr() for thing in objects.values() for frozen in _frozen(thing)}
    return Resting(pointers=frozenset(found))


def cannot_rest(objects: Mapping[str, object]) -> str:
    """Why nothing of the tracked `objects` can be known to rest; empty: an optimizer's step is what changes them."""
    optimizers = {name: thing for name, thing in objects.items() if isinstance(thing, torch.optim.Optimizer)}
    if not optimizers:
        return "no optimizer is tracked"
    reasons = {name: _cannot_wait(optimizer) for name, optimizer in optimizers.items()}
    return next((f"{name}: {why}" for name, why in reasons.items() if why), "")


def _frozen(thing: object) -> list[Tensor]:
    """Parameters that nobody trains: a base model, an average that is updated behind the optimizer's step."""
    parameters = thing.parameters() if isinstance(thing, torch.nn.Module) else ()
    return [parameter for parameter in parameters if not parameter.requires_grad]


def still(objects: Mapping[str, object], tensors: Mapping[str, Tensor]) -> frozenset[str]:
    """Keys of what nobody trains, as far as that can be seen: a frozen base model stays as it is for ever."""
    pointers = {local_of(frozen).data_ptr() for thing in objects.values() for frozen in _frozen(thing)}
    return frozenset(key for key, tensor in tensors.items() if tensor.numel() and tensor.data_ptr() in pointers)


def _cannot_wait(optimizer: torch.optim.Optimizer) -> str:
    """Why this optimizer may change its state without `step` and its hooks; empty: it does not."""
    replaced = vars(optimizer).get("step")
    if not getattr(type(optimizer).step, "hooked", False):
        return "its step runs no hooks"
    is_schedulers = hasattr(replaced, "_wrapped_by_lr_sched") and not hasattr(replaced, _COMPILED)
    if replaced is not None and not is_schedulers:
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


def can_be_moved(tensor: Tensor) -> bool:
    """Whether its bytes are, in one piece, the payload's; on a GPU torch copies, in whatever form it has."""
    if tensor.is_cuda:
        return True
    is_turned = tensor.is_neg() or tensor.is_conj()  # its memory is not its values
    return tensor.device.type == "cpu" and tensor.is_contiguous() and not is_turned


@dataclass(frozen=True, slots=True, eq=False)
class Behind:
    """Keys of what is copied behind the loop. The same object again: the same tensors at the same addresses."""

    keys: tuple[str, ...]


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


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A mover for one arena, and what it was made for."""

    behind: Behind
    pieces: tuple[Piece, ...]
    keys: tuple[str, ...]  # of the pieces
    mover: Mover


class Copier:
    """Copies tensors to their payloads in a thread of its own. One copy at a time."""

    def __init__(self) -> None:
        self._prepared: dict[int, _Prepared] = {}  # by arena

    def start(
        self,
        arena: int,
        behind: Behind,
        tensors: Mapping[str, Tensor],
        payloads: Mapping[str, Tensor],
        *,
        then: Callable[[bool], None],
    ) -> Copy:
        """Begin. `then(whole)` is called in the copier's thread, before `finish` returns."""
        sources = [tensors[key] for key in behind.keys]
        prepared = self._prepare(arena, behind, tensors, payloads)
        seen = prepared.mover.sample()
        versions = _versions(sources)
        on_device = [key for key, source in zip(behind.keys, sources, strict=True) if source.is_cuda]
        copy = Copy(arena=arena, events=_on_device([(tensors[key], payloads[key]) for key in on_device]))

        def copied() -> None:
            prepared.mover.move()
            for event in copy.events:
                event.synchronize()
            index = prepared.mover.differs(seen, prepared.mover.sample())
            copy.changed = "" if index is None else prepared.keys[index]
            if (now := _versions(sources)) != versions:
                copy.changed = next(key for key, old, new in zip(behind.keys, versions, now, strict=True) if old != new)

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
        self._prepared.clear()

    def _prepare(
        self, arena: int, behind: Behind, tensors: Mapping[str, Tensor], payloads: Mapping[str, Tensor]
    ) -> _Prepared:
        """The mover of what lies in host memory. Making one takes longer than a look whether the old one will do."""
        known = self._prepared.get(arena)
        if known is not None and known.behind is behind:
            return known
        keys = tuple(key for key in behind.keys if not tensors[key].is_cuda)
        pieces = tuple(_piece(tensors[key], payloads[key]) for key in keys)
        mover = known.mover if known is not None and known.pieces == pieces else Mover(pieces)
        self._prepared[arena] = _Prepared(behind, pieces, keys, mover)
        return self._prepared[arena]


def _piece(source: Tensor, target: Tensor) -> Piece:
    return Piece(target.data_ptr(), source.data_ptr(), source.numel() * source.element_size())


def _versions(tensors: Sequence[Tensor]) -> list[int]:
    """Each rises with every write in place that autograd sees (inference tensors do not count theirs)."""
    try:
        return list(map(_version, tensors))
    except RuntimeError:
        return [-1 if tensor.is_inference() else _version(tensor) for tensor in tensors]


def _on_device(pairs: Sequence[tuple[Tensor, Tensor]]) -> tuple[Any, ...]:
    """Enqueue copies on a stream of their own, behind what the current stream was told so far; an event per device."""
    events = []
    for device in {source.device for source, _ in pairs}:
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream), torch.no_grad():
            for source, target in pairs:
                if source.device == device:
                    target.copy_(source, non_blocking=True)
                    source.record_stream(stream)
            event = torch.cuda.Event()
            event.record(stream)
        events.append(event)
    return tuple(events)
