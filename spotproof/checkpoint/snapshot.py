"""Live state into an arena. This is the only thing of a save that the training loop waits for, and not for all of it:
what rests until the optimizer's next step is copied behind the loop's back (`begin`).

Order of calls, in the trainer: `check` before the first step, `estimate_bytes` for the preflight, then `save` or
`begin` at step boundaries. The layout is fixed by the first save, which is after the first real step, because only
then the optimizer has its state. Where the state later takes another form (a parameter group was added, a list outgrew
the state document), the next save fixes a new layout and asks for new arenas.
"""

from __future__ import annotations

import mmap
import os
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import torch
from torch import Tensor

from spotproof.checkpoint.arena import Arena
from spotproof.checkpoint.dcp import ImagePlan, Peers, Shared, payload_views, plan_image, write_frames
from spotproof.checkpoint.hostmemory import Registration, device_of, settle
from spotproof.checkpoint.keeping import Keeper
from spotproof.checkpoint.overlap import Behind, Copier, Copy, can_be_moved, cannot_rest, resting, still
from spotproof.checkpoint.sharded import form_of, gathered, local_of
from spotproof.checkpoint.state import Captured, capture
from spotproof.contract.layout import STATE_KEY
from spotproof.contract.states import ArenaState

ArenaSource = Callable[[ImagePlan], Sequence[int]]
"""Asks for arenas of a plan's size: returns their memfds, which become the snapshotter's. May raise ArenaRefused."""

_DOCUMENT_STEP_BYTES: Final = 64 * 1024
_DOCUMENT_ROOM: Final = 4  # the state document may grow this many times before a new layout is due
_FRAME_BYTES: Final = 2048  # what a frame adds to a tensor, roughly: for the estimate only
_SPACE: Final = 0x20  # the rest of the state document is blank, which JSON ignores


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Bytes of an image. Not `is_exact`: an optimizer could not be tried on the meta device, its state is missing."""

    image_bytes: int
    is_exact: bool


@dataclass(frozen=True, slots=True)
class _Slot:
    """An arena that is mapped here, with its payloads as tensors."""

    arena: Arena
    payloads: Mapping[str, Tensor]
    registration: Registration | None  # of its memory with a GPU


@dataclass(frozen=True, slots=True)
class _Split:
    """Which keys are copied behind the loop and which at once, for all captures of one plan."""

    plan: object
    behind: Behind
    at_once: tuple[str, ...]


class Snapshotter:
    """Copies the state of `objects` into whichever arena is free. A context manager; closing unmaps the arenas."""

    def __init__(
        self, objects: Mapping[str, object], *, provide: ArenaSource, rank: int = 0, peers: Peers | None = None
    ) -> None:
        self._objects = objects
        self._provide = provide
        self._rank = rank
        self._peers = peers or Peers(gather=gathered)
        self._plan: ImagePlan | None = None
        self._form: object = None
        self._slots: list[_Slot] = []
        self._copier = Copier()
        self._keeper = Keeper(objects)
        self._restless: set[str] = set()  # keys that were written to while they should have rested
        self._split: _Split | None = None
        self._laid_out: object = None  # the capture's plan that the layout was last found to fit
        self._room = 0

    def check(self, counters: Mapping[str, object]) -> None:
        """Raise UnstorableState, naming the value, if the state as it is now could not be saved."""
        capture(self._objects, counters=counters)

    @property
    def plan(self) -> ImagePlan | None:
        """The layout that is fixed, None before the first save."""
        return self._plan

    def has_free_arena(self) -> bool:
        """Whether a save would find room now; before the first save it would ask for arenas."""
        return not self._slots or self._free() is not None

    def save(self, *, step: int, generation: int, counters: Mapping[str, object]) -> int | None:
        """Copy the state at `step` into a free arena and mark it COMPLETE; returns the arena's index.

        Returns None, having copied nothing, if every arena is still being uploaded. The caller must not let the
        tracked objects change before this returns. If it raises, the arena is FREE again.

        Raises:
            UnstorableState: the state now holds a value that cannot be stored; the path names it.
            ArenaRefused: a new layout does not fit the memory.
        """
        captured = self._captured(step, generation, counters)
        index = self._free()
        if index is None:
            return None
        with self._filling(index, generation=generation, step=step) as slot:
            _copy(captured.tensors, slot)
            _write_document(captured.document, slot)
        slot.arena.move(ArenaState.COMPLETE)
        return index

    def begin(
        self, *, step: int, generation: int, counters: Mapping[str, object], then: Callable[[int], None]
    ) -> Copy | None:
        """Like `save`, but what rests until the optimizer's next step is copied behind the training loop's back.

        Until `Copy.gate` has returned no tracked optimizer may step, and until `Copy.finish` has there may be no other
        `begin`, `save` or `close`. Once the arena is COMPLETE `then(arena)` is called, in the copier's thread. Where
        nothing is known to rest the copy is over when this returns. None, and errors: as `save`.
        """
        captured = self._captured(step, generation, counters)
        index = self._free()
        if index is None:
            return None
        split = self._split_of(captured)
        with self._filling(index, generation=generation, step=step) as slot:
            _copy({key: captured.tensors[key] for key in split.at_once}, slot)
            _write_document(captured.document, slot)

            def over(is_whole: bool) -> None:  # noqa: FBT001 -- the copier's one word
                slot.arena.move(ArenaState.COMPLETE if is_whole else ArenaState.FREE)
                if is_whole:
                    then(index)

            return self._copier.start(index, split.behind, captured.tensors, slot.payloads, then=over)

    def finish(self, copy: Copy) -> bool:
        """Wait until `copy` is over; False: the loop wrote to a tensor meanwhile, which from now on is copied at once.

        Raises what the copier met. The arena is COMPLETE, or FREE again.
        """
        is_whole = copy.finish()
        if not is_whole:
            self._restless.add(copy.changed)
            self._split = None
        return is_whole

    def _captured(self, step: int, generation: int, counters: Mapping[str, object]) -> Captured:
        captured = self._keeper.capture(counters={**counters, "step": step, "generation": generation})
        self._fix_layout(captured)
        return captured

    def _split_of(self, captured: Captured) -> _Split:
        """What rests until the next optimizer step. That the step can be made to wait is looked up each time."""
        if cannot_rest(self._objects):
            return _Split(None, Behind(()), tuple(captured.tensors))
        known = self._split
        if known is None or captured.plan is None or known.plan is not captured.plan:
            at_rest = resting(self._objects).pointers
            not_these = self._restless | captured.loose
            behind = tuple(
                key
                for key, tensor in captured.tensors.items()
                if tensor.data_ptr() in at_rest and key not in not_these and can_be_moved(tensor)
            )
            at_once = captured.tensors.keys() - set(behind)
            known = self._split = _Split(captured.plan, Behind(behind), tuple(at_once))
        return known

    @contextmanager
    def _filling(self, index: int, *, generation: int, step: int) -> Iterator[_Slot]:
        """The slot, FILLING; FREE again if the block raises."""
        slot = self._slots[index]
        slot.arena.move(ArenaState.FILLING, generation=generation, step=step)
        try:
            yield slot
        except BaseException:
            slot.arena.move(ArenaState.FREE)
            raise

    def close(self) -> None:
        """Unmap all arenas; their memory stays while the agent has it."""
        arenas = [slot.arena for slot in self._slots]
        registrations = [slot.registration for slot in self._slots]
        self._copier.forget()
        self._slots = []  # lets go of the payload views, without which an arena cannot be unmapped
        for registration in registrations:
            if registration is not None:
                registration.end()
        for arena in arenas:
            arena.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _free(self) -> int | None:
        states = (slot.arena.header.state for slot in self._slots)
        return next((index for index, state in enumerate(states) if state is ArenaState.FREE), None)

    def _fix_layout(self, captured: Captured) -> None:
        has_room = len(captured.document) <= self._room
        if has_room and captured.plan is not None and captured.plan is self._laid_out:
            return
        form = _form_of(captured)
        if has_room and form == self._form:
            self._laid_out = captured.plan
            return
        capacity = -(-len(captured.document) * _DOCUMENT_ROOM // _DOCUMENT_STEP_BYTES) * _DOCUMENT_STEP_BYTES
        plan = plan_image(
            captured.tensors,
            captured.aliases,
            state_capacity=capacity,
            rank=self._rank,
            shared=Shared(wholes=captured.wholes, peers=self._peers) if captured.wholes else None,
            still=still(self._objects, captured.tensors),
        )
        fds = self._provide(plan)
        self.close()
        device = device_of(captured.tensors.values())
        self._slots = [_map(fd, plan, device) for fd in fds]
        self._plan, self._form, self._room = plan, form, _document_room(plan)
        self._laid_out = captured.plan  # only now: memory may have been refused


def estimate_bytes(objects: Mapping[str, object]) -> Estimate:
    """Size of the image after the first step. Optimizers are tried on a meta copy; the live ones are not touched."""
    captured = capture(objects, counters={})
    sizes = [_size(tensor) for tensor in captured.tensors.values()]
    is_exact = True
    for thing in objects.values():
        if isinstance(thing, torch.optim.Optimizer) and not thing.state:
            state = state_after_a_step(thing)
            is_exact = is_exact and state is not None
            sizes += [_size(tensor) for tensor in state or ()]
    document = len(captured.document) * _DOCUMENT_ROOM + _DOCUMENT_STEP_BYTES
    return Estimate(image_bytes=sum(sizes) + len(sizes) * _FRAME_BYTES + document, is_exact=is_exact)


def state_after_a_step(optimizer: torch.optim.Optimizer) -> list[Tensor] | None:
    """Tensors of the state that `optimizer` will have once it has made a step; None where it cannot be tried.

    A twin without memory makes the step: same class and settings, parameters and gradients on the meta device.
    """
    twin = object.__new__(type(optimizer))
    # A scheduler replaces `step` on the instance by one bound to the live optimizer: the twin must not inherit it.
    twin.__dict__.update({name: value for name, value in vars(optimizer).items() if name != "step"})
    hooks = [name for name in vars(optimizer) if name.endswith("_hooks")]
    twin.__dict__.update({name: OrderedDict() for name in hooks})
    twin.state = defaultdict(dict)
    twin.param_groups = [_on_meta(group) for group in optimizer.param_groups]
    try:
        type(optimizer).step(twin)
    except (AttributeError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError):
        return None  # e.g. LBFGS wants a closure, a third-party optimizer a device of its own
    return [value for state in twin.state.values() for value in state.values() if isinstance(value, Tensor)]


def _on_meta(group: dict[str, Any]) -> dict[str, Any]:
    parameters = []
    for parameter in group["params"]:
        own = local_of(parameter)  # of a sharded one each rank has its part's state
        twin = torch.nn.Parameter(torch.empty_like(own, device="meta"), requires_grad=parameter.requires_grad)
        if parameter.requires_grad:
            twin.grad = torch.empty_like(twin)
        parameters.append(twin)
    plain: dict[str, Any] = {name: False for name in ("fused", "foreach", "capturable") if name in group}
    return {**group, **plain, "params": parameters}


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _form_of(captured: Captured) -> object:
    """What a layout depends on: names, dtypes, shapes and sharing, in order."""
    tensors = tuple((key, tensor.dtype, tensor.shape) for key, tensor in captured.tensors.items())
    return tensors, tuple(sorted(captured.aliases.items())), form_of(captured.wholes)


def _document_room(plan: ImagePlan) -> int:
    return next(entry.bytes for entry in plan.layout.tensors if entry.key == STATE_KEY)


def _map(fd: int, plan: ImagePlan, device: torch.device | None) -> _Slot:
    try:
        arena = Arena(fd)
    finally:
        os.close(fd)  # the mapping has its own reference
    arena.buffer.madvise(mmap.MADV_DONTFORK)  # a loader's worker that outlives the trainer must not hold the memory
    registration = settle(arena.buffer, device)  # before the first touch
    write_frames(plan, arena.image())
    return _Slot(arena=arena, payloads=payload_views(plan.layout, arena.image()), registration=registration)


def _copy(tensors: Mapping[str, Tensor], slot: _Slot) -> None:
    with torch.no_grad():
        for key, tensor in tensors.items():
            slot.payloads[key].copy_(tensor)


def _write_document(text: bytes, slot: _Slot) -> None:
    document = slot.payloads[STATE_KEY]
    document[: len(text)].copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    document[len(text) :].fill_(_SPACE)
