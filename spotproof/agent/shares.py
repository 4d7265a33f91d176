"""Several ranks restore one checkpoint, each its own part of it: of many nodes, or of several on this one.

Of many nodes the membership says which checkpoint. Of several ranks on the run's one node it is this agent's newest,
chosen once for a set of workers, when nothing is under way that could change it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from spotproof.agent.server import Peer
from spotproof.agent.situation import Situation
from spotproof.checkpoint.fetch import Fetched
from spotproof.contract.protocol import RestoreFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One rank's part of a checkpoint."""

    generation: int
    step: int
    rank: int
    is_committed: bool = True
    any_world: bool = False  # the run is elastic: the rank may be none of the world that saved it

    @property
    def order(self) -> tuple[int, int]:
        """(generation, step)."""
        return self.generation, self.step


@dataclass(slots=True, kw_only=True)
class Shares:
    """Who waits for which part. `fetch` reads one on a thread and posts it; `on_damaged` says that the start is not
    whole, so that the members choose another one."""

    situation: Situation
    fetch: Callable[[Wanted], None]
    answer: Callable[[list[Peer], Fetched | None], None]
    on_damaged: Callable[[str], None]
    _waiting: dict[Peer, int] = field(default_factory=dict)
    _asked: set[Wanted] = field(default_factory=set)
    _start: Wanted | None = None  # of this set of workers, where this agent has chosen it; its rank means nothing
    _has_chosen: bool = False

    def want(self, peer: Peer, rank: int) -> None:
        """A worker wants its part."""
        self._waiting[peer] = rank
        self.check()

    def gone(self, peer: Peer, *, was_last: bool) -> None:
        """A worker has ended; after the last one of a set the start is chosen anew."""
        self._waiting.pop(peer, None)
        if was_last:
            self._has_chosen = False

    def check(self) -> None:
        """Answer those whose part is nothing or is there, and see that the others' are read."""
        if not self._waiting or not self._is_chosen():
            return
        start = self._start
        if start is None:
            waiting, self._waiting = list(self._waiting), {}
            self.answer(waiting, None)
            return
        for rank in sorted(set(self._waiting.values())):
            wanted = replace(start, rank=rank)
            ahead = self._taken_ahead(wanted)
            if ahead is not None:
                self._answer_rank(rank, ahead)
            elif wanted not in self._asked:
                self._asked.add(wanted)
                self.fetch(wanted)

    def fetched(self, wanted: Wanted, fetched: Fetched | None, error: Exception | None) -> None:
        """A part has been read, or cannot be: of many nodes all choose again then."""
        self._asked.discard(wanted)
        if error is None and fetched is not None:
            self._answer_rank(wanted.rank, fetched)
            return
        reason = str(error)
        if self.situation.is_together:
            self.situation.log(reason)
            self.on_damaged(reason)
            return
        for peer in [peer for peer, rank in self._waiting.items() if rank == wanted.rank]:
            del self._waiting[peer]
            self.situation.server.send(peer, RestoreFailed(reason=reason))

    def _is_chosen(self) -> bool:
        now = self.situation
        if now.is_together:
            self._start = _sealed_start(now)
            return now.sealed is not None and not now.is_over
        if not self._has_chosen and not now.is_saving:
            self._has_chosen, self._start = True, _own_start(now)
        return self._has_chosen

    def _taken_ahead(self, wanted: Wanted) -> Fetched | None:
        """What was read before anybody asked, if it is this part."""
        ahead = self.situation.fetched
        if ahead is None or (ahead.order, ahead.part.rank) != (wanted.order, wanted.rank):
            return None
        self.situation.fetched = None
        return ahead

    def _answer_rank(self, rank: int, fetched: Fetched) -> None:
        peers = [peer for peer, one in self._waiting.items() if one == rank]
        for peer in peers:
            del self._waiting[peer]
        self.answer(peers, fetched)


def _sealed_start(now: Situation) -> Wanted | None:
    sealed = now.sealed
    if sealed is None or sealed.start_generation is None or sealed.start_step is None:
        return None
    is_committed = sealed.start_manifest is not None
    return Wanted(
        generation=sealed.start_generation,
        step=sealed.start_step,
        rank=0,
        is_committed=is_committed,
        any_world=now.spec is not None and bool(now.spec.elastic),
    )


def _own_start(now: Situation) -> Wanted | None:
    """The newest of what this agent has committed and what it found when it started."""
    found, saves = now.fetched, now.saves
    committed = (saves.committed_generation, saves.committed_step)
    if found is not None and found.manifest is None and found.order > committed:
        return Wanted(generation=found.order[0], step=found.order[1], rank=0, is_committed=False)
    return None if committed[1] < 0 else Wanted(generation=committed[0], step=committed[1], rank=0)
