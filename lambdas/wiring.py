"""Composition root: clients, clock, logger; and the one pipeline that every message takes.

    body -> message -> (by run) facts -> decision -> actions -> apply -> open claims? -> launcher

Nothing is built at import but the logger; `control()` makes the rest at first use.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Final

from aws_lambda_powertools import Logger

from lambdas import intake, signals
from lambdas.apply import Apply, Effects
from lambdas.decisions import bursts, express, launching, losses, repairing, sorting
from lambdas.decisions.actions import Action, Guarded, Measure, MoveRun
from lambdas.decisions.facts import Facts, Loss, Machine
from lambdas.decisions.sorting import Known, Work
from lambdas.effects.aws import effects_of
from lambdas.effects.journal import Journal
from lambdas.effects.log import ContextLog, Log
from lambdas.effects.queue import RepairQueue
from lambdas.facts import Reader
from lambdas.sweeping import Sweeper
from spotproof.contract import limits, names
from spotproof.contract.frozen import dataclass
from spotproof.contract.items import Member
from spotproof.contract.messages import Ignored, Message, Repair
from spotproof.contract.metrics import Metric
from spotproof.contract.settings import ControlSettings
from spotproof.errors import Lost, MalformedEvent, SpotproofError, StoreError, Unavailable
from spotproof.store.clients import Clients

logger = Logger(service="spotproof")

RUN_TRIES: Final = 12  # decisions that met somebody else's write are made anew; ten handlers may share a run's HEAD
PASSES: Final = 4  # of repair over a run whose status it moved
LOOKS: Final = 4  # times that a launcher looks again after letting go
STEPS: Final = 24  # of one launcher: a launch takes three, every pool set one launch
RESERVE_S: Final = 30  # a new step begins only with this much of the handler's time left: the longest call to EC2


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a control is made of."""

    settings: ControlSettings
    reader: Reader
    effects: Effects
    queue: RepairQueue
    log: Log
    clock: Callable[[], float]
    owner: Callable[[], str]


class Control:
    """The control plane of one stack. Every method can be repeated and can be killed at any point."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._reader = parts.reader
        self._stores = parts.effects.stores
        self._meter = parts.effects.meter
        self._log = ContextLog(parts.log)
        self._troubles: list[StoreError] = []
        self._own: dict[str, set[int]] = {}  # launches that this batch has made the short way
        self._journal = self._new_journal()

    # ---------------------------------------------------------------------------------------------- messages
    def handle(self, bodies: Mapping[str, str], *, until: float) -> dict[str, Exception]:
        """Work on a batch of message bodies; return, by key, why those failed that must come again.

        A failure of one run leaves the others alone. `until` (Unix seconds) is when the handler's time is over.
        """
        failures: dict[str, Exception] = {}
        self._own = {}
        messages: dict[str, Message] = {}
        for key, body in bodies.items():
            try:
                message = self._parsed(body)
            except MalformedEvent as malformed:
                self._meter.add(Metric.MALFORMED, 1)
                self._log.error("malformed", extra={"why": str(malformed)})
                failures[key] = malformed
                continue
            if isinstance(message, Ignored):
                self._ignore(message)
            else:
                messages[key] = message
        known: Mapping[str, Member] = {}
        try:
            works, known = self._sorted(messages, failures)
        except SpotproofError as error:
            self._log.error("failed", extra={"why": repr(error)})
            failures.update(dict.fromkeys(messages, error))
            works = ()
        seen = self._seen(works, known, crowded=len(bodies) >= names.BATCH_SIZE)
        failures.update(self._worked(works, seen, until=until))
        self._parts.effects.errands.finish()
        self._say()
        self._journal.write()
        self._journal = self._new_journal()
        self._meter.flush()
        return failures

    def _say(self) -> None:
        """What people are told, when everything is done; a word that does not go out stops no recovery."""
        for code in self._parts.effects.notices.flush():
            self._meter.add(Metric.NOTIFICATIONS_LOST, 1)
            self._log.warning("notification not sent", extra={"code": code})

    def _worked(self, works: Sequence[Work], seen: Mapping[str, Facts], *, until: float) -> dict[str, Exception]:
        """Every run hears of its notices before any run's launch takes its seconds."""
        failures: dict[str, Exception] = {}
        unfilled: list[Work] = []

        def hear(work: Work) -> None:
            if self._heard(work, seen.get(work.run), until=until):
                unfilled.append(work)

        for work in works:
            failures.update(self._attempted(work, hear))
        for work in unfilled:
            failures.update(self._attempted(work, lambda one: self._go_on(one, until=until)))
        return failures

    def _attempted(self, work: Work, step: Callable[[Work], None]) -> dict[str, Exception]:
        self._troubles = []
        try:
            with self._log.about(run=work.run):
                step(work)
        except Exception as error:  # noqa: BLE001 - the process boundary: this run's records come again
            self._log.error("failed", exc_info=True, extra={"run": work.run, "why": repr(error)})
            return dict.fromkeys(work.keys, error)
        return dict.fromkeys(work.keys, self._troubles[0]) if self._troubles else {}

    def sweep(self) -> int:
        """Enqueue every run that is due and return how many were."""
        parts = self._parts
        sweeper = Sweeper(
            live=self._stores.live, queue=parts.queue, meter=self._meter, log=self._log, clock=parts.clock
        )
        return sweeper.sweep()

    def _parsed(self, body: str) -> Message | Ignored:
        now = self._now()
        message = intake.parsed(body, self._parts.settings, now=now)
        if not isinstance(message, Ignored | Repair):
            self._meter.add(Metric.EVENT_DELAY, max(0, now - message.at))
        return message

    def _sorted(
        self, messages: Mapping[str, Message], failures: dict[str, Exception]
    ) -> tuple[tuple[Work, ...], Mapping[str, Member]]:
        """The work of each run, and whom it is about.

        Notices of instances that EC2 cannot describe now go into `failures`, alone.
        """
        members = self._reader.members(sorting.instances_of(tuple(messages.values())))
        machines: dict[str, Machine] = {}
        try:
            machines = self._reader.machines_of(messages.values(), members)
            inside = self._reader.members([one for one in machines if one not in members])  # of blocks
            members = {**members, **inside}
        except StoreError as error:
            self._log.error("failed", extra={"why": repr(error)})
            undecided = [key for key, message in messages.items() if sorting.asks_of(message, members)]
            failures.update(dict.fromkeys(undecided, error))
            messages = {key: message for key, message in messages.items() if key not in undecided}
        settings = self._parts.settings
        known = Known(stack=settings.stack, document=settings.document, members=members, machines=machines)
        result = sorting.sort(messages, known)
        for ignored in result.ignored:
            self._ignore(ignored)
        return result.work, members

    def _ignore(self, ignored: Ignored) -> None:
        self._meter.add(Metric.IGNORED, 1)
        self._log.info("ignored", extra={"why": ignored.reason, "event": ignored.event_id})

    # -------------------------------------------------------------------------------------------------- a run
    def _seen(self, works: Sequence[Work], known: Mapping[str, Member], *, crowded: bool) -> dict[str, Facts]:
        """The facts of all losses in few requests; {} if that fails: then each run fails or not by itself.

        Of one loss alone also what its launch needs to know, which is the short way (decisions.express).
        """
        lost = {work.run: work.losses for work in works if work.losses}
        alone = {loss.instance for losses in lost.values() for loss in losses}
        try:
            if len(alone) == 1 and not crowded:
                ((run, losses),) = lost.items()
                found = {run: self._reader.of_loss(run, losses, known[min(alone)], now=self._now())}
            else:
                found = self._reader.of_losses(lost, now=self._now()) if lost else {}
        except SpotproofError:
            return {}
        return {run: replace(facts, crowded=crowded) for run, facts in found.items()}

    def _heard(self, work: Work, seen: Facts | None, *, until: float) -> bool:
        """Do what cannot wait: flush orders, claims. True if the run has to be looked at for more."""
        open_claims = bool(work.losses) and self._lost(work, seen, until=until)
        for read, decide in signals.of(work, self._reader):
            facts, actions = self._decided(work.run, read, decide)
            open_claims = losses.may_be_open(facts, actions) or open_claims
        return work.repair or work.fills or open_claims

    def _go_on(self, work: Work, *, until: float) -> None:
        """Repair or launch. Without the time for it the run stays due, and its claims open: the next sweep goes on.

        To be cut off in the middle would bring the whole batch back, and only after the queue's visibility time-out.
        """
        if self._parts.clock() > until - RESERVE_S:
            self._log.warning("no time left, somebody else goes on", extra={"run": work.run})
            self._apply(bursts.back_off(self._reader.of_head(work.run, now=self._now())))
        elif work.repair:
            self._repair(work.run, until=until)
        else:
            self._fill(work.run, until=until, named=work.fills)

    def _lost(self, work: Work, seen: Facts | None, *, until: float) -> bool:
        """The short way where it may be gone; True if there may be claims to fill now, or a launch to finish."""
        has_time = self._parts.clock() <= until - RESERVE_S
        short = express.decide(seen, work.losses) if seen is not None and has_time else None
        if seen is None or short is None:
            return self._lose(work.run, work.losses, seen)
        try:
            self._apply([short.first])
        except Lost as lost:
            self._log.info("lost: short way", extra={"run": work.run, "why": lost.what})
            fresh = self._reader.of_losses({work.run: work.losses}, now=self._now())[work.run]
            return self._lose(work.run, work.losses, replace(fresh, crowded=seen.crowded))
        failed: Unavailable | None = None
        try:
            self._apply(short.then)
        except Unavailable as error:
            failed = error
        self._apply([*short.after, *repairing.is_missed(seen)])
        if failed is not None:
            self._later(work.run, failed)
            return False
        self._own[work.run] = {short.first.intend.launch.launch}
        return True

    def _lose(self, run: str, lost: Sequence[Loss], seen: Facts | None) -> bool:
        """Order the flush and claim the slots; True if there may be claims to fill, and now is the time to."""
        first = seen

        def read(of: str, *, now: int) -> Facts:
            nonlocal first
            found, first = first, None
            fresh = found or self._reader.of_losses({of: lost}, now=now)[of]
            return fresh if seen is None else replace(fresh, crowded=seen.crowded)

        facts, actions = self._decided(run, read, lambda facts: losses.decide(facts, lost))
        self._apply(repairing.is_missed(facts))
        if not losses.may_be_open(facts, actions):
            return False
        facts = replace(facts, now=self._now())
        if not bursts.holds_launch(facts):
            return True
        self._apply(bursts.put_off(facts))
        return False

    def _repair(self, run: str, *, until: float) -> None:
        for _ in range(PASSES):
            facts, actions = self._decided(run, self._whole, repairing.decide)
            if not any(isinstance(action, Guarded) and isinstance(action.first, MoveRun) for action in actions):
                break
        if launching.next_step(self._reader.of_launch(run, now=self._now(), own=frozenset())):
            self._fill(run, until=until)
        self._apply(repairing.next_look(replace(facts, now=self._now())))

    def _whole(self, run: str, *, now: int) -> Facts:
        """The whole run, and how long it took to read: what was read last may be younger than `now`."""
        facts = self._reader.of_repair(run, now=now)
        return replace(facts, took_s=self._now() - now)

    def _decided(
        self, run: str, read: Callable[..., Facts], decide: Callable[[Facts], tuple[Action, ...]]
    ) -> tuple[Facts, tuple[Action, ...]]:
        """Read, decide, act; anew where an unguarded condition was lost to somebody else's write."""
        lost: Lost | None = None
        for _ in range(RUN_TRIES):
            facts = read(run, now=self._now())
            actions = decide(facts)
            try:
                self._apply(actions)
            except Lost as error:
                lost = error
                continue
            return facts, actions
        raise Unavailable(f"run {run}: {RUN_TRIES} decisions met other writes", next_step="it comes again") from lost

    # ---------------------------------------------------------------------------------------------- launcher
    def _fill(self, run: str, *, until: float, named: bool = False) -> None:
        """Launch for open claims: under the launcher lease, then let go and look again.

        The lease only saves work. Whoever finds it taken leaves: the one who has it looks again after letting go, and
        should he die, the sweep comes. `named`: name the leavers first whom a burst left out of the run's order.
        """
        if named:
            self._decided(run, self._reader.of_order, bursts.late_order)
        owner = self._parts.owner()
        own = self._own.pop(run, set())
        for _ in range(LOOKS):
            now = self._now()
            try:
                self._stores.leases.take(run, owner, now=now, until=now + limits.LAUNCHER_LEASE_S)
            except Lost:
                return
            try:
                self._launch(run, own, until=until)
            except Unavailable as error:
                self._later(run, error)
                return
            finally:
                self._stores.leases.let_go(run, owner)
            if self._parts.clock() > until - RESERVE_S or not self._is_for_us(run, own):
                return

    def _is_for_us(self, run: str, own: set[int]) -> bool:
        """Whether there is something to do for the run at once. What a burst still adds is filled together, later."""
        facts = self._launch_facts(run, now=self._now(), own=frozenset(own))
        step = launching.next_step(facts)
        if not any(launching.intended(step)) or not bursts.holds_launch(facts):
            return bool(step)
        self._apply(bursts.put_off(facts))
        return False

    def _launch_facts(self, run: str, *, now: int, own: frozenset[int] = frozenset()) -> Facts:
        return self._reader.of_launch(run, now=now, own=own)

    def _launch(self, run: str, own: set[int], *, until: float) -> None:
        for _ in range(STEPS):
            step = self._next_step(run, own)
            if not step or self._parts.clock() > until - RESERVE_S:
                return
            own.update(launching.intended(step))
            self._apply(step)

    def _next_step(self, run: str, own: set[int]) -> tuple[Action, ...]:
        return launching.next_step(self._reader.of_launch(run, now=self._now(), own=frozenset(own)))

    def _later(self, run: str, error: SpotproofError) -> None:
        """The claims and the launch record are durable; whoever comes next goes on from them, the sweep at last."""
        facts = self._reader.of_head(run, now=self._now())
        self._apply([Measure(metric=Metric.LAUNCH_ERRORS, cause="throttle"), *bursts.back_off(facts)])
        self._log.warning("launch unfinished, the sweep goes on", extra={"run": run, "why": str(error)})

    def _apply(self, actions: Sequence[Action]) -> None:
        now_ms = int(self._parts.clock() * 1000)
        apply = Apply(self._parts.effects, self._log, now_ms=now_ms, journal=self._journal)
        try:
            apply.perform(actions)
        finally:
            self._troubles += apply.troubles

    def _new_journal(self) -> Journal:
        return Journal(self._stores.many, self._log, self._meter)

    def _now(self) -> int:
        return int(self._parts.clock())


@cache
def control() -> Control:
    """The control plane that the environment describes. Raises BadSettings, naming every variable that is wrong."""
    settings = ControlSettings.from_env(os.environ)
    effects = effects_of(settings, Clients(region=settings.region))
    return Control(
        Parts(
            settings=settings,
            reader=Reader(
                stores=effects.stores,
                machines=effects.machines,
                stack=settings.stack,
                region=settings.region,
                launches_per_hour=settings.launches_per_hour,
            ),
            effects=effects,
            queue=effects.queue,
            log=logger,
            clock=time.time,
            owner=lambda: uuid.uuid4().hex,
        )
    )
