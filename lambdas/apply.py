"""Performs actions in order, one at a time. A handler may be killed between any two; every one can run twice.

Nothing is decided here: what follows from winning or losing a condition is in the action.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from lambdas.decisions import actions as a
from lambdas.decisions.facts import parse_pool
from lambdas.effects.effects import Effects
from lambdas.effects.fleet import FleetAnswer
from lambdas.effects.journal import Journal
from lambdas.effects.log import Log, about
from lambdas.effects.marketlook import look
from lambdas.effects.notify import Word
from lambdas.effects.replacing import counting, replace_lost
from spotproof.contract.emf import family_of
from spotproof.contract.history import HistoryKind
from spotproof.contract.items import History, Launch, from_item
from spotproof.contract.metrics import Metric
from spotproof.contract.states import LaunchState
from spotproof.errors import Lost, SpotproofError, StoreError

__all__ = ["Apply", "Effects"]

SSM_ADVICE: Final = "the nodes hear it from HEAD and IMDS; check SSM agent, instance profile and instance state"


class Apply:
    """Performs the actions of one decision. `now_ms` is the moment at which it was made."""

    def __init__(self, effects: Effects, log: Log, *, now_ms: int, journal: Journal) -> None:
        self._effects = effects
        self._stores = effects.stores
        self._log = log
        self._now_ms = now_ms
        self._now = now_ms // 1000
        self._journal = journal
        self.troubles: list[StoreError] = []  # what failed and may be said after everything else is done

    def perform(self, actions: Sequence[a.Action]) -> None:
        """Perform them all. Raises Lost for an unguarded condition: decide again with facts read anew."""
        for action in actions:
            _PERFORMERS[type(action)](self, action)

    # ------------------------------------------------------------------------------------------------ conditions
    def guarded(self, action: a.Guarded) -> None:
        try:
            _PERFORMERS[type(action.first)](self, action.first)
        except Lost as lost:
            self._log.info("lost: %s", type(action.first).__name__, extra={**about(action.first), "why": lost.what})
            self.perform(action.otherwise)
            return
        self.perform(action.then)

    def claim(self, action: a.Claim) -> None:
        self._stores.slots.claim(
            action.seen,
            action.instance,
            cause=action.cause,
            now=self._now,
            deadline_at=action.deadline_at,
            lost_pool=action.lost_pool,
            waits_for_notice=action.waits_for_notice,
        )
        said = {"run": action.seen.run, "slot": action.seen.slot, "incarnation": action.seen.incarnation + 1}
        self._log.info("claimed", extra={**said, "instance": action.instance, "cause": action.cause.value})

    def promote(self, action: a.Promote) -> None:
        slot = action.slot
        incarnation = slot.incarnation if slot.successor_incarnation is None else slot.successor_incarnation
        self._stores.slots.promote(slot.run, slot.slot, incarnation, instance=str(slot.successor_instance))

    def release(self, action: a.Release) -> None:
        self._stores.slots.release(action.seen, deadline_at=action.deadline_at, cause=action.cause)

    def plan_move(self, action: a.PlanMove) -> None:
        self._stores.slots.plan_move(
            action.seen, action.instance, at=action.at, before=action.before, cause=action.cause
        )

    def spend_prewarm(self, action: a.SpendPrewarm) -> None:
        self._stores.storms.spend(action.region, window=action.window, limit=action.limit)

    def note_storm(self, action: a.NoteStorm) -> None:
        self._stores.storms.note(action.region, now=self._now)

    def lift_barrier(self, action: a.LiftBarrier) -> None:
        self._stores.slots.lift_barrier(action.seen, action.instance, now=self._now)

    def mark_bad(self, action: a.MarkBad) -> None:
        self._stores.heads.mark_bad(action.run, action.generation)

    def vacate(self, action: a.Vacate) -> None:
        self._stores.slots.vacate(action.seen, action.instance)

    def move_run(self, action: a.MoveRun) -> None:
        self._stores.heads.move(action.seen, action.to, cause=action.cause, reason=action.reason, now=self._now)
        self._log.info("status", extra={"run": action.seen.run, "to": action.to.value, "why": action.reason})

    def intend(self, action: a.Intend) -> None:
        if action.spend is None:
            self._stores.launches.intend(action.launch)
        else:
            self._stores.launches.intend_counted(action.launch, counting(self._stores, action.spend))

    def replace(self, action: a.Replace) -> None:
        replace_lost(self._stores, action, now=self._now)
        seen = action.claim.seen
        said = {"run": seen.run, "slot": seen.slot, "incarnation": seen.incarnation + 1}
        cause, launch = action.claim.cause.value, action.intend.launch.launch
        self._log.info("claimed", extra={**said, "instance": action.claim.instance, "cause": cause, "launch": launch})

    def bind(self, action: a.Bind) -> None:
        self._stores.slots.bind(
            action.run,
            action.slot,
            action.incarnation,
            instance=action.instance,
            launch=action.launch,
            now=self._now,
        )
        self._journal.write_pages()

    def end_member(self, action: a.EndMember) -> None:
        if not self._stores.members.end(action.instance, now=self._now):
            raise Lost(f"the end of {action.instance} has been noted")

    # ----------------------------------------------------------------------------------------------------- run
    def order_flush(self, action: a.OrderFlush) -> None:
        if self._stores.heads.order_flush(action.seen, action.order, now=self._now) is not None:
            self.perform(action.then)

    def send_flush(self, action: a.SendFlush) -> None:
        """Beside the claims, which must not wait for SSM: the order stands in HEAD already."""

        def said(code: str) -> None:
            if code:
                self._log.warning("flush order not sent by SSM", extra={"run": action.run, "code": code})
                self._effects.meter.add(Metric.COMMANDS_NOT_SENT, 1)
                detail = f"order {action.order.order} not sent by SSM ({code}): {SSM_ADVICE}"
                self.tell(a.Tell(run=action.run, what=HistoryKind.FLUSH_ORDERED, detail=detail, entry="ssm"))

        self._effects.errands.start(lambda: self._effects.commands.flush(action.run, action.order), said)

    def expect(self, action: a.Expect) -> None:
        self._stores.heads.expect(action.seen, wake_at=action.wake_at, wake_s=action.wake_s)

    def come_back(self, action: a.ComeBack) -> None:
        code = self._effects.queue.come_back(action.run, after_s=action.after_s, only_fills=action.only_fills)
        if code:
            self._log.warning("no later look, the sweep comes", extra={"run": action.run, "code": code})

    def note_commit(self, action: a.NoteCommit) -> None:
        self._stores.heads.committed(action.run, action.step)

    def count_fault(self, action: a.CountFault) -> None:
        self._stores.heads.node_fault(action.run, action.node)

    def launch_found(self, action: a.LaunchFound) -> None:
        self._stores.heads.launched(action.run, action.launch, recovered=action.recovered)

    def launch_failed(self, action: a.LaunchFailed) -> None:
        self._stores.heads.launch_failed(
            action.run,
            action.launch,
            next_launch_at=action.next_launch_at,
            spot=action.spot,
            refused=action.refused,
            refusals=action.refusals,
        )

    def retry_at(self, action: a.RetryAt) -> None:
        self._stores.heads.retry_at(action.run, action.next_launch_at)

    def reach(self, action: a.Reach) -> None:
        self._stores.heads.within_reach(action.run, action.nodes)

    def note_spend(self, action: a.NoteSpend) -> None:
        with suppress(Lost):  # somebody else has noted it
            self._stores.heads.spent(action.seen, usd=action.usd, now=self._now)

    def reschedule(self, action: a.Reschedule) -> None:
        with suppress(Lost):  # somebody hastened it: that time stands
            self._stores.live.reschedule(action.seen, due_at=action.due_at, looked_at=self._now)

    def rest(self, action: a.Rest) -> None:
        try:
            self._stores.live.rest(action.seen)
        except Lost:
            return  # somebody hastened it: it is watched

    def watch(self, action: a.Watch) -> None:
        self._stores.live.watch(action.run, due_at=action.due_at)

    def forget(self, action: a.Forget) -> None:
        self._stores.live.remove(action.run)
        head = self._stores.heads.read(action.run)
        if head is not None and head.status.is_live:  # resumed since the look that forgets it: no other look would come
            self._stores.live.watch(action.run, due_at=self._now)

    def commit(self, action: a.Commit) -> None:
        """Best effort: the next seal finds the same parts in S3."""
        from lambdas.effects.commit import commit  # manifests are read by repair alone, and seldom

        said = {"run": action.run, "generation": action.generation, "step": action.step}
        try:
            won = commit(
                self._stores,
                run=action.run,
                generation=action.generation,
                step=action.step,
                world=action.world,
                now=self._now,
            )
        except SpotproofError as error:
            self._log.warning("complete checkpoint not committed", extra={**said, "why": str(error)})
            return
        if won:
            self._effects.meter.add(Metric.COMMITS_FOR_THE_DEAD, 1)
            self.tell(a.Tell(run=action.run, what=HistoryKind.COMMITTED, step=action.step, detail="by the sweep"))

    # -------------------------------------------------------------------------------------------------- launch
    def ask(self, action: a.Ask) -> None:
        launch = action.launch
        zones = dict(entry.partition("=")[::2] for entry in action.zones)
        answer = self._effects.fleet.create(launch.request, launch.token, market=launch.market, zones=zones)
        said = {"run": launch.run, "launch": launch.launch, "instances": list(answer.instances)}
        self._log.info("fleet answered", extra={**said, "errors": list(answer.errors)})
        self._answer(launch, answer, action.adopted)

    def adopt(self, action: a.Adopt) -> None:
        self._answer(action.launch, FleetAnswer(), action.adopted)

    def _answer(self, launch: Launch, answer: FleetAnswer, adopted: tuple[tuple[str, str], ...]) -> None:
        """Write the answer. Where another handler wrote one first, that one stands, with what it lacks added."""
        pools = dict(zip(answer.instances, answer.pools, strict=True)) | {
            instance: pool for instance, pool in adopted if instance not in answer.instances
        }
        try:
            self._stores.launches.answer(
                launch.run,
                launch.launch,
                instances=tuple(pools),
                pools=tuple(pools.values()),
                errors=answer.errors,
                now=self._now,
            )
        except Lost as lost:
            stands = None if lost.current is None else from_item(Launch, lost.current)
            if stands is None or stands.state is LaunchState.CLOSED or set(pools) <= set(stands.instances):
                return
            self._stores.launches.amend(stands, tuple(pools))

    def amend(self, action: a.Amend) -> None:
        self._stores.launches.amend(action.launch, action.instances)

    def enter_member(self, action: a.EnterMember) -> None:
        if action.member not in self._journal.entered:
            self._stores.members.put(action.member)
            self._journal.entered.add(action.member)

    def give_up_launch(self, action: a.GiveUpLaunch) -> None:
        self._stores.launches.release(action.launch)

    def withdraw(self, action: a.Withdraw) -> None:
        self._stores.slots.withdraw(action.seen)

    def close_launch(self, action: a.CloseLaunch) -> None:
        self._stores.launches.close(action.run, action.launch)

    def terminate(self, action: a.Terminate) -> None:
        """A refusal keeps nothing else from being done: the next look ends them again, and this message fails."""
        said = {"instances": list(action.instances)}
        try:
            self._effects.machines.terminate(action.instances)
        except StoreError as error:
            self._log.error("not terminated", extra={**said, "why": str(error)})
            self.troubles.append(error)
            return
        self._log.info("terminated", extra=said)

    def cool_pool(self, action: a.CoolPool) -> None:
        try:
            self._stores.pools.cool(action.seen, action.to)
        except Lost:
            return  # another handler learned something of the pool: as good

    def lose_pool(self, action: a.LosePool) -> None:
        try:
            self._stores.pools.lost(action.pool, losses=action.losses, counted_for=action.counted_for, now=self._now)
        except Lost:
            return  # many counts at once: one is missing, which costs a worse guess

    def look_at_market(self, action: a.LookAtMarket) -> None:
        """Advice only: where EC2 does not answer, what is known stays."""
        said = {"types": list(action.types)}
        try:
            known = look(
                self._stores,
                self._effects.quotes,
                region=action.region,
                types=action.types,
                nodes=action.nodes,
                now=self._now,
            )
        except Lost:
            return  # somebody has looked
        except StoreError as error:
            self._log.warning("no look at the Spot market", extra={**said, "why": str(error)})
            return
        self._log.info("looked at the Spot market", extra={**said, "pools": known})

    def note_mass_silence(self, action: a.NoteMassSilence) -> None:
        self._stores.pools.note_mass_silence(action.region, now=self._now)

    # --------------------------------------------------------------------------------------------------- people
    def tell(self, action: a.Tell) -> None:
        entry = History(
            run=action.run,
            at_ms=self._now_ms if action.at is None else round(action.at * 1000),
            what=action.what.value,
            slot=action.slot,
            incarnation=action.incarnation,
            instance=action.instance,
            cause=action.cause,
            step=action.step,
            detail=action.detail,
        )
        self._journal.tell(entry, f"{action.what.value}-{action.entry}" if action.entry else "")

    def notify(self, action: a.Notify) -> None:
        word = Word(subject=action.subject, text=action.text, do=action.do, run=action.run, many=action.many)
        self._effects.notices.say(word)

    def note_measured(self, action: a.NoteMeasured) -> None:
        self._stores.heads.measured(action.seen, upto=action.upto)

    def measure(self, action: a.Measure) -> None:
        instance_type, zone, _ = parse_pool(action.pool) or ("", "", None)
        family = family_of(instance_type)
        self._effects.meter.add(action.metric, action.value, cause=action.cause, family=family, zone=zone)


_PERFORMERS: Final[Mapping[type[Any], Callable[[Apply, Any], None]]] = {
    a.Adopt: Apply.adopt,
    a.Amend: Apply.amend,
    a.Ask: Apply.ask,
    a.Bind: Apply.bind,
    a.Claim: Apply.claim,
    a.CloseLaunch: Apply.close_launch,
    a.Commit: Apply.commit,
    a.CoolPool: Apply.cool_pool,
    a.CountFault: Apply.count_fault,
    a.ComeBack: Apply.come_back,
    a.EndMember: Apply.end_member,
    a.EnterMember: Apply.enter_member,
    a.Expect: Apply.expect,
    a.Forget: Apply.forget,
    a.GiveUpLaunch: Apply.give_up_launch,
    a.Guarded: Apply.guarded,
    a.Intend: Apply.intend,
    a.LiftBarrier: Apply.lift_barrier,
    a.LaunchFailed: Apply.launch_failed,
    a.LaunchFound: Apply.launch_found,
    a.LookAtMarket: Apply.look_at_market,
    a.LosePool: Apply.lose_pool,
    a.MarkBad: Apply.mark_bad,
    a.Measure: Apply.measure,
    a.MoveRun: Apply.move_run,
    a.NoteMassSilence: Apply.note_mass_silence,
    a.NoteCommit: Apply.note_commit,
    a.NoteMeasured: Apply.note_measured,
    a.NoteSpend: Apply.note_spend,
    a.NoteStorm: Apply.note_storm,
    a.Notify: Apply.notify,
    a.OrderFlush: Apply.order_flush,
    a.PlanMove: Apply.plan_move,
    a.Promote: Apply.promote,
    a.Reach: Apply.reach,
    a.Release: Apply.release,
    a.Replace: Apply.replace,
    a.Reschedule: Apply.reschedule,
    a.Rest: Apply.rest,
    a.RetryAt: Apply.retry_at,
    a.SendFlush: Apply.send_flush,
    a.SpendPrewarm: Apply.spend_prewarm,
    a.Tell: Apply.tell,
    a.Terminate: Apply.terminate,
    a.Vacate: Apply.vacate,
    a.Watch: Apply.watch,
    a.Withdraw: Apply.withdraw,
}
