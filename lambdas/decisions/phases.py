"""The phases of a recovery that only its node knows, from what its beat tells: told and measured once each.

Nodes write no timeline. When one has made its first step, repair tells when it was ready, joined, restored and stepping
as entries of the run's timeline, and measures how long each took. HEAD says up to when that was done, so that a burst
costs one write: whoever moves that mark measures. Entries have the node's own times and are the same entry when told
twice; metrics are measured at most once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lambdas.decisions.actions import Action, Guarded, Measure, NoteMeasured, Tell
from lambdas.decisions.facts import Facts, Machine, pool_name
from spotproof.contract.history import HistoryKind
from spotproof.contract.items import Head, Node, Slot
from spotproof.contract.metrics import Metric
from spotproof.contract.orders import slots_of
from spotproof.contract.states import Market
from spotproof.contract.times import Moment, Times, times_of

SETTLES_S: Final = 30  # two heartbeats: beats of one burst are all there, whatever the order in which they came
ENTRIES: Final = (
    (Moment.PARKED, HistoryKind.PARKED),
    (Moment.JOINED, HistoryKind.SEALED),
    (Moment.RESTORED, HistoryKind.RESTORED),
    (Moment.FIRST_STEP, HistoryKind.FIRST_STEP),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Started:
    node: Node
    times: Times

    def seconds(self, begin: Moment, end: Moment) -> float:
        """From one moment to a later one."""
        return ((self.times.of(end) or 0) - (self.times.of(begin) or 0)) / 1000

    def at(self, moment: Moment) -> float:
        """A moment in Unix seconds."""
        return (self.times.of(moment) or 0) / 1000


def decide(facts: Facts, head: Head) -> tuple[Action, ...]:
    """What is new of starts since the last look that measured any; () when nothing is."""
    upto = facts.now - SETTLES_S if head.status.wants_nodes else facts.now
    started = [one for one in _started(facts.nodes) if head.measured_at < int(one.at(Moment.FIRST_STEP)) <= upto]
    if not started:
        return ()
    told = tuple(entry for one in started for entry in _told(facts, one))
    measured = tuple(measure for one in started for measure in _measured(facts, one))
    return (*told, Guarded(first=NoteMeasured(seen=head, upto=upto), then=measured))


def waste(facts: Facts, slot: Slot) -> tuple[Action, ...]:
    """The steps that have to be done again because the slot's holder went, as far as its last beat told them."""
    before = facts.node_of(slot.slot, slot.holder_incarnation, slot.holder_instance)
    if before is None or facts.sealed is None or before.step <= (facts.sealed.start_step or 0):
        return ()
    lost = before.step - (facts.sealed.start_step or 0)
    return (Measure(metric=Metric.WASTE_STEPS, value=lost, cause="" if slot.cause is None else slot.cause.value),)


def went_on_whole(facts: Facts, before: Node) -> bool:
    """Whether the membership after the leaver goes on from its last step, whatever it said of its flush."""
    start = None if facts.sealed is None else facts.sealed.start_step
    return start is not None and 0 < before.step <= start


def flush_seconds(facts: Facts, slot: Slot, before: Node) -> float:
    """From the order, or the claim where another order has replaced it, until the leaver's last step was durable."""
    pointer, head = facts.pointer, facts.head
    is_pointed = pointer is not None and pointer.step in (before.flush_step, before.step)
    durable_at = pointer.committed_at if pointer is not None and is_pointed else before.beat_at
    ordered_at = slot.claimed_at or facts.now
    if head is not None and head.order_at and head.order_leavers and slot.slot in slots_of(head.order_leavers):
        ordered_at = head.order_at
    return max(0, durable_at - ordered_at)


def _started(nodes: Sequence[Node]) -> list[_Started]:
    found = [_Started(node=node, times=times_of(node.times or "")) for node in nodes if node.times]
    return [one for one in found if one.times.is_whole]


def _told(facts: Facts, one: _Started) -> tuple[Tell, ...]:
    node = one.node
    return tuple(
        Tell(
            run=facts.run,
            what=what,
            slot=node.slot,
            incarnation=node.incarnation,
            instance=node.instance,
            at=one.at(moment),
        )
        for moment, what in ENTRIES
    )


def _measured(facts: Facts, one: _Started) -> tuple[Measure, ...]:
    """The phases of a replacement; a run's first nodes replace nobody."""
    if one.node.incarnation <= 1:
        return ()
    measures = [
        Measure(metric=Metric.RESTORE, value=one.seconds(Moment.JOINED, Moment.RESTORED)),
        Measure(metric=Metric.FIRST_STEP, value=one.seconds(Moment.RESTORED, Moment.FIRST_STEP)),
    ]
    stood_by = facts.head is not None and facts.head.standby > 0  # it may have, for hours: that is no recovery's time
    asked_at = None if stood_by else _asked_at(facts, one.node)
    if not stood_by:
        measures.append(Measure(metric=Metric.PARK, value=one.seconds(Moment.PARKED, Moment.JOINED)))
    if asked_at is not None:
        measures.append(Measure(metric=Metric.RECOVERY, value=max(0, one.at(Moment.FIRST_STEP) - asked_at)))
    machine = facts.machine(one.node.instance)
    if machine is not None:
        measures.append(Measure(metric=Metric.BOOT, value=max(0, one.at(Moment.PARKED) - machine.launched_at)))
        measures += _idle_dollars(facts, machine, until=one.at(Moment.FIRST_STEP))
    return tuple(measures)


def _asked_at(facts: Facts, node: Node) -> int | None:
    """When the first launch for this place was recorded."""
    want = f"{node.slot}:{node.incarnation}"
    return min((launch.made_at for launch in facts.launches if want in launch.wants), default=None)


def _idle_dollars(facts: Facts, machine: Machine, *, until: float) -> list[Measure]:
    """What the replacement cost before it trained; nothing where no price is known."""
    usd = price_of(facts, machine)
    idle_s = max(0.0, until - machine.launched_at)
    return [] if usd is None else [Measure(metric=Metric.WASTE_DOLLARS, value=usd * idle_s / 3600)]


def price_of(facts: Facts, machine: Machine) -> float | None:
    """Dollars an hour: EC2's newest Spot price of its pool, or the on-demand price that the run's spec names."""
    if machine.market is Market.SPOT:
        name = (machine.instance_type, machine.zone, machine.market)
        pool = next((one for one in facts.pools if (one.instance_type, one.zone, one.market) == name), None)
        return None if pool is None else pool.price_usd
    named = () if facts.spec is None else facts.spec.pools.on_demand_usd
    prices = dict(entry.partition("=")[::2] for entry in named)
    return float(prices[machine.instance_type]) if machine.instance_type in prices else None


def bound_detail(facts: Facts, pool: str) -> str:
    """A BOUND entry's text: the pool, and its price of this moment where it is known, for a run's bill later."""
    found = next((one for one in facts.pools if pool_name(one.instance_type, one.zone, one.market) == pool), None)
    return pool if found is None or found.price_usd is None else f"{pool}#{found.price_usd:g}"
