"""The proof over one rehearsal: calls -> requests -> decisions, grants -> used or not, attacks -> refused."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rehearsal.permissions import deployed, escalations, excuses, services
from rehearsal.permissions.deployed import Deployed
from rehearsal.permissions.derive import derive
from rehearsal.permissions.estate import Estate
from rehearsal.permissions.evaluate import Part, Statement, decide, needed, parts_of
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
    grants: int  # pieces that could be taken away: an action on a resource, or a value of a condition
    whole: bool  # whether the whole story was played
    unused: tuple[str, ...]
    raced: int  # unused by this function, used by another that runs the same code
    excused: int
    attacks: int
    admitted: tuple[str, ...]  # attacks that a deployed role would get away with


def prove(region: Region, outputs: Mapping[str, str], *, whole: bool) -> Proof:
    """Judges everything that was called until now against the policies as they are deployed now."""
    found = deployed.read(region, outputs)
    calls = [answered for answered in region.calls if answered.call.role in found.actors]
    asked, underivable = _asked(calls, found)
    for actor, request in services.requests(region, found):
        asked[actor].setdefault(request.key(), request)
    return judge(found.estate, asked, calls=len(calls), underivable=underivable, whole=whole)


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
    parts = {actor: _parts(of) for actor, of in statements.items()}
    unused = {actor: of - used[actor] for actor, of in parts.items()}
    left, raced, excused = excuses.sort_out(unused, used)
    tried = escalations.attempts(estate)
    return Proof(
        calls=calls,
        requests=sum(len(of) for of in asked.values()),
        refused=tuple(dict.fromkeys(refused)),
        whole=whole,
        grants=sum(len(of) for of in parts.values()),
        unused=(*left, *(f"the excuse for {one}: nobody has such a grant" for one in excuses.stale(parts))),
        raced=raced,
        excused=excused,
        attacks=len(tried),
        admitted=tuple(said for one in tried if (said := one.fails(estate))),
    )


def _parts(statements: Iterable[Statement]) -> frozenset[Part]:
    return frozenset(part for one in statements if one.effect == "Allow" for part in parts_of(one))


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
