"""Who has died since the seal is not waited for: its neighbour's link tells."""

from __future__ import annotations

import socket
import time

import pytest

from spotproof.contract.items import Join
from spotproof.rendezvous.decide import Seat, Size
from spotproof.rendezvous.joining import Joining
from spotproof.store.joins import Joins
from spotproof.store.local import IN_MEMORY, LocalTable
from spotproof.store.members import Memberships

pytestmark = pytest.mark.torch
RUN = "r"
TORCHS_PATIENCE_S = 16.0  # with a store that refuses


class NobodyElse(Exception):
    """The next generation is waited for."""


def test_a_rank_0_that_has_died_since_the_seal_holds_nobody_up() -> None:
    from spotproof.rendezvous.meeting import Meeting

    with socket.create_server(("127.0.0.1", 0)) as closed_soon:
        port = closed_soon.getsockname()[1]
    with LocalTable(IN_MEMORY) as table:
        memberships = Memberships(table)

        def pause(seconds: float) -> None:
            newest = memberships.newest(RUN)
            if newest is not None and newest.bad == 1:
                raise NobodyElse
            time.sleep(seconds)

        Joins(table).put(Join(run=RUN, node="a", ready_for=1, endpoint=f"127.0.0.1:{port}"))
        seat, size = Seat(node="b"), Size(smallest=2, largest=2)
        meeting = Meeting(Joining(table=table, run=RUN, seat=seat, size=size, pause=pause), address="127.0.0.1")
        began = time.monotonic()
        with pytest.raises(NobodyElse):
            meeting.meet()
        assert time.monotonic() - began < TORCHS_PATIENCE_S / 2
        sealed = memberships.generation(RUN, 1)
        assert sealed is not None
        assert [member.split(":")[2] for member in sealed.members] == ["a", "b"]
        meeting.part()
