"""What early signs promise: moves of nodes that are well, prewarmed nodes, people's tags, ends of capacity blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spotproof.contract import tags
from spotproof.contract.items import NO_INSTANCE, Slot
from spotproof.contract.limits import LATE_FLUSH_S, PREWARM_KEEP_S
from spotproof.contract.runspec import Signals
from spotproof.contract.states import Cause, NodePhase
from tests.simulation.weather import Weather

if TYPE_CHECKING:
    from tests.simulation.history import History

RUN: Final = "sim"
KEEP_S: Final = 400.0
LOOKS_S: Final = 300  # a few looks of the sweep, some of them by handlers that die
assert KEEP_S < PREWARM_KEEP_S  # or no history would see the end of a prewarmed node


def settings(weather: Weather) -> Signals:
    """The run's own settings for early signs."""
    storm_after = 1 if _is_easily_a_storm(weather) else Signals().storm_after
    return Signals(prewarm=weather.prewarm, prewarm_keep_s=KEEP_S, move_lead_s=300, storm_after=storm_after)


def _is_easily_a_storm(weather: Weather) -> bool:
    return weather.seed % 4 == 0


def may_be_a_storm(weather: Weather) -> bool:
    """Whether there is advice for more nodes than may be prewarmed, and it arrives."""
    advised = weather.prewarm and weather.rebalances > 2 and weather.slots > 2 and not weather.lost_events
    return advised and not weather.outage_s and _is_easily_a_storm(weather)


def to_come(history: History) -> bool:
    """Whether a date, or the end of a prewarmed node, is still to come: then quiet is not over."""
    slots = history.world.slots(RUN)
    return any(slot.cause is Cause.REBALANCE or (slot.move_at or 0) > history.now() for slot in slots)


def problems(history: History) -> list[str]:
    """What is not as it was promised of an active run."""
    found = [text for slot in history.world.slots(RUN) for text in _of_slot(history, slot)]
    limit, prewarmed = settings(history.weather).storm_after, history.watch.prewarmed
    # One that was counted in a window may be claimed in the next one.
    pairs = (prewarmed[window] + prewarmed.get(window + 1, 0) for window in prewarmed)
    return [*found, *(f"{many} prewarmed in a storm, the limit is {limit}" for many in pairs if many > 2 * limit)]


def _of_slot(history: History, slot: Slot) -> list[str]:
    now, holder = history.now(), history.ec2.instances.get(str(slot.holder_instance))
    found = []
    if slot.waits_for_notice and slot.cause is Cause.REBALANCE and now - (slot.claimed_at or 0) > KEEP_S + LOOKS_S:
        found.append(f"slot {slot.slot}: the node that was prewarmed for it is still there")
    is_planned = slot.move_at is not None and slot.move_instance == slot.holder_instance
    if is_planned and slot.successor_instance is None and (slot.move_at or 0) + LOOKS_S < now:
        found.append(f"slot {slot.slot}: its move was due at {slot.move_at} and has not begun")
    if holder is not None and slot.successor_instance is None and holder.tags.get(tags.RUN) != RUN:
        found.append(f"slot {slot.slot} is held by {slot.holder_instance}, whose tag has been taken off")
    return found


def told_early(history: History, instance: str) -> str:
    """Why a node that is well should not have been told to leave yet: its successor is not ready."""
    slot = next((one for one in history.world.slots(RUN) if one.holder_instance == instance), None)
    if slot is None or slot.successor_instance in (None, NO_INSTANCE):
        return ""
    successor = str(slot.successor_instance)
    life, machine = history.nodes.lives.get(successor), history.ec2.instances[successor]
    is_late = (slot.move_before or history.now()) - history.now() <= LATE_FLUSH_S
    if is_late or successor in history.lost or not machine.is_alive or slot.successor_incarnation != 2:
        return ""  # one before it may have been ready
    if life is not None and (life.generation or life.phase is NodePhase.PARKED):
        return ""
    return f"{instance} was told to leave before its successor was ready"


def is_mild(weather: Weather) -> bool:
    """Whether nothing keeps an event from being acted on at once."""
    return not any(_troubles(weather))


def _troubles(weather: Weather) -> tuple[float, ...]:
    return (
        weather.lost_events,
        weather.kills,
        weather.stalls,
        weather.throttles,
        weather.lost_answers,
        weather.outage_s,
        weather.sqs_refuses,
        weather.pauses,
        weather.small_budget,
        weather.launch_limit,
        weather.refused_pools,
        weather.dry_phases,
        weather.beats_out_s,
        weather.failback_s,
        weather.stop,
    )


def unheard(history: History, instance: str) -> str:
    """Why the end of a capacity block should have been heard of: its node still works, though nothing went wrong."""
    life = history.nodes.life(instance)
    is_held = any(slot.holder_instance == instance for slot in history.world.slots(RUN))
    works = is_held and not life.frozen and life in history.nodes.writers()
    if not works or history.crashes or not is_mild(history.weather):
        return ""
    return "" if life.notices.leaving is not None else f"the block of {instance} ended and nobody told it"
