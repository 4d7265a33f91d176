"""The proof over one rehearsal: calls -> requests -> decisions, grants -> used or not, attacks -> refused."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rehearsal.permissions import deployed, escalations, excuses, services
from rehearsal.permissions.deployed import Deployed
from rehearsal.permissions.derive import derive
from rehearsal.permissions.estate import Estate
from rehearsal.permissions.evaluate import Part, decide, needed
from rehearsal.permissions.ledger import Entry, Use, entries, pieces
from rehearsal.permissions.requests import Request
from rehearsal.permissions.world import Underivable
from rehearsal.plane.calls import Answered
from rehearsal.region import Region


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What was found. `refused` and `admitted` must be empty, and `unused` too where the whole story was played."""

    calls: int
    requests: int  # decisions, each once however often it was asked
    refused: tuple[str, ...]  # what a role asked for and may not do, or what nobody can derive
    whole: bool  # whether the whole story was played
    ledger: tuple[Entry, ...]
    stale: tuple[str, ...]  # excuses without a grant
    attacks: int
    admitted: tuple[str, ...]  # attacks that a deployed role would get away with

    def unused(self) -> tuple[str, ...]:
        """Grants that nothing needed, and excuses for what is no grant."""
        return (*(str(one) for one in self.ledger if one.use is Use.UNUSED), *self.stale)

    def count(self, use: Use) -> int:
        """How many grants there are of this kind."""
        return sum(1 for one in self.ledger if one.use is use)


def prove(region: Region, outputs: Mapping[str, str], *, whole: bool, since: int = 0) -> Proof:
    """Judges everything that was called until now against the policies as they are deployed now.

    `since` leaves the first calls out: they were made under policies that an upgrade has replaced.
    """
    found = deployed.read(region, outputs)
    calls = [answered for answered in list(region.calls)[since:] if answered.call.role in found.actors]
    asked, underivable = _asked(calls, found)
    for actor, request in services.requests(region, found):
        asked[actor].setdefault(request.key(), request)
    return judge(found.estate, asked, calls=len(calls), underivable=underivable, whole=whole)


def joined(*proofs: Proof) -> Proof:
    """The proofs of a stack that was upgraded meanwhile, as one: what is wrong in any of them is wrong."""
    *before, last = proofs
    if not before:
        return last
    return dataclasses.replace(
        last,
        calls=sum(one.calls for one in proofs),
        requests=sum(one.requests for one in proofs),
        refused=tuple(line for one in proofs for line in one.refused),
        attacks=sum(one.attacks for one in proofs),
        admitted=tuple(line for one in proofs for line in one.admitted),
    )


Asked = dict[str, dict[tuple[object, ...], Request]]
"""Different requests by actor."""


def judge(estate: Estate, asked: Asked, *, calls: int, underivable: Iterable[str], whole: bool) -> Proof:
    """Decides every request and looks which grants were needed for it."""
    statements = estate.statements
    refused = list(underivable)
    used: defaultdict[str, frozenset[Part]] = defaultdict(frozenset)
    for actor, requests in asked.items():
        for request in requests.values():
            decision = decide(statements[actor], request)
            if not decision.allowed:
                refused.append(f"{actor}: {request}")
                continue
            used[actor] |= frozenset(part for one in decision.by for part in needed(one, request))
    parts = {actor: pieces(of) for actor, of in statements.items()}
    tried = escalations.attempts(estate)
    return Proof(
        calls=calls,
        requests=sum(len(of) for of in asked.values()),
        refused=tuple(dict.fromkeys(refused)),
        whole=whole,
        ledger=entries(parts, used),
        stale=excuses.stale(parts),
        attacks=len(tried),
        admitted=tuple(said for one in tried if (said := one.fails(estate))),
    )


def _asked(calls: Iterable[Answered], found: Deployed) -> tuple[Asked, list[str]]:
    asked: Asked = defaultdict(dict)
    underivable = []
    for answered in calls:
        actor = found.actors[answered.call.role]
        try:
            for request in derive(answered, found.estate.world):
                asked[actor].setdefault(request.key(), request)
        except Underivable as error:
            underivable.append(f"{actor}: {error}")
    return asked, underivable
