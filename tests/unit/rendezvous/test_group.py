"""Calls of a group end with their generation, though gloo would wait for a member that never answers."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
from torch import distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]  # exported at run time

from spotproof.rendezvous.group import OVER, Call, Group, Until, connected

pytestmark = [pytest.mark.torch]
GLOO_TIME_OUT = timedelta(seconds=20)  # who waits for gloo is told of a time-out, not that the generation is over


@pytest.fixture(autouse=True)
def loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


def pair(until: Until) -> tuple[Group, Group]:
    """Two members; `until` is the first one's word."""
    store = HashStore()
    with ThreadPoolExecutor(2) as pool:
        words = (until, Until())
        futures = [
            pool.submit(connected, store, rank=rank, world=2, timeout=GLOO_TIME_OUT, until=words[rank])
            for rank in range(2)
        ]
        first, second = (future.result() for future in futures)
    return first, second


def test_collectives_are_gloos() -> None:
    first, second = pair(Until())
    own, other = torch.ones(3), torch.full((3,), 2.0)
    calls = [first.allreduce([own]), second.allreduce([other])]
    assert [call.wait() for call in calls] == [True, True]
    assert own.tolist() == other.tolist() == [3.0, 3.0, 3.0]
    (reduced,) = calls[0].get_future().wait()
    assert reduced is own
    given, taken = torch.arange(2.0), torch.zeros(2)
    for call in (first.broadcast([given]), second.broadcast([taken])):
        call.wait()
    assert taken.tolist() == [0.0, 1.0]
    found = [[torch.zeros(1), torch.zeros(1)] for _ in range(2)]
    calls = [
        group.allgather([found[rank]], [torch.tensor([float(rank)])]) for rank, group in enumerate((first, second))
    ]
    for call in calls:
        call.wait()
    assert [[int(one) for one in row] for row in found] == [[0, 1], [0, 1]]
    for call in (first.barrier(), second.barrier()):
        call.wait()


def test_a_call_that_another_member_never_joins_ends_with_the_generation() -> None:
    until = Until()
    first, _second = pair(until)
    calls = [first.allreduce([torch.ones(1)]), first.barrier()]
    threading.Timer(0.05, until.over).start()
    for call in calls:
        with pytest.raises(RuntimeError, match=OVER):
            call.wait()
        assert call.is_completed()
    with pytest.raises(RuntimeError, match=OVER):
        first.allreduce([torch.ones(1)]).wait()  # and so does every later one


def test_torchs_own_code_hears_it_too() -> None:
    """DDP waits for futures, and for works by torch's C++: a value there would be a gradient that nobody summed."""
    until = Until()
    first, _second = pair(until)
    until.over()
    with pytest.raises(RuntimeError, match=OVER):
        first.allreduce([torch.ones(1)]).get_future().wait()
    with pytest.raises(RuntimeError, match=OVER):
        dist._broadcast_coalesced(first, [torch.ones(4)], 1024, 0)  # type: ignore[attr-defined]  # as DDP does


def test_a_member_that_is_gone_is_not_connected_to_for_longer_than_the_generation() -> None:
    until = Until()
    threading.Timer(0.05, until.over).start()
    with pytest.raises(RuntimeError, match=OVER):
        connected(HashStore(), rank=0, world=2, timeout=GLOO_TIME_OUT, until=until)


def test_what_ended_first_counts() -> None:
    until = Until()
    call = Call(until, [1])
    call.settle()
    until.over()
    assert call.wait()
    assert call.get_future().wait() == [1]
    failed = Call(Until())
    failed.settle("Connection closed by peer")
    failed.settle()
    with pytest.raises(RuntimeError, match="Connection closed by peer"):
        failed.wait()


def test_a_process_ends_though_gloo_still_waits_in_it() -> None:
    program = """
import threading
from datetime import timedelta
import torch
from torch.distributed import HashStore
from spotproof.rendezvous.group import Until, connected
store, until, groups = HashStore(), Until(), [None, None]
def connect(rank):
    groups[rank] = connected(store, rank=rank, world=2, timeout=timedelta(seconds=300), until=until)
threads = [threading.Thread(target=connect, args=(rank,)) for rank in range(2)]
[one.start() for one in threads]
[one.join() for one in threads]
call = groups[0].allreduce([torch.ones(1)])
until.over()
print("given up")
"""
    argv = [sys.executable, "-c", program]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "given up\n"), done.stderr
