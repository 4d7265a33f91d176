"""Signals that are no loss: for each kind that a batch has for a run, what is read and what decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from lambdas.decisions import adoption, byhand, comebacks, health, rebalance
from lambdas.decisions.actions import Action, Measure
from lambdas.decisions.facts import Facts
from lambdas.decisions.sorting import Work
from lambdas.facts import Reader
from spotproof.contract.metrics import Metric

Read = Callable[..., Facts]
Decide = Callable[[Facts], tuple[Action, ...]]


def of(work: Work, reader: Reader) -> Iterator[tuple[Read, Decide]]:
    """One decision for each kind of signal, in the order of their hurry."""
    if work.by_hand:
        yield reader.of_head, lambda facts: byhand.decide(facts, work.by_hand)
    if work.advised:
        numbers = [one.member.slot for one in work.advised]
        yield partial(_of, reader, numbers), lambda facts: rebalance.decide(facts, work.advised)
    if work.dated:
        numbers = [one.member.slot for one in work.dated]
        yield partial(_of, reader, numbers), lambda facts: health.decide(facts, work.dated)
    if work.opted_in:
        machines = list({one.machine.instance: one.machine for one in work.opted_in}.values())
        yield reader.of_adoption, lambda facts: adoption.decide(facts, machines)
    if work.booted:
        numbers = [one.member.slot for one in work.booted]
        yield partial(_of, reader, numbers, spec=False), lambda facts: comebacks.decide(facts, work.booted)
    if work.answered:
        yield partial(_nothing, reader), partial(_recorded, work)


def _of(reader: Reader, numbers: list[int], run: str, *, now: int, spec: bool = True) -> Facts:
    return reader.of_slots(run, numbers, now=now, spec=spec)


def _nothing(reader: Reader, run: str, *, now: int) -> Facts:
    """A record needs no facts."""
    return Facts(run=run, stack=reader.stack, region=reader.region, now=now)


def _recorded(work: Work, facts: Facts) -> tuple[Action, ...]:
    del facts
    told = [comebacks.answered(work.run, one) for one in work.answered]
    measured = [Measure(metric=Metric.COMMANDS_ENDED, cause=one.message.status) for one in work.answered]
    return (*told, *measured)
