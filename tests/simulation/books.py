"""The books of a history: what must hold once quiet has come, whatever the weather was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spotproof.contract.items import NO_INSTANCE, Head, Slot
from spotproof.contract.states import Cause, RunStatus
from tests.fakes.control import SETTINGS
from tests.simulation import signs
from tests.simulation.account import is_by_hand

if TYPE_CHECKING:
    from tests.simulation.history import History

RUN: Final = "sim"
RECOVERIES: Final = 3  # the small budget
MOVES: Final = frozenset({Cause.FAILBACK, Cause.MAINTENANCE, Cause.CAPACITY})
MOVE_TAKES_S: Final = 600


def problems(history: History) -> list[str]:
    """Everything that is not as it was promised."""
    head = history.world.head(RUN)
    return [
        *_filled(history, head),
        *_count(history),
        *_ended(history, head),
        *_budgets(history),
    ]


def waiting(history: History) -> list[str]:
    """In clean weather no claim waits for the sweep: whoever made it launched, or the one who had the lease."""
    head = history.world.stores.heads.read(RUN)
    if head is None or not head.status.wants_nodes:
        return []
    return [
        f"slot {slot.slot} was left open although nothing failed"
        for slot in history.world.slots(RUN)
        if slot.successor_instance == NO_INSTANCE and slot.cause is not Cause.SUBMIT and slot.claimed_at
    ]


def _filled(history: History, head: Head) -> list[str]:
    """Every slot has its node and no node is in no slot; or the run says why not."""
    ours = [one for one in history.ec2.instances.values() if not is_by_hand(one)]
    alive = {one.instance for one in ours if one.state not in ("terminated", "shutting-down")}
    if head.status is not RunStatus.ACTIVE:
        if not head.cause and head.status.is_live:
            return [f"run is {head.status} without a cause"]
        if head.cause is Cause.BUDGET and not _is_spent(history):
            return [f"run is {head.status} for a budget that is not spent: {head.reason}"]
        keeps = head.status is RunStatus.BLOCKED
        return [f"run is {head.status}, still there: {sorted(alive)}"] if alive and not keeps else []
    everywhere = history.world.slots(RUN)
    beside = _beside(history, everywhere)
    slots = tuple(slot for slot in everywhere if slot not in beside)
    holders = {str(slot.holder_instance) for slot in everywhere}
    found: list[str] = []
    moving = [slot for slot in slots if _moves(history, slot)]
    if any(slot.successor_instance for slot in slots if slot not in moving):
        found.append(f"not filled after quiet time: {slots}")
    ahead = {str(slot.successor_instance) for slot in (*moving, *beside)}
    working = {life.instance for life in history.nodes.writers() if life.notices.leaving is None}
    idle = {str(slot.holder_instance) for slot in slots if slot not in moving} - working
    if idle:
        found.append(f"these hold slots and do not work: {sorted(idle)}")
    if alive - holders - ahead:
        found.append(f"there and in no slot: {sorted(alive - holders - ahead)}")
    found += signs.problems(history)
    if head.reach:
        found.append(f"{head.reach} nodes are said to be within reach, and all are there")
    return [*found, *_stand_by(history, beside), *_together(history, holders | ahead)]


def _beside(history: History, slots: tuple[Slot, ...]) -> list[Slot]:
    """The places that the newest membership does without."""
    newest = history.world.stores.memberships.newest(RUN)
    if not history.weather.standby or newest is None:
        return []
    sealed = history.world.stores.memberships.generation(RUN, newest.generation)
    numbers = {int(member.partition(":")[0]) for member in (sealed.members if sealed else ())}
    return [slot for slot in slots if slot.slot not in numbers]


def _stand_by(history: History, beside: list[Slot]) -> list[str]:
    """Each of them has one node, which lives and waits."""
    found = []
    for slot in beside:
        there = {str(one) for one in (slot.holder_instance, slot.successor_instance)} - {"None", NO_INSTANCE}
        lives = [history.nodes.lives.get(one) for one in there]
        if len(lives) != 1 or any(life is None or life.frozen or life.generation for life in lives):
            found.append(f"nobody, or too many, stand by in {slot}")
    return found


def _is_spent(history: History) -> bool:
    """Whether there is a budget that can be spent. A launch that was paid for and not made costs as well."""
    limit = history.weather.launch_limit or SETTINGS.launches_per_hour
    paid = history.watch.attempts + history.watch.launches_lost + _uncounted(history)
    return history.weather.small_budget or paid >= limit


def _moves(history: History, slot: Slot) -> bool:
    """Whether its node is well and is being moved, or somebody waits beside it: that may be so at any time."""
    is_under_way = slot.cause in MOVES and history.now() - (slot.claimed_at or 0) < MOVE_TAKES_S
    return bool(slot.waits_for_notice) or is_under_way


def _together(history: History, holders: set[str]) -> list[str]:
    zones = {history.ec2.instances[one].zone for one in holders if one in history.ec2.instances}
    if not history.weather.gang or history.weather.by_hand or len(zones) <= 1:
        return []
    return [f"the gang is spread over {sorted(zones)}"]


def _count(history: History) -> list[str]:
    """One launch for each slot and each loss, and what was declared."""
    launched = [one for one in history.ec2.instances.values() if not is_by_hand(one)]
    extras = history.ec2.extras + history.watch.planned
    extras += history.weather.standby + history.watch.offered_anew
    allowed = history.weather.slots + len(history.lost) + extras
    if len(launched) <= allowed:
        return []
    what = f"{history.weather.slots} slots, {len(history.lost)} losses, {extras} declared extras"
    return [f"{len(launched)} launched for {what}"]


def _ended(history: History, head: Head) -> list[str]:
    """Nothing that was well has been terminated."""
    if head.status is not RunStatus.ACTIVE:
        return []
    may_end = history.lost | history.watch.let_go
    return [
        f"{instance} was well and has been terminated"
        for instance in history.ec2.terminated
        if instance not in may_end and history.world.stores.members.read(instance) is not None
    ]


def _budgets(history: History) -> list[str]:
    """No more launches in an hour and recoveries without a commit than the budgets allow.

    What a handler that died, or heard no answer, had not counted yet is allowed beside them; and one recovery
    whose launch was answered just when somebody committed, which may count before the commit or after it.
    """
    weather, watch, found = history.weather, history.watch, list[str]()
    if weather.small_budget and watch.most_recoveries > RECOVERIES + 1 + _uncounted(history):
        found.append(f"{watch.most_recoveries} recoveries without a commit, the budget is {RECOVERIES}")
    if weather.launch_limit and watch.limited > weather.launch_limit:
        found.append(f"{watch.limited} launches in an hour, the limit is {weather.launch_limit}")
    return found


def _uncounted(history: History) -> int:
    return history.crashes + sum(n for name, n in history.faults.items() if name.startswith("answer lost"))
