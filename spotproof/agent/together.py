"""One of many nodes: the launchers' rendezvous seals the memberships, and this agent follows what is sealed.

    Ready        the launcher goes into the rendezvous                     (agent.membership)
    follow       a look at the table shows a newer membership with this node in it: its workers are welcome
    is_over      it is marked bad, or a newer one is sealed: the workers end, the launcher parks, all stays at hand
    leave        after this node's flush: taken out for good, the others re-form at once

A membership without this node does not end it while its place is its own: it parks beside the others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from spotproof.agent.head import TableSays
from spotproof.agent.heartbeat import Place
from spotproof.agent.situation import Situation
from spotproof.agent.threads import END_WITHIN_S
from spotproof.contract.items import Generation, Newest
from spotproof.contract.protocol import Committed, Role
from spotproof.errors import StoreError
from spotproof.rendezvous.decide import members_of
from spotproof.rendezvous.joining import leave
from spotproof.store.table import Table

LEAVE_WITHIN_S: Final = 60.0
_TRY_AGAIN_S: Final = 0.5


class Standing(StrEnum):
    """What the newest membership is to this node."""

    MEMBER = "member"  # it is in it, and it goes on
    OVER = "over"  # it was in it, and it has ended
    BESIDE = "beside"  # it is not in it, and waits
    GIVEN_AWAY = "given-away"  # its slot has a newer incarnation in it


def standing(place: Place, newest: Newest | None, sealed: Generation | None) -> Standing:
    """Where this node stands in what is sealed."""
    if newest is None or sealed is None or sealed.generation != newest.generation:
        return Standing.BESIDE
    for member in members_of(sealed):
        if member.slot == place.slot and member.incarnation > place.incarnation:
            return Standing.GIVEN_AWAY
        if member.node == place.instance:
            return Standing.OVER if newest.bad >= newest.generation else Standing.MEMBER
    return Standing.BESIDE


def node_rank(place: Place, sealed: Generation) -> int:
    """The logical rank of this node among the members."""
    return [member.node for member in members_of(sealed)].index(place.instance)


@dataclass(slots=True, kw_only=True)
class Together:
    """Follows the memberships. `on_entered` is called once for each that has this node in it."""

    situation: Situation
    on_entered: Callable[[], None]

    def hear(self, says: TableSays) -> str:
        """Take in a look; returns why this node's place is given away, '' as long as it is not."""
        now, place = self.situation, self.situation.place
        if place is None:
            return ""
        now.looked_at = says.began_at
        self._hear_commits(says)
        stands = standing(place, says.newest, says.sealed)
        if stands is Standing.GIVEN_AWAY:
            return f"slot {place.slot} has been given to another node"
        if says.sealed is not None and stands in (Standing.MEMBER, Standing.OVER):
            self._follow(says.sealed)
        now.is_over = stands is not Standing.MEMBER
        if now.is_over:
            self._give_up_parts()
        elif now.has_joined:
            self.on_entered()
        return ""

    def _follow(self, sealed: Generation) -> None:
        now = self.situation
        if sealed.generation <= now.generation:
            return
        self._judge(now.sealed, sealed)
        if not now.has_joined and now.is_over:  # a look before this one did not find it there
            now.joined_in = sealed.generation
        now.generation, now.sealed = sealed.generation, sealed
        self._give_up_parts()
        now.say(generation=sealed.generation)
        start = "at step 0" if sealed.start_step is None else f"from step {sealed.start_step}"
        now.log(f"generation {sealed.generation}, {len(sealed.members)} nodes: goes on {start}")

    def _judge(self, before: Generation | None, sealed: Generation) -> None:
        """torchrun begins again as often as it likes; a training that always fails is ended by its budget.

        A failure: a worker died, the same members go on, and from the same checkpoint.
        """
        now = self.situation
        if before is None or now.spec is None:
            return
        if _start(sealed) > _start(before):
            now.training.failures = 0
        elif sealed.members == before.members and now.training.died_in == before.generation:
            now.training.failures += 1
            allowed = now.spec.budgets.trainer_failures
            now.log(f"training has failed {now.training.failures} of {allowed} times without progress")
            now.training.is_hopeless = now.training.failures >= allowed

    def _hear_commits(self, says: TableSays) -> None:
        """What is committed; whoever wrote the manifest may be another node."""
        saves, pointer = self.situation.saves, says.pointer
        if pointer is not None:
            order = (pointer.generation, pointer.step)
            if order > (saves.committed_generation, saves.committed_step):
                saves.committed_generation, saves.committed_step = order
                frame = Committed(generation=order[0], step=order[1], seconds=0.0)
                self.situation.tell_all(Role.TRAINER, frame)

    def _give_up_parts(self) -> None:
        """Parts of a generation that has ended: what is missing of them comes only from a node that still uploads."""
        now = self.situation
        if now.saves.parted[0] < now.generation:
            now.saves.parted = (-1, -1)


def _start(sealed: Generation) -> tuple[int, int]:
    return sealed.start_generation or 0, sealed.start_step or 0


@contextmanager
def departing(table: Table, *, run: str, node: str) -> Iterator[Callable[[], None]]:
    """Yields what takes this node out of the run for good, on a thread that tries until the table answers."""
    threads: list[threading.Thread] = []
    is_ended = threading.Event()

    def work() -> None:
        until = time.monotonic() + LEAVE_WITHIN_S
        while time.monotonic() < until and not is_ended.is_set():
            with suppress(StoreError):  # else the others see the end of this node's launcher
                leave(table, run=run, node=node)
                return
            is_ended.wait(_TRY_AGAIN_S)

    def depart() -> None:
        if not threads:
            threads.append(threading.Thread(target=work, name="leave", daemon=True))
            threads[-1].start()

    try:
        yield depart
    finally:
        is_ended.set()
        for thread in threads:
            thread.join(END_WITHIN_S)
