"""A made-up run that has everything a page can show: a notice, a silent death, a frozen node, a damaged checkpoint."""

from __future__ import annotations

import dataclasses
import math

from spotproof.contract.history import HistoryKind as K
from spotproof.contract.items import History, Member
from spotproof.contract.states import Cause
from spotproof.report.model import Mark, MarkKind, Point, Segment, Story, Verdict
from spotproof.report.story import Sources, tell

RUN = "mini-gpt"
BEGIN = 1_800_000_000
ONE, TWO, THREE, FOUR = (f"i-0{letter * 16}" for letter in "abcd")


def entry(at: float, what: K, **rest: object) -> History:
    base = History(run=RUN, at_ms=int((BEGIN + at) * 1000), what=what.value, slot=0)
    return dataclasses.replace(base, **rest)  # type: ignore[arg-type]


def boot(at: float, instance: str, incarnation: int, *, parked: float, sealed: float, step: int) -> list[History]:
    who = {"instance": instance, "incarnation": incarnation}
    return [
        entry(at, K.BOUND, **who),
        entry(at + 2.2, K.BOOTED, **who),
        entry(parked, K.PARKED, **who),
        entry(sealed, K.SEALED, step=step, **who),
        entry(sealed + 1.1, K.RESTORED, step=step, **who),
        entry(sealed + 1.4, K.FIRST_STEP, step=step + 1, **who),
    ]


def history() -> list[History]:
    return [
        entry(0, K.SUBMITTED, detail="submitted"),
        entry(0.3, K.CLAIMED, incarnation=1, instance="none", cause=Cause.SUBMIT),
        *boot(1.5, ONE, 1, parked=8, sealed=8.4, step=0),
        entry(26, K.NOTICE, instance=ONE, incarnation=1, cause=Cause.INTERRUPTION, detail="EC2 takes it in 25 s"),
        entry(26.4, K.CLAIMED, incarnation=2, instance=ONE, cause=Cause.INTERRUPTION),
        entry(27.2, K.LAUNCH_ANSWERED, slot=None, detail="two pools had no capacity, the third gave a node"),
        entry(27.9, K.FLUSHED, instance=ONE, incarnation=1, step=128),
        *boot(28.1, TWO, 2, parked=34, sealed=34.5, step=128),
        entry(62, K.LOST, instance=TWO, incarnation=2, cause=Cause.SILENCE, detail="no heartbeat for 6 s"),
        entry(62.2, K.CLAIMED, incarnation=3, instance=TWO, cause=Cause.SILENCE),
        *boot(63.4, THREE, 3, parked=69, sealed=72.2, step=260),
        entry(92, K.LOST, instance=THREE, incarnation=3, cause=Cause.SILENCE, detail="no heartbeat for 6 s"),
        entry(92.3, K.CLAIMED, incarnation=4, instance=THREE, cause=Cause.SILENCE),
        *boot(93.6, FOUR, 4, parked=99.4, sealed=102.5, step=360),
        entry(98, K.QUARANTINED, instance=FOUR, incarnation=4, step=380, detail="a chunk of step 380 is damaged"),
        entry(108, K.SUPERSEDED, instance=THREE, incarnation=3),
        *[entry(8.4 + step * 0.137, K.COMMITTED, step=step) for step in range(20, 128, 20)],
        entry(27.8, K.COMMITTED, step=128),
        *[entry(36 + (step - 128) * 0.15, K.COMMITTED, step=step) for step in range(140, 270, 20)],
        *[entry(74 + (step - 260) * 0.11, K.COMMITTED, step=step) for step in range(280, 381, 20)],
        *[entry(104 + (step - 360) * 0.12, K.COMMITTED, step=step) for step in range(380, 481, 20)],
        entry(120, K.STATUS, detail="done"),
    ]


def loss_at(step: int) -> float:
    return 1.9 + 3.0 * math.exp(-step / 26) + 0.05 * math.sin(step * 1.7) * math.cos(step * 0.31)


def points(first: int, last: int, *, begin: float, seconds: float) -> tuple[Point, ...]:
    return tuple(
        Point(step=step, loss=loss_at(step), samples=(step, step + 1), at=BEGIN + begin + (step - first) * seconds)
        for step in range(first, last + 1)
    )


def segments() -> tuple[Segment, ...]:
    return (
        Segment(slot=0, incarnation=1, points=points(1, 128, begin=9.8, seconds=0.14)),
        Segment(slot=0, incarnation=2, points=points(129, 271, begin=35.9, seconds=0.14)),
        Segment(slot=0, incarnation=3, points=points(261, 384, begin=73.6, seconds=0.1)),
        Segment(slot=0, incarnation=4, points=points(361, 480, begin=103.9, seconds=0.13)),
    )


def members() -> tuple[Member, ...]:
    pools = zip((ONE, TWO, THREE, FOUR), ("us-east-1a", "us-east-1c", "us-east-1b", "us-east-1c"), strict=True)
    return tuple(
        Member(instance=name, run=RUN, slot=0, incarnation=number, instance_type="g5.xlarge", zone=zone)
        for number, (name, zone) in enumerate(pools, start=1)
    )


def verdicts() -> tuple[Verdict, ...]:
    return (
        Verdict(promise="With a notice no step is lost", kept=True, measured="0 steps, from step 128 to step 129"),
        Verdict(promise="Without a notice at most one interval", kept=True, measured="11 of 20 steps"),
        Verdict(promise="Bit-equal to the uninterrupted run", kept=True, measured="480 of 480 steps"),
        Verdict(promise="One replacement per loss", kept=True, measured="3 losses, 3 replacements"),
        Verdict(promise="Nothing is left running", kept=True, measured="0 instances after the end"),
    )


def story() -> Story:
    sources = Sources(
        segments=segments(),
        reference=points(1, 480, begin=0, seconds=0.1),
        members=members(),
        marks=(
            (ONE, Mark(kind=MarkKind.KILLED, at=BEGIN + 51, says="at its deadline")),
            (TWO, Mark(kind=MarkKind.KILLED, at=BEGIN + 56, says="without a word")),
            (THREE, Mark(kind=MarkKind.FROZEN, at=BEGIN + 86)),
            (THREE, Mark(kind=MarkKind.WOKEN, at=BEGIN + 107.4)),
            (FOUR, Mark(kind=MarkKind.DONE, at=BEGIN + 120)),
        ),
    )
    told = tell(history(), sources, run=RUN, title="A rehearsal of three interruptions", lead="Everything is measured.")
    return dataclasses.replace(told, verdicts=verdicts())
