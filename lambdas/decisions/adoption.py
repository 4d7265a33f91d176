"""Hand-tagged instances: given a free place of their run, and let go when the tag is taken off. We never end them.

    1. The INSTANCE item is entered first: it names one place, so that two handlers never give an instance two.
    2. Then the slot is bound. Where that is lost, the entry is ended, and the next look may try another place.

What a look finds half done (an entry whose slot was never bound) it finishes or ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lambdas.decisions.actions import Action, Bind, Claim, EndMember, EnterMember, Guarded, Measure, Notify, Tell
from lambdas.decisions.facts import Facts, Loss, Machine, occupant, places, want_of
from lambdas.decisions.losses import UNTAGGED, has_last_word
from spotproof.contract.history import HistoryKind
from spotproof.contract.items import NO_INSTANCE, Member, Slot
from spotproof.contract.limits import NOTICE_S, UNKNOWN_TO_EC2_GRACE_S
from spotproof.contract.metrics import Metric
from spotproof.contract.states import Cause, LaunchState


def decide(facts: Facts, machines: Sequence[Machine]) -> tuple[Action, ...]:
    """What follows from people tagging these instances for the run."""
    if facts.spec is None or facts.head is None:
        return tuple(_noted(facts, machine, "the run has no spec: flush and notification only") for machine in machines)
    fit = [machine for machine in machines if _fits(facts, machine)]
    adopted = list(_adopted(facts, facts.slots, fit))
    told = [_refused(facts, machine) for machine in machines if machine not in fit[: len(adopted)]]
    return (*adopted, *(action for pair in told for action in pair))


def by_look(facts: Facts, slots: dict[int, Slot]) -> tuple[Action, ...]:
    """The sweep's backup: hand-tagged instances that no event told of, and what was left half done. It tells nobody."""
    if facts.spec is None or facts.head is None or not facts.head.status.wants_nodes:
        return ()
    entered = {member.instance: member for member in facts.members if member.ended_at is None}
    placed = places(tuple(slots.values()))
    loose = [one for one in facts.machines if _is_loose(facts, one, placed)]
    mine = [entered[one.instance] for one in loose if one.instance in entered]
    halves = [action for member in mine if member.run == facts.run for action in _half(slots, member)]
    free = [one for one in loose if one.instance not in entered and _fits(facts, one)]
    return (*halves, *_adopted(facts, tuple(slots.values()), free))


def untagged(facts: Facts, slots: dict[int, Slot]) -> list[Loss]:
    """Nodes whose tags a person has taken off, found by a look: told to save and leave, as by the event.

    Of a young instance tags may be visible late. One that is done or has failed leaves nothing that could be saved.
    """
    return [
        Loss(
            instance=machine.instance,
            slot=slot.slot,
            cause=Cause.USER,
            at=facts.now,
            deadline_at=facts.now + NOTICE_S,
            action=UNTAGGED,
        )
        for slot in slots.values()
        for machine in (facts.machine(occupant(slot.successor_instance) or occupant(slot.holder_instance) or ""),)
        if machine is not None
        and machine.is_alive
        and slot.successor_instance != NO_INSTANCE  # it has been let go already
        and (machine.stack, machine.run) != (facts.stack, facts.run)
        and facts.now - machine.launched_at > UNKNOWN_TO_EC2_GRACE_S
        and not has_last_word(facts, slot, machine.instance)
    ]


def hand_tagged(machines: Sequence[Machine], stack: str, slots: Sequence[Slot]) -> tuple[str, ...]:
    """The instances whose entries `by_look` needs: opted in by people, alive, in no slot. Usually none."""
    placed = places(tuple(slots))
    return tuple(
        one.instance
        for one in machines
        if one.launch is None and one.stack == stack and one.is_alive and one.instance not in placed
    )


def _is_loose(facts: Facts, machine: Machine, placed: frozenset[str]) -> bool:
    by_hand = machine.launch is None and machine.stack == facts.stack and machine.run == facts.run
    return by_hand and machine.is_alive and machine.instance not in placed


def _fits(facts: Facts, machine: Machine) -> bool:
    """A node of another type could not hold the state, or would change the numbers."""
    types = () if facts.spec is None else facts.spec.pools.types
    return machine.run == facts.run and (not types or machine.instance_type in types)


def _adopted(facts: Facts, slots: Sequence[Slot], machines: Sequence[Machine]) -> Iterator[Action]:
    if facts.head is None or not facts.head.status.wants_nodes:
        return
    for machine, slot in zip(machines, _free(facts, slots), strict=False):
        if slot.successor_instance == NO_INSTANCE:
            yield _bound(facts, machine, slot, slot.successor_incarnation or slot.incarnation)
        else:
            claim = Claim(seen=slot, instance=NO_INSTANCE, cause=Cause.USER, deadline_at=facts.now)
            yield Guarded(first=claim, then=(_bound(facts, machine, slot, slot.incarnation + 1),))


def _free(facts: Facts, slots: Sequence[Slot]) -> list[Slot]:
    """Open claims that no launch is under way for, then places that nobody holds or claims."""
    listed = {want for launch in facts.launches if launch.state is not LaunchState.CLOSED for want in launch.wants}
    open_claims = [
        slot
        for slot in slots
        if slot.successor_instance == NO_INSTANCE and not slot.waits_for_notice and want_of(slot) not in listed
    ]
    empty = [slot for slot in slots if slot.successor_instance is None and occupant(slot.holder_instance) is None]
    return [*open_claims, *empty]


def _bound(facts: Facts, machine: Machine, slot: Slot, incarnation: int) -> Guarded:
    member = Member(
        instance=machine.instance,
        run=facts.run,
        slot=slot.slot,
        incarnation=incarnation,
        instance_type=machine.instance_type,
        zone=machine.zone,
        market=machine.market,
        launched_at=machine.launched_at,
    )
    told = Tell(
        run=facts.run,
        what=HistoryKind.ADOPTED,
        slot=slot.slot,
        incarnation=incarnation,
        instance=machine.instance,
        cause=Cause.USER,
        detail=f"{machine.instance_type} in {machine.zone}, tagged by hand",
    )
    return Guarded(
        first=EnterMember(member=member),
        then=(
            Guarded(
                first=_bind(facts.run, member),
                then=(told, Measure(metric=Metric.ADOPTED)),
                otherwise=(Guarded(first=EndMember(instance=machine.instance)),),
            ),
        ),
    )


def _bind(run: str, member: Member) -> Bind:
    return Bind(run=run, slot=member.slot, incarnation=member.incarnation, instance=member.instance, launch=None)


def _half(slots: dict[int, Slot], member: Member) -> tuple[Action, ...]:
    """An entry without its place: the place is still open, or it never will be this instance's."""
    slot = slots.get(member.slot)
    is_open = slot is not None and slot.successor_instance == NO_INSTANCE
    if slot is not None and slot.incarnation < member.incarnation:
        return ()  # it was entered after the slots were read: nothing is known of it yet
    if slot is not None and is_open and slot.successor_incarnation == member.incarnation:
        return (Guarded(first=_bind(member.run, member)),)
    if slot is not None and slot.incarnation > member.incarnation and slot.holder_incarnation != member.incarnation:
        return ()  # it had its place and was replaced: a person decides what becomes of it
    return (Guarded(first=EndMember(instance=member.instance)),)


def _refused(facts: Facts, machine: Machine) -> tuple[Action, ...]:
    if facts.spec is not None and not _fits(facts, machine):
        why = f"its type {machine.instance_type} is none of the run's ({', '.join(facts.spec.pools.types)})"
    elif facts.head is not None and not facts.head.status.wants_nodes:
        why = f"the run is {facts.head.status.value}"
    else:
        why = "the run has no free slot"
    text = (
        f"{machine.instance} was tagged for run {facts.run} and is not used: {why}. It is flushed and told of like "
        "every node that carries the tag, and never ended by spotproof. Take the tag off if you want it back."
    )
    return (
        _noted(facts, machine, why),
        Notify(
            subject=f"spotproof: {machine.instance} has no place in run {facts.run}",
            many=f"spotproof: {{count}} instances have no place in run {facts.run}",
            text=text,
            do="Take its tag off, or end it.",
            run=facts.run,
        ),
    )


def _noted(facts: Facts, machine: Machine, why: str) -> Tell:
    return Tell(
        run=facts.run, what=HistoryKind.ADOPTED, instance=machine.instance, cause=Cause.USER, detail=f"no place: {why}"
    )
