"""A run's status for people: a few lines, a table of its nodes, and the stages of its newest recoveries drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from spotproof.report.scales import length

ROWS: Final = 20  # of a large run only what is not simply training is listed
BAR: Final = 40  # letters of the longest recovery
SIGNS: Final = {  # one letter for each stage of a recovery, in the order in which they follow each other
    "notice": "n",
    "request": "q",
    "boot": "b",
    "park": "p",
    "restore": "r",
    "first step": "s",
}


def lines_of(document: Mapping[str, Any], *, now: int) -> list[str]:
    """What `status` prints."""
    lines = [
        _status(document),
        _committed(document["committed"], now),
        *_nodes(document["nodes"], now),
        *_waiting(document),
        *_pools(document["pools_cooling"]),
        *_recoveries(document["recoveries"], document["recoveries_told"]),
        *(f"next: {step}" for step in document["next"]),
    ]
    return ["".join(letter if letter.isprintable() else "?" for letter in line) for line in lines]


def _status(document: Mapping[str, Any]) -> str:
    head = document["head"] or {}
    because = f" ({head['cause']}: {head.get('reason', '')})" if head.get("cause") else ""
    spent = f", about ${head['spent_usd']:.2f} spent" if head.get("spent_usd") else ""
    return f"run {document['run']}: {document['status'] or 'local'}{because}{spent}"


def _committed(committed: Mapping[str, Any] | None, now: int) -> str:
    if committed is None:
        return "nothing is committed yet"
    age = length(max(0, now - committed["committed_at"]))
    return f"step {committed['step']} is committed (generation {committed['generation']}, {age} ago)"


def _nodes(nodes: Sequence[Mapping[str, Any]], now: int) -> list[str]:
    shown = list(nodes)
    before: list[str] = []
    if len(shown) > ROWS:
        phases = Counter(node["phase"] for node in shown)
        before = [f"{len(shown)} nodes: " + ", ".join(f"{count} {phase}" for phase, count in phases.most_common())]
        odd = [node for node in shown if node["phase"] != phases.most_common(1)[0][0]]
        shown = odd[:ROWS]
    cells: list[tuple[str, ...]] = [("slot", "node", "instance", "phase", "step", "beat", "")]
    cells += [_cells(node, now) for node in shown]
    return [*before, *(_aligned(cells) if shown else [])]


def _cells(node: Mapping[str, Any], now: int) -> tuple[str, ...]:
    flush = f"flush {node['flush']}" if "flush" in node else ""
    started = ", ".join(f"{name} {length(seconds)}" for name, seconds in node["phases"].items())
    beat = f"{now - node['beat_at']} s ago" if node.get("beat_at") else "never"
    return (
        str(node["slot"]),
        str(node["incarnation"]),
        node["instance"],
        node["phase"],
        str(node.get("step", 0)),
        beat,
        ", ".join(word for word in (flush, started) if word),
    )


def _aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
    ]


def _waiting(document: Mapping[str, Any]) -> list[str]:
    waiting = [str(one) for one in document["waiting"]]
    if not waiting:
        return []
    more = f" and {len(waiting) - ROWS} more" if len(waiting) > ROWS else ""
    return [f"waiting for a successor: slots {', '.join(waiting[:ROWS])}{more}"]


def _pools(pools: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        f"not asked: {pool['type']} in {pool['zone']} ({pool['market']}) for {length(pool['seconds_left'])} more: "
        f"{pool['because'] or 'it refused'}"
        for pool in pools[:ROWS]
    ]


def _recoveries(recoveries: Sequence[Mapping[str, Any]], told: int) -> list[str]:
    if not recoveries:
        return []
    longest = max(sum(_following(one).values()) for one in recoveries) or 1.0
    title = f"the newest {len(recoveries)} of {told} recoveries" if told > len(recoveries) else "recoveries"
    signs = ", ".join(f"{sign} {stage}" for stage, sign in SIGNS.items())
    return [f"{title} ({signs}):", *(_drawn(one, longest) for one in recoveries)]


def _drawn(one: Mapping[str, Any], longest: float) -> str:
    stages = _following(one)
    bar = "".join(SIGNS[stage] * max(1, round(seconds / longest * BAR)) for stage, seconds in stages.items())
    standstill = "still under way" if one["standstill_s"] is None else f"{length(one['standstill_s'])} standstill"
    lost = "" if one["steps_lost"] is None else f", {one['steps_lost']} steps lost"
    return f"  slot {one['slot']} node {one['incarnation']} {one['cause']:<12} |{bar:<{BAR + 6}}| {standstill}{lost}"


def _following(one: Mapping[str, Any]) -> dict[str, float]:
    """The stages that follow each other, in order; the flush runs beside them."""
    return {stage: one["stages"][stage] for stage in SIGNS if stage in one["stages"]}
