"""The link to the neighbour's launcher: its end is a death, unless the neighbour said good-bye."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from spotproof.contract.items import Generation, Join
from spotproof.rendezvous.joining import Entered
from spotproof.rendezvous.link import Link
from spotproof.rendezvous.watch import Watch
from spotproof.store.joins import Joins
from spotproof.store.local import IN_MEMORY, LocalTable
from spotproof.store.members import Memberships

LIMIT_S = 10.0


class Neighbour:
    """A launcher that listens and can die."""

    def __init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self.server.getsockname()[1]}"
        self.connections: list[socket.socket] = []

    def accept(self) -> None:
        self.server.settimeout(LIMIT_S)
        self.connections.append(self.server.accept()[0])

    def die(self) -> None:
        for connection in self.connections:
            connection.close()
        self.server.close()


@pytest.fixture
def neighbour() -> Iterator[Neighbour]:
    made = Neighbour()
    yield made
    made.die()


def test_a_death_is_told_once(neighbour: Neighbour) -> None:
    lost = threading.Event()
    link = Link(neighbour.endpoint, lost.set)
    neighbour.accept()
    assert not lost.wait(0.1)
    neighbour.die()
    assert lost.wait(LIMIT_S)
    link.end()


def test_one_that_died_before_the_link_was_made_is_told_too(neighbour: Neighbour) -> None:
    neighbour.die()
    lost = threading.Event()
    Link(neighbour.endpoint, lost.set)
    assert lost.wait(LIMIT_S)


def test_a_link_that_we_end_tells_nothing(neighbour: Neighbour) -> None:
    lost = threading.Event()
    link = Link(neighbour.endpoint, lost.set)
    neighbour.accept()
    link.end()
    neighbour.die()
    link._thread.join(LIMIT_S)
    assert not lost.is_set()


def made(watch: Watch) -> Link:
    """The watch's link, which its thread notes a moment after the neighbour has seen it."""
    give_up_at = time.monotonic() + LIMIT_S
    while watch._link is None:
        assert time.monotonic() < give_up_at
        time.sleep(0.001)
    return watch._link


@pytest.mark.parametrize(
    ("what", "left", "moved", "over"),
    [("killed", False, False, True), ("left", True, False, False), ("parked again", False, True, False)],
)
def test_a_lost_link_ends_the_generation_only_if_the_neighbour_died(
    neighbour: Neighbour, what: str, left: bool, moved: bool, over: bool
) -> None:
    with LocalTable(IN_MEMORY) as table:
        sealed = Generation(run="r", generation=1, members=("0:1:a", "1:1:b"), sealed_at=0)
        Memberships(table).seal(sealed, pointer=None)
        joins = Joins(table)
        joins.put(Join(run="r", node="a", ready_for=1))
        joins.put(Join(run="r", node="b", ready_for=1, endpoint=neighbour.endpoint))
        with Watch(table=table, entered=Entered(sealed=sealed, rank=0, world=2), node="a") as watch:
            neighbour.accept()
            if left:
                joins.leave("r", "b")
            if moved:
                joins.put(Join(run="r", node="b", ready_for=2, endpoint="127.0.0.1:1"))
            link = made(watch)
            neighbour.die()
            link._thread.join(LIMIT_S)
            newest = Memberships(table).newest("r")
            assert newest is not None
            assert (watch.is_over, newest.bad == 1) == (over, over), what
