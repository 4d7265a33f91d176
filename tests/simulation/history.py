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
from typing import Any

from lambdas import wiring
from spotproof.contract.items import NO_INSTANCE
from spotproof.contract.runspec import MarketPolicy
from spotproof.contract.states import Cause, RunStatus
from tests.fakes.control import START, World, notice, state
from tests.fakes.ec2 import FakeEc2
from tests.simulation.nodes import Nodes
from tests.simulation.process import GatedClient, GatedTable, Process
from tests.simulation.watch import WatchedTable

RUN = "sim"
BY_HAND = "i-0fffffffffffffff0"
LAMBDA_S = 60.0
VISIBILITY_S = 120.0
RECEIVES = 5
QUIET_S = 30 * 60
CLEAN_QUIET_S = 5 * 60  # nothing failed, so nothing is left for the slow rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """How bad it gets. `clean`: only duplicates and concurrency, so that nothing may wait for the sweep."""

    seed: int
    slots: int
    clean: bool
    length_s: float
    losses: int
    notice_share: float
    lost_events: float
    kills: float
    stalls: float
    throttles: int
    refused_pools: float
    extra: float
    invisible_s: float
    never_joins: float
    outage_s: float
    beats_out_s: float
    burst: bool
    stop: bool

    @staticmethod
    def of(seed: int) -> Weather:
        chance = random.Random(seed)
        clean = chance.random() < 0.25
        rough = 0.0 if clean else 1.0
        weather = Weather(
            seed=seed,
            slots=chance.choice([2, 3, 6] if clean else [1, 1, 2, 3, 6]),
            clean=clean,
            length_s=200.0 if clean else chance.choice([240.0, 600.0]),
            losses=0 if clean else chance.randint(1, 5),
            notice_share=1.0 if clean else chance.choice([1.0, 0.7, 0.0]),
            lost_events=rough * chance.choice([0.0, 0.2, 1.0]),
            kills=rough * chance.choice([0.0, 0.2, 0.5]),
            stalls=chance.choice([0.05, 0.2] if clean else [0.0, 0.02, 0.04]),
            throttles=int(rough * chance.choice([0, 0, 2, 5])),
            refused_pools=rough * chance.choice([0.0, 0.4, 0.9]),
            extra=rough * chance.choice([0.0, 0.0, 0.5]),
            invisible_s=chance.choice([0.0, 3.0, 30.0]),
            never_joins=rough * chance.choice([0.0, 0.0, 0.3]),
            outage_s=rough * chance.choice([0.0, 0.0, 130.0]),
            beats_out_s=rough * chance.choice([0.0, 0.0, 150.0]),
            burst=chance.random() < 0.4,
            stop=chance.random() < 0.1,
        )
        # With other losses beside it fewer than five slots may be silent, and then they are replaced, as promised.
        mass = weather.beats_out_s > 0 and weather.slots >= 5
        return replace(weather, losses=0, burst=False, never_joins=0.0) if mass else weather


@dataclass(slots=True)
class _Message:
    body: str
    received: int = 0


@dataclass(slots=True)
class History:
    """Plays one history; `violations` says what must not have happened, `faults` what was injected."""

    weather: Weather
    world: World = field(init=False)
    chance: random.Random = field(init=False)
    nodes: Nodes = field(init=False)
    violations: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    lost: set[str] = field(default_factory=set)
    log: list[str] = field(default_factory=list)
    declared_extra: int = 0
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _order: int = 0
    _processes: list[Process] = field(default_factory=list)
    _waiting: list[_Message] = field(default_factory=list)
    _out_until: float = 0.0
    _quiet: bool = False
    _was_killed: bool = False

    def __post_init__(self) -> None:
        self.chance = random.Random(self.weather.seed)
        self.world = World()
        self.world.table = WatchedTable(self.world.table, self.violations)
        self.world.ec2.invisible_s = self.weather.invisible_s
        self.world.ec2.tag(BY_HAND, tags={"spotproof:stack": "prod", "spotproof:run": RUN})
        self.nodes = Nodes(
            ec2=self.world.ec2,
            stores=self.world.stores,
            chance=random.Random(self.weather.seed + 1),
            clock=self.world.clock,
            violations=self.violations,
            never_joins=self.weather.never_joins,
        )

    # ------------------------------------------------------------------------------------------------- playing
    def play(self) -> History:
        """Weather, quiet, books."""
        self.world.submit(RUN, slots=self.weather.slots, market=MarketPolicy.SPOT)
        self._every(60, self._sweep)
        self._every(10 if self.weather.clean else 5, self._act)
        self._run_until(START + 150)
        self._schedule_weather()
        self._run_until(self.world.clock() + self.weather.length_s)
        self._calm()
        self._run_until(self.world.clock() + (CLEAN_QUIET_S if self.weather.clean else QUIET_S))
        self._check_books()
        return self

    def _schedule_weather(self) -> None:
        weather, start = self.weather, self.world.clock()
        moments = [start + self.chance.uniform(0, weather.length_s) for _ in range(weather.losses)]
        for moment in moments:
            self._at(moment, self._lose_one)
        for _ in range(8 if weather.clean else weather.burst):
            self._at(start + self.chance.uniform(0, weather.length_s), self._lose_all)
        if weather.outage_s:
            self._at(start + self.chance.uniform(0, 100), self._outage)
        if weather.beats_out_s and weather.slots >= 5:
            self._at(start + self.chance.uniform(0, 100), self._beats_out)
        for operation in ("create_fleet", "terminate_instances", "describe_instances"):
            codes = ["RequestLimitExceeded"] + (["timeout"] if operation == "create_fleet" else [])
            for _ in range(weather.throttles):
                self._at(start + self.chance.uniform(0, weather.length_s), self._fault_of(operation, codes))
        for zone in ("us-east-1a", "us-east-1b", "us-east-1c"):
            for kind in ("g5.xlarge", "g6.xlarge"):
                if self.chance.random() < weather.refused_pools:
                    self.world.ec2.refused[f"{kind}#{zone}#spot"] = "InsufficientInstanceCapacity"
                    self.faults["pool without capacity"] += 1

    def _calm(self) -> None:
        """No new faults: capacity is back, everything reachable, frozen nodes wake up."""
        self._quiet = True
        self.world.ec2.refused.clear()
        self.world.ec2._faults.clear()
        self._out_until = 0.0
        self.nodes.out = False
        self.nodes.never_joins = 0.0
        for instance, life in self.nodes.lives.items():
            if life.frozen and self.world.ec2.instances[instance].is_alive:
                life.frozen = False
                self.faults["woken"] += 1
        for pool in self.world.stores.pools.list("us-east-1"):
            self.world.stores.pools.cool(pool, _warm(pool))
        head = self.world.stores.heads.read(RUN)
        if head is not None and head.status is RunStatus.ACTIVE and head.next_launch_at > self.world.clock():
            self.world.stores.heads.attempt_succeeded(RUN)
        if self.weather.stop and head is not None and head.status is RunStatus.ACTIVE:
            self.world.pause(RUN, RunStatus.STOPPING)

    def _run_until(self, end: float) -> None:
        clock = self.world.clock
        while clock() < end:
            due = self._events[0][0] if self._events else end
            ready = [one for one in self._processes if one.stalled_until <= clock()]
            if due <= clock() or (not ready and not self._processes):
                clock.now = max(clock(), min(due, end))
                if due <= clock():
                    heapq.heappop(self._events)[2]()
                continue
            if ready:
                self._advance(self.chance.choice(ready))
            else:
                clock.now = max(clock(), min([due, end, *(one.stalled_until for one in self._processes)]))

    def _advance(self, process: Process) -> None:
        clock = self.world.clock
        clock.advance(self.chance.uniform(0.005, 0.05))
        if clock() - process.begun_at > LAMBDA_S:
            self.faults["timed out"] += 1
            process.kill()
        elif process.dies_at is not None and process.operations >= process.dies_at:
            self.faults["killed"] += 1
            process.kill()
        else:
            process.step()
            if not process.done and self.chance.random() < self.weather.stalls and not self._quiet:
                process.stalled_until = clock() + self.chance.uniform(0.1, 2 if self.weather.clean else 70)
                self.faults["stalled"] += 1
        if process.done:
            is_late = clock() > process.begun_at + LAMBDA_S - wiring.RESERVE_S - 1  # it left the rest to the sweep
            self._was_killed = self._was_killed or process.killed or is_late
            self._processes.remove(process)
            self._returned(process)

    # ------------------------------------------------------------------------------------------------ invocations
    def _invoke(self, messages: list[_Message]) -> None:
        bodies = {str(number): message.body for number, message in enumerate(messages)}

        def work(process: Process) -> Any:
            table = GatedTable(self.world.table, process, self._is_out)
            control = self.world.make_control(
                table, GatedClient(self.world.ec2, process), GatedClient(self.world.ssm, process), self.world.sqs
            )
            return control.handle(bodies, until=self.world.clock() + LAMBDA_S)

        process = Process("handler", work)
        process.begun_at = self.world.clock()
        if self.chance.random() < self.weather.kills and not self._quiet:
            process.dies_at = self.chance.randint(1, 30)
        process.messages = messages
        self._processes.append(process)

    def _returned(self, process: Process) -> None:
        if process.error is not None:
            self.violations.append(f"a handler raised {process.error!r}")
        messages: list[_Message] = process.messages
        failed = messages if process.killed else [messages[int(key)] for key in process.result or ()]
        for message in failed:
            message.received += 1
            if message.received < RECEIVES:
                self._at(self.world.clock() + VISIBILITY_S, self._enqueue_again(message))
            else:
                self.faults["dead letter"] += 1
        if self.weather.clean and not self._was_killed and not self._processes and not self._waiting and not failed:
            self._check_nothing_waits()

    def _enqueue_again(self, message: _Message) -> Callable[[], None]:
        return lambda: self._invoke([message])

    def emit(self, event: Mapping[str, Any]) -> None:
        """An event goes to the queue: lost, duplicated, late."""
        if self.chance.random() < self.weather.lost_events and not self._quiet:
            self.faults["lost event"] += 1
            return
        copies = self.chance.choice([1, 1, 2, 3])
        self.faults["duplicate"] += copies - 1
        for _ in range(copies):
            late_s = self.chance.choice([0.1, 1.0, 5.0, 200.0]) if not self.weather.clean else 1.0
            self._at(self.world.clock() + self.chance.uniform(0, late_s), self._queued(event))

    def _queued(self, event: Mapping[str, Any]) -> Callable[[], None]:
        def queue() -> None:
            self._waiting.append(_Message(body=json.dumps(event)))
            self._at(self.world.clock() + 0.2, self._poll)

        return queue

    def _poll(self) -> None:
        if self._waiting:
            size = self.chance.randint(1, 2 if self.weather.clean else 10)
            batch, self._waiting = self._waiting[:size], self._waiting[size:]
            self._invoke(batch)
        if self._waiting:
            self._at(self.world.clock() + 0.2, self._poll)

    def _sweep(self) -> None:
        if self._is_out():
            return
        self.world.control.sweep()
        for body in self.world.sqs.take():
            self._invoke([_Message(body=body)])

    # ---------------------------------------------------------------------------------------------------- weather
    def _act(self) -> None:
        if not self._is_out():
            self.nodes.act(lambda instance: self.emit(state(instance, self.world.clock(), "running")))
        if self.weather.extra and not self._quiet and self.chance.random() < self.weather.extra / 20:
            self.world.ec2.extra = 1
        for instance, life in self.nodes.lives.items():
            if life.never_joins:
                self.lost.add(instance)

    def _lose_one(self) -> None:
        living = [one.instance for one in self.world.ec2.alive() if one.instance != BY_HAND]
        if living:
            self._lose(self.chance.choice(living))

    def _lose_all(self) -> None:
        self.faults["burst"] += 1
        for machine in self.world.ec2.alive():
            if machine.instance != BY_HAND:
                self._lose(machine.instance)

    def _lose(self, instance: str) -> None:
        life = self.nodes.life(instance)
        if instance in self.lost:
            return
        self.lost.add(instance)
        if self.chance.random() < self.weather.notice_share:
            self._notice(instance)
            return
        kind = self.chance.choice(["dies", "freezes", "fails"] if self.weather.slots == 1 else ["dies", "freezes"])
        self.faults[f"node {kind}"] += 1
        if kind == "freezes":
            life.frozen = True
        elif kind == "fails":
            life.failing = True
        else:
            self._end(instance)()

    def _notice(self, instance: str) -> None:
        self.faults["notice"] += 1
        self.nodes.life(instance).noticed = True
        self.emit(notice(instance, self.world.clock()))
        self._at(self.world.clock() + self.chance.uniform(30, 120), self._end(instance))

    def _end(self, instance: str) -> Callable[[], None]:
        def end() -> None:
            if self.world.ec2.instances[instance].is_alive:
                self.world.ec2.instances[instance].state = "terminated"
                self.emit(state(instance, self.world.clock(), "shutting-down"))
                self.emit(state(instance, self.world.clock(), "terminated"))

        return end

    def _fault_of(self, operation: str, codes: list[str]) -> Callable[[], None]:
        def fault() -> None:
            code = self.chance.choice(codes)
            self.faults[f"{operation} {code}"] += 1
            self.world.ec2.fail(operation, code)

        return fault

    def _outage(self) -> None:
        self.faults["table out"] += 1
        self._out_until = self.world.clock() + self.weather.outage_s

    def _beats_out(self) -> None:
        """When all have joined: nodes that have not beaten yet cannot be counted as silent."""
        if any(slot.successor_instance for slot in self.world.slots(RUN)):
            self._at(self.world.clock() + 10, self._beats_out if not self._quiet else self._beats_back)
            return
        self.faults["beats out"] += 1
        self.nodes.out = True
        self._at(self.world.clock() + self.weather.beats_out_s, self._beats_back)

    def _beats_back(self) -> None:
        self.nodes.out = False

    def _is_out(self) -> bool:
        return self.world.clock() < self._out_until

    # ------------------------------------------------------------------------------------------------------ books
    def _check_nothing_waits(self) -> None:
        """In clean weather no claim waits for the sweep: whoever made it launched, or the one who had the lease."""
        head = self.world.stores.heads.read(RUN)
        if head is None or not head.status.wants_nodes:
            return
        for slot in self.world.slots(RUN):
            made_at = slot.claimed_at or 0
            if slot.successor_instance == NO_INSTANCE and slot.cause is not Cause.SUBMIT and made_at:
                self.violations.append(f"slot {slot.slot} was left open although nothing failed")

    def _check_books(self) -> None:
        for process in list(self._processes):
            process.kill()
        ec2, head = self.world.ec2, self.world.head(RUN)
        if not ec2.instances[BY_HAND].is_alive:
            self.violations.append("the hand-tagged instance was terminated")
        self._check_count(ec2)
        alive = {one.instance for one in ec2.alive()} - {BY_HAND}
        slots = self.world.slots(RUN)
        if head.status is RunStatus.ACTIVE:
            holders = {str(slot.holder_instance) for slot in slots}
            if not holders <= alive or any(slot.successor_instance for slot in slots):
                self.violations.append(f"not filled after quiet time: {slots}")
            if alive - holders:
                self.violations.append(f"alive and in no slot: {sorted(alive - holders)}")
        elif alive and head.status is not RunStatus.BLOCKED:
            self.violations.append(f"run is {head.status}, still alive: {sorted(alive)}")
        elif not head.status.is_live or head.cause is not None:
            return
        else:
            self.violations.append(f"run is {head.status} without a cause")

    def _check_count(self, ec2: FakeEc2) -> None:
        launched = [one for one in ec2.instances if one != BY_HAND]
        allowed = self.weather.slots + len(self.lost) + ec2.extras
        if len(launched) > allowed:
            self.violations.append(
                f"{len(launched)} launched for {self.weather.slots} slots, {len(self.lost)} losses, {ec2.extras} extra"
            )
        for instance in ec2.terminated:
            ours = self.world.stores.members.read(instance)
            if ours is None or instance in self.lost or self.weather.stop or ec2.extras:
                continue
            if self.world.head(RUN).status is RunStatus.ACTIVE:
                self.violations.append(f"{instance} was healthy and has been terminated")

    # ------------------------------------------------------------------------------------------------------ clock
    def _at(self, moment: float, act: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._events, (moment, self._order, act))

    def _every(self, period_s: float, act: Callable[[], None]) -> None:
        def again() -> None:
            act()
            self._at(self.world.clock() + period_s * (3 if self._quiet and period_s < 60 else 1), again)

        self._at(self.world.clock() + period_s, again)


def _warm(pool: Any) -> Any:
    return replace(pool, until=0, cooldown_s=0, verdict="")
