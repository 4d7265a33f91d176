"""Replicated training that survives a loss inside its processes: survivors keep their memory, a newcomer is given it.

    recovery = InProcess(joining, address=...)
    while step < steps:
        try:
            recovery.form()                          # every member
            step = recovery.share(state_of(model, optimizer), step)
            ddp = DistributedDataParallel(model, find_unused_parameters=True)
            while step < steps:
                ...                                  # backward, then `recovery.commit()`, then optimizer.step()
        except RuntimeError:                         # gloo's word for a member that is gone
            pass                                     # until here the traceback holds DDP, and DDP the group
        ddp = None
        recovery.come_out()

Only state that every rank holds whole can be given on (DDP); a shard that is lost is in nobody's memory. No step is
lost: `commit` keeps a rank from stepping where another could not.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

import torch
from torch import distributed as dist

from spotproof.rendezvous.group import Until, begin
from spotproof.rendezvous.joining import Joining
from spotproof.rendezvous.meeting import Meeting, Met
from spotproof.rendezvous.sockets import Socket, open_sockets, shut_down

__all__ = ["WATCHDOG_EXIT", "InProcess", "state_of"]

WATCHDOG_S: Final = 20.0
STUCK_S: Final = 60.0
WATCHDOG_EXIT: Final = 70  # the launcher starts the process again: recovery by restart
_NOTHING: Final = -1  # the step of a newcomer


class InProcess:
    """One process's recoveries. Every member calls `form`, `share`, `commit` alike; `come_out` after an error.

    `stuck_s` is longer than the longest step: a process that has not come out that long after its generation was said
    to be over hangs in it, and is ended with WATCHDOG_EXIT.
    """

    def __init__(
        self,
        joining: Joining,
        *,
        address: str,
        group_timeout_s: float = 120.0,
        watchdog_s: float = WATCHDOG_S,
        stuck_s: float = STUCK_S,
    ) -> None:
        self._meeting = Meeting(joining, address=address, on_over=self._told_over)
        self._stuck_s = stuck_s
        self._is_out = threading.Event()
        self._is_out.set()
        self._until = Until()
        self._sockets: frozenset[Socket] = frozenset()
        self._group_timeout_s = group_timeout_s
        self._watchdog_s = watchdog_s
        gc.freeze()  # what was imported is no garbage: looking for DDP's cycles would walk all of torch, 0.3 s

    @property
    def is_over(self) -> bool:
        """Whether the control plane or a neighbour says that this generation is over."""
        return self._meeting.is_over

    def form(self) -> Met:
        """Enter the next generation and make its process group; blocks until all members are here.

        Raises RuntimeError if one of them is lost meanwhile: come out and form again.
        """
        met = self._meeting.meet()
        self._is_out.clear()
        self._until = until = Until()
        if self._meeting.is_over:  # said before there was anybody to hear it
            until.over()
        before = open_sockets()
        try:
            begin(
                dist.PrefixStore("workers", met.store),  # type: ignore[attr-defined]  # exported at run time
                rank=met.entered.rank,
                world=met.entered.world,
                timeout=timedelta(seconds=self._group_timeout_s),
                until=until,
            )
        finally:
            self._sockets = open_sockets() - before
        return met

    def share(self, tensors: Sequence[torch.Tensor], step: int | None) -> int:
        """Give the newest state to all: `step` None says that this process has none. Returns the step of the state.

        The giver is the lowest rank among those that are furthest. 0 if nobody has anything: each begins from its own,
        which must be equal by seed.
        """
        own = torch.tensor([_NOTHING if step is None else step])
        steps = [torch.zeros_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(steps, own)
        newest = max(int(one) for one in steps)
        if newest == _NOTHING:
            return 0
        giver = next(rank for rank, one in enumerate(steps) if int(one) == newest)
        for tensor in tensors:
            dist.broadcast(tensor, giver)
        return newest

    def commit(self) -> None:
        """Between backward and optimizer.step(): nobody steps unless everybody has come so far.

        Raises RuntimeError if a member is lost or the generation is over.
        """
        dist.all_reduce(torch.zeros(1))

    def come_out(self) -> None:
        """Leave the generation whose member is lost. Drop DDP first, and what else uses the group.

        The group's connections are ended, so that nobody waits for us in it. gloo itself is kept for as long as the
        process lives, because its end can hang: that costs its threads for each recovery. Should this hang all the
        same, the process ends with WATCHDOG_EXIT and is started again.
        """
        self._is_out.set()
        with watchdog(self._watchdog_s):
            gc.collect()
            self._abort()
            if dist.is_initialized():
                dist.destroy_process_group()
            self._meeting.part()

    def _told_over(self) -> None:
        """On the watch's thread: let the training thread out, or end the process if that does not help."""
        self._abort()
        if not self._is_out.wait(self._stuck_s):
            _end_process()

    def _abort(self) -> None:
        """Let every call in the group fail: here by our own word, at the others by the end of the connections."""
        self._until.over()
        shut_down(self._sockets)


def state_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The tensors that make up a replica, in an order that is equal everywhere.

    An optimizer that has not stepped yet gets its state here: zeros, which is where Adam and its kind begin.
    """
    if not optimizer.state:
        _begin(optimizer)
    found = [*model.state_dict().values()]
    for parameter in _parameters(optimizer):
        state = optimizer.state[parameter]
        found += [state[name] for name in sorted(state) if isinstance(state[name], torch.Tensor)]
    return found


@torch.no_grad()
def _begin(optimizer: torch.optim.Optimizer) -> None:
    """A step with zero gradients makes the state; what it changed is put back."""
    parameters = list(_parameters(optimizer))
    before = [parameter.clone() for parameter in parameters]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    for parameter, was in zip(parameters, before, strict=True):
        parameter.copy_(was)
        for value in optimizer.state[parameter].values():
            if isinstance(value, torch.Tensor):
                value.zero_()


def _parameters(optimizer: torch.optim.Optimizer) -> Iterable[torch.Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


@contextmanager
def watchdog(limit_s: float) -> Iterator[None]:
    """End the process, with the stacks of its threads on stderr, unless the block is through in time.

    faulthandler's own thread needs no interpreter lock: it fires where a Python timer would hang too.
    """
    ended = threading.Event()

    def end() -> None:
        if not ended.wait(limit_s):
            _end_process()

    threading.Thread(target=end, name="spotproof-watchdog", daemon=True).start()
    faulthandler.dump_traceback_later(2 * limit_s, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        ended.set()


def _end_process() -> None:
    """Say where every thread stands, and end: nothing in here can be trusted to unwind."""
    faulthandler.dump_traceback()
    os._exit(WATCHDOG_EXIT)
