"""One seeded history of a run: weather, then quiet, then the books are checked.

Everything that chance decides comes from the seed; time is a number. The product code is the real one: messages in,
facts, decisions and effects over a table in memory and a fake account.
"""

from __future__ import annotations

import heapq
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from lambdas import wiring
from lambdas.effects.stores import stores_of
from lambdas.wiring import Control
from spotproof.contract import keys
from spotproof.contract.history import HistoryKind
from spotproof.contract.limits import FIRST_HEARTBEAT_S
from spotproof.contract.metrics import Metric
from spotproof.contract.runspec import Budgets
from spotproof.contract.states import RunStatus
from spotproof.errors import StoreError
from spotproof.store.folder import FolderObjects
from spotproof.store.table import Update
from tests.fakes.control import START, SUBNETS, CountingMeter, World, state
from tests.fakes.dict_table import DictTable
from tests.simulation import blows, books, signs
from tests.simulation.account import RefusingSqs, RefusingSsm, SimulatedEc2, is_by_hand
from tests.simulation.nodes import Nodes
from tests.simulation.process import GatedClient, GatedTable, Process
from tests.simulation.watch import WatchedTable
from tests.simulation.weather import Weather

__all__ = ["RUN", "History", "Weather"]

RUN = "sim"
FOREIGN = "i-0eeeeeeeeeeeeeee0"
LAMBDA_S = 60.0
VISIBILITY_S = 120.0
RECEIVES = 5
QUIET_S = 30 * 60
NODES_LOOK_S = 5  # an order that a later one replaces has been read by then (lambdas.decisions.flush.HEARD_S)
GANG_PATIENCE_S = 120.0
ELASTIC_AFTER_S = 60.0
CLEAN_QUIET_S = 5 * 60  # nothing failed, so nothing is left for the slow rules
CALM_LOOKS = 3  # quiet ends early when this many minutes in a row nothing was left to do
WHOLE_QUIET = 16  # one in so many histories is played to the end of its quiet all the same


@dataclass(slots=True)
class Message:
    """One copy of an event, or a run that is due."""

    body: str
    received: int = 0


class NoMeter(CountingMeter):
    """Nobody looks at metrics here, and a history has thousands."""

    def add(self, metric: Metric, value: float, *, cause: str = "", family: str = "", zone: str = "") -> None:
        del metric, value, cause, family, zone

    def flush(self) -> None:
        return None


@dataclass(slots=True)
class SimulatedWorld(World):
    """The stack of a history: a table that is a dict, and an account with weather."""

    def __post_init__(self) -> None:
        self.meter = NoMeter()
        self.ec2 = SimulatedEc2(clock=self.clock, zones=dict(SUBNETS))
        self.table = DictTable()
        self.stores = stores_of(self.table, FolderObjects(Path("/nonexistent")))
        self.control = self.make_control(self.table, self.ec2, self.ssm, self.sqs)


@dataclass(slots=True)
class History:
    """Plays one history; `violations` says what must not have happened, `faults` what was injected."""

    weather: Weather
    world: SimulatedWorld = field(init=False)
    ec2: SimulatedEc2 = field(init=False)
    watch: WatchedTable = field(init=False)
    nodes: Nodes = field(init=False)
    chance: random.Random = field(init=False)
    violations: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    lost: set[str] = field(default_factory=set)  # instances that something happened to: each may have a successor
    quiet: bool = False
    crashes: int = 0  # handlers that did not come to their end
    _events: list[tuple[float, int, bool, Callable[[], None]]] = field(default_factory=list)
    _order: int = 0
    _once: int = 0  # events to come that are no routine
    _processes: list[Process] = field(default_factory=list)
    _waiting: list[Message] = field(default_factory=list)
    _newest_sent: int = 0
    _put_off: int = 0
    _end: float = 0.0
    _calm_looks: int = 0
    out_until: float = 0.0
    resumed_at: float = 0.0

    def __post_init__(self) -> None:
        weather = self.weather
        self.chance = random.Random(weather.seed)
        self.world = world = SimulatedWorld(
            ssm=RefusingSsm(refuse=lambda: blows.ssm_refusal(self)),
            sqs=RefusingSqs(refuse=lambda: blows.sqs_refusal(self), later=self._later),
        )
        assert isinstance(world.ec2, SimulatedEc2)
        self.ec2 = world.ec2
        self.ec2.faults, self.ec2.invisible_s, self.ec2.stale_s = self.faults, weather.invisible_s, weather.stale_s
        self.ec2.on_end = self._ended
        foreign = {"spotproof:stack": "another", "spotproof:run": RUN, "spotproof:launch": "1"}
        self.ec2.tag(FOREIGN, tags=foreign)
        self.watch = WatchedTable(world.table, clock=world.clock, violations=self.violations, faults=self.faults)
        world.table = self.watch
        world.stores = stores_of(self.watch, world.stores.objects)
        world.control = world.make_control(self.watch, self.ec2, world.ssm, world.sqs)
        self.nodes = Nodes(
            run=RUN,
            ec2=self.ec2,
            table=self.watch,
            watch=self.watch,
            stores=world.stores,
            chance=random.Random(weather.seed + 1),
            clock=world.clock,
            violations=self.violations,
            faults=self.faults,
            told_to_leave=self._told_to_leave,
            never_joins=weather.never_joins,
            boot_deaths=weather.boot_deaths,
            commits=0.0 if weather.small_budget else weather.commits,
            members=weather.slots if weather.standby or weather.least else 0,
            least=weather.least,
        )

    # ------------------------------------------------------------------------------------------------- playing
    def play(self) -> History:
        """Weather, quiet, books."""
        weather = self.weather
        budgets = Budgets(recoveries=books.RECOVERIES) if weather.small_budget else Budgets()
        self.world.submit(
            RUN,
            slots=weather.slots,
            standby=weather.standby,
            elastic=f"{weather.least}..{weather.slots}" if weather.least else "",
            elastic_after_s=ELASTIC_AFTER_S,
            market=weather.market,
            budgets=budgets,
            signals=signs.settings(weather),
        )
        if weather.gang or weather.failback_s:
            self._shape()
        self._every(60, self._sweep)
        self._every(NODES_LOOK_S, self._act)
        self._run_until(START + 150)
        blows.schedule(self)
        self._run_until(self.now() + weather.length_s)
        blows.calm(self)
        self.quiet = True
        self._calm_looks = 0
        self._run_until(self.now() + (CLEAN_QUIET_S if weather.clean else QUIET_S))
        for process in list(self._processes):
            process.kill()
        self.violations += books.problems(self)
        return self

    def _shape(self) -> None:
        """The run's pools as the weather wants them."""
        key = keys.spec(RUN)
        item = dict(self.watch.get(key) or {})
        settings = {"failback_after_s": self.weather.failback_s, "gang": self.weather.gang}
        pools = {**cast("dict[str, Any]", item["pools"]), **settings, "gang_patience_s": GANG_PATIENCE_S}
        self.watch.write(Update(key=key, set={"pools": pools}))

    def now(self) -> float:
        """Seconds since 1970 in this history."""
        return self.world.clock.now

    def _run_until(self, end: float) -> None:
        clock, self._end = self.world.clock, end
        while clock.now < end and not self._is_over() and not self.violations:
            due = self._events[0][0] if self._events else end
            ready = [one for one in self._processes if one.stalled_until <= clock.now]
            if due <= clock.now or (not ready and not self._processes):
                clock.now = max(clock.now, min(due, end))
                if due <= clock.now:
                    _, _, is_routine, act = heapq.heappop(self._events)
                    self._once -= not is_routine
                    act()
                continue
            if ready:
                self._advance(ready[0] if len(ready) == 1 else self.chance.choice(ready))
            else:
                clock.now = max(clock.now, min([due, end, *(one.stalled_until for one in self._processes)]))

    def _is_over(self) -> bool:
        return self.quiet and self._calm_looks >= CALM_LOOKS and self.weather.seed % WHOLE_QUIET != 0

    def _look(self) -> None:
        """Quiet is over when nothing is under way, nothing will come, and the books have been in order for minutes."""
        idle = not (self._processes or self._waiting or self._once or signs.to_come(self))
        self._calm_looks = self._calm_looks + 1 if idle and not books.problems(self) else 0

    def _advance(self, process: Process) -> None:
        self._begins(process)
        process.step()
        if process.done:
            is_late = self.now() > process.begun_at + LAMBDA_S - wiring.RESERVE_S - 1  # it left the rest to the sweep
            self.crashes += process.killed or is_late
            self._processes.remove(process)
            self._returned(process)

    def _begins(self, process: Process) -> None:
        """Its next operation takes its time, unless it ends before it."""
        clock = self.world.clock
        clock.now += self.chance.uniform(0.005, 0.05)
        if clock.now - process.begun_at > LAMBDA_S:
            self.faults["handler timed out"] += 1
            process.killed = True
        elif process.dies_at is not None and process.operations >= process.dies_at:
            self.faults["handler killed between two effects"] += 1
            process.killed = True

    def _goes_on(self, process: Process) -> bool:
        """After an operation: whether the same process does the next one. Not if it stalls or somebody else may act."""
        now = self.world.clock.now
        if not self.quiet and self.chance.random() < self.weather.stalls:
            process.stalled_until = now + self.chance.uniform(0.1, 2 if self.weather.clean else 70)
            self.faults["handler stalled"] += 1
            return False
        is_alone = all(one is process or one.stalled_until > now for one in self._processes)
        if not is_alone or self._events[0][0] <= now or now >= self._end:
            return False
        self._begins(process)
        return True

    def story(self) -> list[str]:
        """The timeline that the control plane wrote, for people who look for the fault."""
        return [
            f"{entry.at_ms / 1000 - START:7.1f} {entry.what} slot={entry.slot} incarnation={entry.incarnation} "
            f"{entry.instance or ''} {entry.cause or ''} {entry.detail[:80]}".rstrip()
            for entry in self.world.told(RUN)
            if entry.what != HistoryKind.COMMITTED
        ]

    # ------------------------------------------------------------------------------------------------ invocations
    def _invoke(self, messages: list[Message]) -> None:
        bodies = {str(number): message.body for number, message in enumerate(messages)}
        skew_s = 0 if self.quiet else self.chance.randint(-self.weather.skew_s, self.weather.skew_s)
        self.faults["handler with a wrong clock"] += skew_s != 0
        world, clock = self.world, self.world.clock

        def work(process: Process) -> Any:
            control = world.make_control(
                GatedTable(self.watch, process, self),
                GatedClient(self.ec2, process, self),
                GatedClient(world.ssm, process, self),
                world.sqs,
            )
            parts = control._parts
            if self.weather.launch_limit:
                parts = replace(parts, reader=replace(parts.reader, launches_per_hour=self.weather.launch_limit))
            if skew_s:
                parts = replace(parts, clock=lambda: clock.now + skew_s)
            control = Control(parts)
            return control.handle(bodies, until=clock.now + skew_s + LAMBDA_S)

        process = Process(work, goes_on=self._goes_on)
        process.begun_at = self.now()
        if not self.quiet and self.chance.random() < self.weather.kills:
            process.dies_at = self.chance.randint(1, 30)
        process.messages = messages
        self._processes.append(process)

    def _returned(self, process: Process) -> None:
        if process.error is not None:
            self.violations.append(f"a handler raised {process.error!r}")
        for error in (process.result or {}).values():
            if not isinstance(error, StoreError):
                self.violations.append(f"a handler failed by {error!r}")
        messages: list[Message] = process.messages
        failed = messages if process.killed else [messages[int(key)] for key in process.result or ()]
        for message in failed:
            message.received += 1
            if message.received < RECEIVES:
                self.at(self.now() + VISIBILITY_S, partial(self._invoke, [message]))
            else:
                self.faults["message given up after five tries"] += 1
        busy = self.crashes or self._processes or self._waiting or self._put_off or failed
        if self.weather.clean and not busy:
            self.violations += books.waiting(self)

    def _later(self, body: str, after_s: int) -> None:
        """A look that a handler put off."""
        self._put_off += 1
        self.faults["look put off"] += 1

        def look() -> None:
            self._put_off -= 1
            self._invoke([Message(body=body)])

        self.at(self.now() + after_s, look)

    # ------------------------------------------------------------------------------------------- what chance does
    def table_is_out(self) -> bool:
        """See `Trouble`."""
        return self.now() < self.out_until

    def answer_is_lost(self, of: str) -> bool:
        """See `Trouble`. Reads that fail are throttles and outages; here something was done."""
        if self.quiet or of.startswith("describe") or self.chance.random() >= self.weather.lost_answers:
            return False
        self.faults[f"answer lost: {of}"] += 1
        return True

    def lease_is_out(self) -> bool:
        """See `Trouble`. It only saves work: nothing may rest on it."""
        return self.chance.random() < self.weather.leases_out

    def is_seen_by_retry(self) -> bool:
        """See `Trouble`."""
        return self.chance.random() < 0.5

    # --------------------------------------------------------------------------------------------------- queues
    def emit(self, event: Mapping[str, Any]) -> None:
        """An event goes to the queue: lost, duplicated, late, behind later ones."""
        if not self.quiet and self.chance.random() < self.weather.lost_events:
            self.faults["event lost"] += 1
            return
        copies = self.chance.choice([1, 1, 2, 3])
        self.faults["event duplicated"] += copies - 1
        self._newest_sent += 1
        for _ in range(copies):
            late_s = 1.0 if self.weather.clean else self.chance.choice([0.1, 1.0, 5.0, 200.0])
            late_s = self.chance.uniform(0, late_s)
            self.faults["event more than five seconds late"] += late_s > 5
            self.at(self.now() + late_s, partial(self._queued, event, self._newest_sent))

    def _queued(self, event: Mapping[str, Any], number: int) -> None:
        self.faults["event behind a later one"] += number < self._newest_sent
        self._waiting.append(Message(body=json.dumps(event)))
        self.at(self.now() + 0.2, self._poll)

    def _poll(self) -> None:
        if self._waiting:
            size = self.chance.randint(1, 2 if self.weather.clean else 10)
            batch, self._waiting = self._waiting[:size], self._waiting[size:]
            self._invoke(batch)
        if self._waiting:
            self.at(self.now() + 0.2, self._poll)

    def _sweep(self) -> None:
        if self.table_is_out():
            return
        if self.quiet:
            self._look()  # before this minute's look begins
        try:
            self.world.control.sweep()
        except StoreError:
            return  # SQS refused: the next minute's sweep is the retry
        for body in self.world.sqs.take():
            self._invoke([Message(body=body)])

    def _act(self) -> None:
        if not self.table_is_out():
            self.nodes.act(
                lambda instance: self.emit(state(instance, self.now(), "running")),
                lambda instance: blows.end(self, instance),
            )
        if self.weather.extra and not self.quiet and self.chance.random() < self.weather.extra / 20:
            self.ec2.extra = 1
        self._note_lost()

    def _ended(self, instance: str) -> None:
        """What a run that wants no nodes has ended is launched anew when it is resumed. What is not ours is never."""
        if is_by_hand(self.ec2.instances[instance]):
            self.violations.append(f"{instance} is not ours and has been terminated")
        head = self.world.table.get(keys.head(RUN)) or {}
        if head.get("status") != RunStatus.ACTIVE or self.now() - self.resumed_at < LAMBDA_S:
            self.lost.add(instance)  # a handler that decided before it was resumed may still be at it

    def _told_to_leave(self, instance: str, status: RunStatus) -> None:
        """By an order in HEAD. One that a pause has left there stands for a while after it.

        A run that launches nothing tells its nodes to save and go before their date; once it goes on, others come.
        """
        if status is not RunStatus.ACTIVE or self.faults["run paused by a person"]:
            self.lost.add(instance)
        elif instance not in self.lost | self.watch.let_go:
            self.violations.append(f"{instance} is well and was told to leave")
        elif instance not in self.lost and (why := signs.told_early(self, instance)):
            self.violations.append(why)

    def _note_lost(self) -> None:
        """Nodes that never join are lost; so are those that dying handlers left without a place for ten minutes."""
        for instance, life in self.nodes.lives.items():
            if instance in self.lost:
                continue
            if life.never_joins or life.dismissed or instance in self.watch.vacated:
                self.lost.add(instance)
            elif is_by_hand(self.ec2.instances[instance]) or not self.ec2.instances[instance].is_alive:
                continue
            elif life.place is None and self.now() - self.ec2.instances[instance].launched_at > FIRST_HEARTBEAT_S:
                self.faults["node left without a place by dying handlers"] += 1
                self.lost.add(instance)

    # ------------------------------------------------------------------------------------------------------ clock
    def at(self, moment: float, act: Callable[[], None], *, routine: bool = False) -> None:
        """Do it then."""
        self._order += 1
        self._once += not routine
        heapq.heappush(self._events, (moment, self._order, routine, act))

    def _every(self, period_s: float, act: Callable[[], None]) -> None:
        def again() -> None:
            act()
            self.at(self.now() + period_s, again, routine=True)

        self.at(self.now() + period_s, again, routine=True)
