"""What the sweep's look at one run repairs: everything that an event would have told, had it come.

Reads the whole run once. Open claims and unfinished launches are the launcher's, which looks right after this.
"""

from __future__ import annotations

from lambdas.decisions import (
    adoption,
    aftermath,
    budgets,
    elastic,
    ending,
    failback,
    gangs,
    losses,
    marketlook,
    moves,
    parting,
    phases,
    reminding,
    silence,
    spares,
    standby,
)
from lambdas.decisions.actions import (
    Action,
    Claim,
    ComeBack,
    Commit,
    CountFault,
    Forget,
    Guarded,
    Measure,
    MoveRun,
    Notify,
    Promote,
    Release,
    Reschedule,
    Rest,
    Tell,
    Terminate,
    Watch,
)
from lambdas.decisions.facts import FLUSHES_NO_MORE, Facts, Loss, Machine, occupant
from lambdas.decisions.losses import claim_of, lift_of, node_in, release_of
from lambdas.decisions.promotion import promoted, promotions
from spotproof.contract import limits
from spotproof.contract.exits import ExitCode
from spotproof.contract.history import HistoryKind
from spotproof.contract.items import NO_INSTANCE, Head, Member, Node, Slot
from spotproof.contract.metrics import Metric
from spotproof.contract.states import Cause, NodePhase, RunStatus

COMMIT_PATIENCE_S = 120  # a complete checkpoint that nobody committed for this long has lost its agents


def decide(facts: Facts) -> tuple[Action, ...]:
    """Everything that is due for the run now."""
    if facts.head is None:
        return (Forget(run=facts.run),)
    raised = promotions(facts)
    slots = promoted(facts, raised)
    joined = (*(step for slot in raised for step in _promotion(facts, slot)), *standby.displaced(facts, slots))
    known = (*_commits(facts, facts.head), *joined, *phases.decide(facts, facts.head), *silence.noted(facts))
    settled = _finished(facts, facts.head, slots) if facts.head.status in _CAN_FINISH else ()
    if settled:
        return (*known, *settled)
    if not facts.head.status.wants_nodes:
        return (*known, *parting.orders(facts, slots.values()), *ending.decide(facts, facts.head, slots))
    spent = () if facts.spec is None else budgets.over(facts, facts.head, facts.spec)
    if spent:
        return (*known, *spent)
    let_go = adoption.untagged(facts, slots)
    if let_go:
        return (*known, *losses.decide(facts, let_go))  # its order first; the rest at the next look
    adopted = adoption.by_look(facts, slots)  # before empty places are claimed for a launch
    lost = _losses(facts, slots)
    ordered = reminding.orders(facts, slots) or moves.decide(facts, _unreleased(slots, lost))  # one order in a look
    mended = (*adopted, *_failures(facts, facts.head, slots), *lost, *ordered)
    planned = _planned(facts, facts.head, slots, is_quiet=not mended)
    said = elastic.decide(facts, facts.head, slots)
    return (*known, *mended, *planned, *said, *ending.orphans(facts, slots))


def _unreleased(slots: dict[int, Slot], lost: tuple[Action, ...]) -> dict[int, Slot]:
    """The slots but those whose holder is lost beside its successor: an order would mean that one, which joins."""
    gone = {one.first.seen.slot for one in lost if isinstance(one, Guarded) and isinstance(one.first, Release)}
    return {number: slot for number, slot in slots.items() if number not in gone}


def is_missed(facts: Facts) -> tuple[Action, ...]:
    """The run wants nodes and stands in no sweep's index: a look enters it again."""
    wanted = facts.head is not None and facts.head.status in _WATCHED
    return (ComeBack(run=facts.run, after_s=0),) if wanted and facts.live is None else ()


def next_look(facts: Facts) -> tuple[Action, ...]:
    """When the sweep looks again: each minute while the run wants nodes, since silence must be seen within 120 s.

    A little earlier than the period, because the next sweep must not miss it by a second. Whatever else wants nothing
    for now rests; an entry that was lost is entered again.
    """
    if facts.head is None or not facts.head.status.is_live:
        return ()
    if not _is_watched(facts, facts.head):
        return () if facts.live is None or facts.live.rests else (Rest(seen=facts.live),)
    silence_s = limits.SILENCE_S if facts.spec is None else facts.spec.liveness.silence_s
    watch_s = min(limits.SWEEP_PERIOD_S, silence_s)
    due_at = int(facts.now + watch_s - watch_s / 4)
    if facts.live is None or facts.live.rests:
        return (Watch(run=facts.run, due_at=due_at),)
    return (Reschedule(seen=facts.live, due_at=due_at), *silence.look_again(facts))


def _planned(facts: Facts, head: Head, slots: dict[int, Slot], *, is_quiet: bool) -> tuple[Action, ...]:
    """What is done about capacity without being asked; moves begin only when nothing else has to be mended now."""
    if facts.spec is None:
        return ()
    begun = (*gangs.move(facts, slots), *gangs.strays(facts, slots), *failback.due(facts, slots)) if is_quiet else ()
    return (*begun, *budgets.estimate(facts, head, facts.spec), *marketlook.due(facts))


_CAN_FINISH = frozenset({RunStatus.ACTIVE, RunStatus.BLOCKED})  # a blocked run keeps what nodes it has
_WATCHED = frozenset({RunStatus.ACTIVE, RunStatus.STOPPING})


def _is_watched(facts: Facts, head: Head) -> bool:
    """Whether each minute counts: the run wants nodes, or it is paused and its nodes, which cost, have to be ended."""
    still_ends = head.status is RunStatus.PAUSED and any(machine.is_alive for machine in facts.machines)
    return head.status in _WATCHED or still_ends or parting.is_near(facts)


def _commits(facts: Facts, head: Head) -> tuple[Action, ...]:
    """The newest commit for the budgets, and checkpoints that are complete and that nobody is left to commit."""
    actions = list(budgets.commit_noted(facts, head))
    newest = 0 if facts.sealed is None else facts.sealed.generation
    actions += [
        Commit(run=facts.run, generation=one.generation, step=one.step, world=one.world)
        for one in facts.checkpoints[:1]
        if one.generation == newest
        and one.committed_at is None
        and len(one.done) == one.world
        and facts.now - one.begun_at > COMMIT_PATIENCE_S
    ]
    return tuple(actions)


def _promotion(facts: Facts, slot: Slot) -> tuple[Action, ...]:
    """The successor has joined: it is the holder now, and the one before it has left with its flush done or not."""
    sealed = facts.sealed
    promoted_to = Tell(
        run=facts.run,
        what=HistoryKind.PROMOTED,
        slot=slot.slot,
        incarnation=slot.successor_incarnation,
        instance=slot.successor_instance,
        step=None if sealed is None else sealed.start_step,
        detail="" if sealed is None else f"generation {sealed.generation}",
        at=None if sealed is None else sealed.sealed_at,
    )
    return (
        Guarded(
            first=Promote(slot=slot),
            then=(promoted_to, *aftermath.of_holder(facts, slot)),
        ),
    )


def _finished(facts: Facts, head: Head, slots: dict[int, Slot]) -> tuple[Action, ...]:
    """Every holder that works has said `done`: so is the run."""
    nodes = [_holder_node(facts, slot) for slot in spares.members_of(facts, slots)]
    if not nodes or not all(node is not None and node.phase is NodePhase.DONE for node in nodes):
        return ()
    step = max((node.step for node in nodes if node is not None), default=0)
    reason = f"every slot finished at step {step}"
    move = MoveRun(seen=head, to=RunStatus.DONE, cause=Cause.USER, reason=reason)
    told = Tell(run=facts.run, what=HistoryKind.STATUS, step=step, detail=f"done: {reason}")
    return (Guarded(first=move, then=(told,)),)


def _failures(facts: Facts, head: Head, slots: dict[int, Slot]) -> tuple[Action, ...]:
    """Nodes that gave up by themselves. A burst counts once.

    A member says `failed` when its agent has counted the trainer's failures without progress: that ends the run
    (MN-05). A node that failed before it joined is a fault of the node: it is replaced, and the third ends the run too.
    """
    failed = {slot.slot: node for slot in slots.values() if (node := _failed_node(facts, slot)) is not None}
    if not failed:
        return ()
    number, node = max(failed.items(), key=lambda one: one[1].generation)  # a member's word ends the run
    budget = limits.NODE_FAULTS if facts.spec is None else facts.spec.budgets.node_faults
    fresh = facts.pointer is not None and facts.pointer.step > head.committed_step
    faults = (frozenset() if fresh else head.node_faults) | {f"{number}:{slots[number].incarnation}"}
    if node.generation > 0 or node.exit_code == ExitCode.BAD_CONFIGURATION:
        return _failed(facts, head, slots[number], code=node.exit_code)
    if len(faults) >= budget:
        return _failed(facts, head, slots[number], code=node.exit_code, cause=Cause.NODE_FAULT)
    count = (CountFault(run=facts.run, node=f"{number}:{slots[number].incarnation}"),)
    return tuple(_replaced(facts, slots[one], Cause.NODE_FAULT, count if one == number else ()) for one in failed)


def _failed(
    facts: Facts, head: Head, slot: Slot, *, code: int | None, cause: Cause = Cause.TRAINER_ERROR
) -> tuple[Action, ...]:
    reason = f"slot {slot.slot} gave up with exit code {code}: read the log of its trainer and agent"
    move = MoveRun(seen=head, to=RunStatus.FAILED, cause=cause, reason=reason)
    told = (
        Tell(run=facts.run, what=HistoryKind.STATUS, cause=cause, detail=f"failed: {reason}"),
        Measure(metric=Metric.RUNS_FAILED, cause=cause.value),
        Notify(
            subject=f"spotproof: run {facts.run} has failed",
            text=f"Run {facts.run} has failed ({cause}): slot {slot.slot} gave up with exit code {code}.",
            do="Read the log of its trainer and agent; its checkpoints are kept.",
            run=facts.run,
        ),
    )
    return (Guarded(first=move, then=told),)


def _losses(facts: Facts, slots: dict[int, Slot]) -> tuple[Action, ...]:
    """Empty places, nodes that EC2 calls gone, nodes that are silent, nodes that never joined."""
    quiet = silence.silent(facts, tuple(slots.values()))
    stack = facts.silence
    broken = bool(quiet) and (silence.is_mass(stack) or silence.is_settling(stack, now=facts.now))
    actions: list[Action] = [Measure(metric=Metric.SILENT_NODES, value=len(quiet))] if quiet else []
    actions += silence.alarm(facts) if broken else ()
    for slot in slots.values():
        actions += _lifted(facts, slot)
        actions += _loss(facts, slot, quiet=frozenset() if broken else quiet)
        actions += _left(facts, slot, quiet=frozenset() if broken else quiet)
    return tuple(actions)


def _lifted(facts: Facts, slot: Slot) -> tuple[Action, ...]:
    """The holder whose successor waits for its deadline has ended, and no event told."""
    holder = facts.machine(slot.holder_instance or NO_INSTANCE)
    has_ended = holder is not None and holder.state in FLUSHES_NO_MORE and not slot.waits_for_notice
    lift = lift_of(facts, slot) if has_ended else None
    return () if lift is None else (lift,)


def _loss(facts: Facts, slot: Slot, *, quiet: frozenset[str]) -> tuple[Action, ...]:
    successor, holder = occupant(slot.successor_instance), occupant(slot.holder_instance)
    if slot.successor_instance is not None and successor is None:
        return ()  # an open claim: the launcher's
    instance = successor or holder
    if instance is None:
        claim = Claim(seen=slot, instance=NO_INSTANCE, cause=Cause.SUBMIT, deadline_at=facts.now)
        return (Guarded(first=claim, then=(Measure(metric=Metric.CLAIMS),)),)
    node = node_in(facts, slot, instance)
    if _is_answered(facts, node) and not _is_gone(facts, slot, instance):
        return (_replaced(facts, slot, Cause.TRAINER_ERROR, ()),)
    if node is not None and node.phase.is_final and not _is_answered(facts, node):
        return ()  # it said `done` or `failed` before it went
    if _is_extra(slot):
        has_gone = _is_gone(facts, slot, instance) or instance in quiet or _never_joined(facts, slot, node)
        return (moves.withdrawn(facts, slot, "it is gone itself"),) if has_gone else ()
    if _is_gone(facts, slot, instance) or _has_left(node):
        return (claim_of(facts, slot, _loss_of(facts, slot, instance, Cause.DISAPPEARED)),)
    if instance in quiet:
        return (claim_of(facts, slot, _loss_of(facts, slot, instance, Cause.SILENCE)),)
    if successor is not None and _never_joined(facts, slot, node):
        return (_replaced(facts, slot, Cause.NEVER_JOINED, (Measure(metric=Metric.NEVER_JOINED),)),)
    return ()


def _is_answered(facts: Facts, node: Node | None) -> bool:
    """Whether it failed before a person resumed the run: what it said then must not end the run again."""
    return (
        node is not None
        and node.phase is NodePhase.FAILED
        and node.beat_at < (facts.head.budgets_at if facts.head else 0)
    )


def _is_extra(slot: Slot) -> bool:
    """Whether its successor was started for advice alone: one that goes by itself is not launched again."""
    return bool(slot.waits_for_notice) and slot.cause is Cause.REBALANCE


def _left(facts: Facts, slot: Slot, *, quiet: frozenset[str]) -> tuple[Action, ...]:
    """A holder that was well is gone or silent, and no event told: the successor that waits beside it takes over."""
    holder = occupant(slot.holder_instance)
    if not slot.waits_for_notice or holder is None:
        return ()
    node = _holder_node(facts, slot)
    if node is not None and node.phase.is_final:
        return ()
    if _is_gone(facts, slot, holder) or _has_left(node):
        return (release_of(facts, slot, _loss_of(facts, slot, holder, Cause.DISAPPEARED)),)
    if holder in quiet:
        return (release_of(facts, slot, _loss_of(facts, slot, holder, Cause.SILENCE)),)
    return ()


def _is_gone(facts: Facts, slot: Slot, instance: str) -> bool:
    """EC2 calls it neither pending nor running, or does not know it a minute after it was bound or sealed."""
    machine = facts.machine(instance)
    if machine is not None:
        return not machine.is_alive
    sealed_at = None if facts.sealed is None else facts.sealed.sealed_at
    known_since = slot.successor_bound_at if slot.successor_instance == instance else sealed_at
    return known_since is None or facts.now - known_since > limits.UNKNOWN_TO_EC2_GRACE_S


def _has_left(node: Node | None) -> bool:
    """It has flushed and trains no more: for a notice that no event told us of, or for a pause that was taken back."""
    return node is not None and node.phase is NodePhase.DRAINING and node.flush is not None and node.flush.is_final


def _never_joined(facts: Facts, slot: Slot, node: Node | None) -> bool:
    patience_s = limits.FIRST_HEARTBEAT_S if facts.spec is None else facts.spec.liveness.first_heartbeat_s
    beats = node is not None and node.beat_at > 0
    return not beats and slot.successor_bound_at is not None and facts.now - slot.successor_bound_at > patience_s


def _replaced(facts: Facts, slot: Slot, cause: Cause, then: tuple[Action, ...]) -> Guarded:
    """Claim the place of a node that still runs, then end it if it is ours: the claim comes first."""
    instance = occupant(slot.successor_instance) or occupant(slot.holder_instance) or NO_INSTANCE
    claim = claim_of(facts, slot, _loss_of(facts, slot, instance, cause))
    machine = facts.machine(instance)
    end: tuple[Action, ...] = ()
    if is_ours(facts, machine):
        end = (Terminate(instances=(instance,)),)
    elif machine is not None:
        end = (_left_running(facts, slot, instance, cause),)
    told = Tell(
        run=facts.run,
        what=HistoryKind.NEVER_JOINED if cause is Cause.NEVER_JOINED else HistoryKind.LOST,
        slot=slot.slot,
        incarnation=slot.incarnation,
        instance=instance,
        cause=cause,
    )
    return Guarded(first=claim.first, then=(*claim.then, told, *then, *end), otherwise=claim.otherwise)


def _left_running(facts: Facts, slot: Slot, instance: str, cause: Cause) -> Notify:
    return Notify(
        subject=f"spotproof: {instance} of run {facts.run} is replaced and left running",
        many=f"spotproof: {{count}} instances of run {facts.run} are replaced and left running",
        text=f"Slot {slot.slot} of run {facts.run} goes to another node ({cause}). {instance} was tagged by hand and "
        "is not ended.",
        do="See whether its agent runs there; end the instance, or take its tag off and put it on again.",
        run=facts.run,
    )


def is_ours(facts: Facts, machine: Machine | None) -> bool:
    """Whether we may end it: it carries our stack's tag and a launch tag. Hand-tagged ones never."""
    return machine is not None and machine.launch is not None and machine.stack == facts.stack


def _loss_of(facts: Facts, slot: Slot, instance: str, cause: Cause) -> Loss:
    machine, member = facts.machine(instance), _member(facts, instance)
    pool = None
    if machine is not None and machine.zone:
        pool = f"{machine.instance_type}#{machine.zone}#{machine.market.value}"
    elif member is not None and member.instance_type:
        pool = f"{member.instance_type}#{member.zone}#{member.market.value}"
    return Loss(instance=instance, slot=slot.slot, cause=cause, at=facts.now, pool=pool)


def _member(facts: Facts, instance: str) -> Member | None:
    return next((member for member in facts.members if member.instance == instance), None)


def _holder_node(facts: Facts, slot: Slot) -> Node | None:
    return facts.node_of(slot.slot, slot.holder_incarnation, slot.holder_instance)


def _failed_node(facts: Facts, slot: Slot) -> Node | None:
    """The beat of the slot's newest node, or of one that goes on beside it, if its last word is `failed`."""
    holder = _holder_node(facts, slot) if slot.waits_for_notice else None
    if holder is not None and holder.phase is NodePhase.FAILED:
        return holder
    instance = occupant(slot.successor_instance) or occupant(slot.holder_instance)
    if instance is None or slot.successor_instance == NO_INSTANCE:
        return None
    node = node_in(facts, slot, instance)
    is_news = node is not None and node.phase is NodePhase.FAILED and not _is_answered(facts, node)
    return node if is_news else None
