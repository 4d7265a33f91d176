"""A gloo process group whose calls end when their generation does, whatever gloo makes of a member that is gone.

gloo (torch 2.13) ends a call by walking the lists of the connection that failed. A buffer that is just being sent or
received is on none of them: a send that met a reset is queued again, and nobody tells its caller, who then waits for
the group's time-out (seen: a ring all_reduce in UnboundBuffer::waitSend, its connections closed). So nobody waits for
gloo here. A call is handed to it, and its caller waits for whatever comes first, the call's end or the generation's.
What gloo still does with a call that was given up touches that call's own tensors only.

    until = Until()
    begin(store, rank=..., world=..., timeout=..., until=until)
    ...                 # DDP and torch.distributed's functions, as ever
    until.over()        # from any thread: every call that waits raises RuntimeError, and so does every later one
"""

from __future__ import annotations

import ctypes
import threading
from datetime import timedelta
from typing import Any, Final

import torch
from torch import distributed as dist
from torch._C._distributed_c10d import AllgatherOptions, AllreduceOptions, BarrierOptions, BroadcastOptions, Store
from torch.futures import Future

__all__ = ["BACKEND", "OVER", "Group", "Until", "begin", "connected"]

BACKEND: Final = "spotproof"
OVER: Final = "this generation is over: come out, and form the next one"

Tensors = list[torch.Tensor]


class Until:
    """Says that a generation is over, to all who wait for something in it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_over = False
        self._waiting: set[Call] = set()

    def over(self) -> None:
        """Let every call that waits raise, and every later one; may be said again."""
        with self._lock:
            self._is_over = True
            waiting, self._waiting = self._waiting, set()
        for call in waiting:
            call.settle(OVER)

    def wait_for(self, call: Call) -> None:
        """Let `call` raise when the generation is over."""
        with self._lock:
            is_over = self._is_over
            if not is_over:
                self._waiting.add(call)
        if is_over:
            call.settle(OVER)

    def forget(self, call: Call) -> None:
        """The call has ended."""
        with self._lock:
            self._waiting.discard(call)


class Call(dist.Work):
    """What is under way: it ends with gloo's word or with the generation, whichever comes first."""

    def __init__(self, until: Until, result: object = None) -> None:
        super().__init__()
        self._until = until
        self._result = result
        self._error = ""
        self._lock = threading.Lock()
        self._is_settled = False
        self._end: Future[object] = Future()
        # A Python future that is given an exception looks like a value to C++; only a callback's error is one there.
        self._future: Future[object] = self._end.then(self._outcome)
        until.wait_for(self)

    def settle(self, error: str = "") -> None:
        """End the call, with an error or without; only the first word counts."""
        with self._lock:
            if self._is_settled:
                return
            self._is_settled = True
            self._error = error
        self._until.forget(self)
        self._end.set_result(self._result)

    def wait(self, timeout: timedelta = timedelta()) -> bool:  # noqa: ARG002 - gloo's own time-out ends it too
        """Block until the call has ended. Raises RuntimeError if a member is lost or the generation is over."""
        self._end.wait()
        if self._error:
            raise RuntimeError(self._error)
        return True

    def get_future(self) -> Future[Any]:
        """The end as a future; its value are the tensors that were filled."""
        return self._future

    def is_completed(self) -> bool:
        """Whether the call has ended, well or not."""
        return bool(self._end.done())

    def hear(self, done: Future[Any]) -> None:
        """gloo's word; on gloo's thread."""
        try:
            done.wait()
        except Exception as error:  # noqa: BLE001 - this call's error, raised where it is waited for
            self.settle(str(error) or "gloo failed")
        else:
            self.settle()

    def _outcome(self, end: Future[object]) -> object:
        if self._error:
            raise RuntimeError(self._error)
        return end.value()


class Group(dist.ProcessGroup):
    """The collectives of DDP, and of torch.distributed's functions on CPU tensors, by gloo. No point-to-point."""

    def __init__(self, gloo: Any, until: Until, *, rank: int, world: int) -> None:
        super().__init__(rank, world)  # type: ignore[call-arg]  # the constructor for subclasses
        self._gloo = gloo
        self._until = until

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Under which torch knows it."""
        return BACKEND

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Call:  # type: ignore[override]  # C++ calls this one
        """torch.distributed.all_reduce, and DDP's buckets."""
        return self._call(self._gloo.allreduce(tensors, opts or AllreduceOptions()), tensors)

    def broadcast(self, tensors: Tensors, opts: Any = None) -> Call:  # type: ignore[override]  # and this one
        """torch.distributed.broadcast, and DDP's first state."""
        return self._call(self._gloo.broadcast(tensors, opts or BroadcastOptions()), tensors)

    def allgather(  # type: ignore[override]
        self, outputs: list[Tensors], inputs: Tensors, opts: Any = None
    ) -> Call:
        """torch.distributed.all_gather, and DDP's look at the shapes."""
        return self._call(self._gloo.allgather(outputs, inputs, opts or AllgatherOptions()), outputs)

    def barrier(self, opts: Any = None) -> Call:
        """torch.distributed.barrier."""
        return self._call(self._gloo.barrier(opts or BarrierOptions()), [])

    def _call(self, work: dist.Work, result: object) -> Call:
        call = Call(self._until, result)
        work.get_future().add_done_callback(call.hear)
        return call


def begin(store: Store, *, rank: int, world: int, timeout: timedelta, until: Until) -> None:
    """Make torch's default process group of the members that meet at `store`; a collective.

    Raises RuntimeError if the generation is over before all of them are connected; then there is no default group.
    """
    group = connected(store, rank=rank, world=world, timeout=timeout, until=until)
    dist.init_process_group(BACKEND, store=store, rank=rank, world_size=world, timeout=timeout, pg_options=group)


def connected(store: Store, *, rank: int, world: int, timeout: timedelta, until: Until) -> Group:
    """Connect the members. In a thread of its own: gloo waits for a member that is gone by then until its time-out."""
    made: list[Any] = []
    call = Call(until)

    def connect() -> None:
        try:
            gloo = dist.ProcessGroupGloo(store, rank, world, timeout)
            _keep(gloo)
            made.append(gloo)
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            call.settle(str(error) or "gloo failed")
        else:
            call.settle()

    threading.Thread(target=connect, name="spotproof-connect", daemon=True).start()
    call.wait()
    return Group(made[0], until, rank=rank, world=world)


def _keep(gloo: object) -> None:
    """Never end this group: its end joins its threads under the interpreter's lock, and they may wait for that lock, or
    for a member that is gone (pytorch 56297). Not even at the process's end, so that this too is at once."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(gloo))


def _given(_options: object, group: Group) -> Group:
    """torch's maker of a backend: the group is there already."""
    return group


dist.Backend.register_backend(BACKEND, _given, extended_api=True, devices=["cpu"])
