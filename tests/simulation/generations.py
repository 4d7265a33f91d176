"""Generations, parks and seals in seeded weather: the real launchers' code, interleaved by table operation.

    python -m tests.simulation.generations --n 100 [--seed 17]

Each launcher is a thread that holds the baton for one table operation or one pause at a time, so a seed is a history.
The clock is the scheduler's. Weather: launchers are killed, frozen, replaced; the table fails before or after it has
done what it was asked; the control plane marks generations bad; members commit whenever they like, with what they think
is their generation. Held in every history:

    barrier     nobody trains in a generation before all of its members have entered it
    fence       a commit of generation g comes after the seal of g and before the seal of g+1, and each seal starts from
                the newest commit: two live generations never both commit
    ranks       a generation has each rank once, and who was in the one before keeps its rank
    recovery    when the weather has calmed down, all places are filled by living launchers that train
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from spotproof.contract.items import Generation
from spotproof.contract.keys import GENERATION_PREFIX, Key
from spotproof.errors import Lost, StoreError, Superseded, Unavailable
from spotproof.rendezvous.decide import Seat, Size, members_of
from spotproof.rendezvous.joining import Entered, Joining
from spotproof.rendezvous.watch import Watch
from spotproof.store.local import IN_MEMORY, LocalTable
from spotproof.store.members import Memberships
from spotproof.store.pointer import Pointers
from spotproof.store.table import Item, Op, Put, Write
from tests.conformance.makers import pointer

RUN = "r"
WORLD = 3
STORM_S, CALM_S = 300.0, 400.0
LATENCY_S = 0.02


class Broken(AssertionError):
    """An invariant does not hold."""


class Killed(BaseException):
    """The launcher's process is gone."""


@dataclass(slots=True, kw_only=True)
class Actor:
    """A launcher's thread and where it stands."""

    name: str
    wake_at: float = 0.0
    is_killed: bool = False
    has_ended: bool = False
    trains_in: int = 0
    entered: Entered | None = None
    error: BaseException | None = None
    baton: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    thread: threading.Thread | None = None


class World:
    """One history."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now = 0.0
        self.is_calm = False
        self.actors: dict[str, Actor] = {}  # launchers
        self.uploads: dict[str, Actor] = {}
        self.table = LocalTable(IN_MEMORY)
        self.back = threading.Semaphore(0)
        self.log: list[tuple[str, int, int]] = []  # ("seal", g, start step) and ("commit", g, step), in order
        self.step = 0
        self.holder = threading.local()

    # ------------------------------------------------------------------------------------------------- the baton
    def wait(self, seconds: float) -> None:
        """An actor gives the baton back and gets it again when it is its turn."""
        actor: Actor = self.holder.actor
        actor.wake_at = self.now + seconds
        self.back.release()
        actor.baton.acquire()
        if actor.is_killed:
            raise Killed

    def start(self, name: str) -> None:
        """A node: its launcher, and the uploads of its agent, which go on while the launcher is parked."""
        launcher, uploads = Actor(name=name, wake_at=self.now), Actor(name=f"{name}-uploads", wake_at=self.now)
        self.actors[name], self.uploads[name] = launcher, uploads
        self._begin(launcher, Life(self, launcher).run)
        self._begin(uploads, Uploads(self, launcher).run)

    def _begin(self, actor: Actor, live: Callable[[], None]) -> None:
        actor.thread = threading.Thread(target=self._live, args=(actor, live), daemon=True)
        actor.thread.start()

    def _live(self, actor: Actor, live: Callable[[], None]) -> None:
        self.holder.actor = actor
        actor.baton.acquire()
        try:
            if not actor.is_killed:
                live()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - told by the history, with its seed
            actor.error = error
        actor.has_ended, actor.trains_in = True, 0
        self.back.release()

    def turn(self) -> None:
        """Give the baton to one of those whose time has come; if there is none, time goes on."""
        everybody = (*self.actors.values(), *self.uploads.values())
        alive = [actor for actor in everybody if not actor.has_ended]
        ready = [actor for actor in alive if actor.wake_at <= self.now]
        if not ready:
            self.now = min((actor.wake_at for actor in alive), default=self.now + 1.0)
            return
        actor = self.chance.choice(ready)
        actor.baton.release()
        self.back.acquire()
        if actor.error is not None:
            raise actor.error

    # ------------------------------------------------------------------------------------------------- the weather
    def alive(self) -> list[Actor]:
        return [actor for actor in self.actors.values() if not (actor.has_ended or actor.is_killed)]

    def storm(self) -> None:
        """Now and then something happens; a killed launcher is replaced a little later."""
        roll = self.chance.random()
        alive = self.alive()
        if roll < 0.002 and alive:
            victim = self.chance.choice(alive)
            victim.trains_in = 0
            for actor in (victim, self.uploads[victim.name]):
                actor.is_killed, actor.wake_at = True, self.now
        elif roll < 0.003 and alive:
            frozen = self.chance.choice(alive)
            frozen.wake_at = self.now + self.chance.uniform(5.0, 120.0)
            self.uploads[frozen.name].wake_at = frozen.wake_at
        elif roll < 0.005:
            newest = Memberships(self.table).newest(RUN)
            if newest is not None:
                Memberships(self.table).mark_bad(RUN, newest.generation)
        elif roll < 0.02 and len(alive) < WORLD + self.chance.randrange(2):
            self.start(f"n{len(self.actors)}")

    def run(self) -> None:
        """The whole history. Raises Broken."""
        for number in range(WORLD):
            self.start(f"n{number}")
        try:
            while self.now < STORM_S:
                self.storm()
                self.turn()
                self.check()
            self.is_calm = True
            while len(self.alive()) < WORLD:
                self.start(f"n{len(self.actors)}")
            while not self.is_recovered():
                self.turn()
                self.check()
                if self.now > STORM_S + CALM_S:
                    raise Broken(f"recovery: {self.picture()}")
        finally:
            self.end()
        self.check_log()

    def end(self) -> None:
        for actor in (*self.actors.values(), *self.uploads.values()):
            actor.is_killed = True
            while not actor.has_ended:
                actor.baton.release()
                self.back.acquire()
        self.table.close()

    # ------------------------------------------------------------------------------------------------- what must hold
    def sealed(self) -> Generation | None:
        newest = Memberships(self.table).newest(RUN)
        return None if newest is None else Memberships(self.table).generation(RUN, newest.generation)

    def is_recovered(self) -> bool:
        sealed = self.sealed()
        nodes = {member.node for member in members_of(sealed)}
        training = {actor.name for actor in self.alive() if sealed and actor.trains_in == sealed.generation}
        return len(nodes) == WORLD and nodes == training

    def check(self) -> None:
        """The join barrier, at every moment."""
        for actor in self.actors.values():
            if actor.trains_in and actor.entered is not None:
                for member in members_of(actor.entered.sealed):
                    other = self.actors[member.node].entered
                    if other is None or other.sealed.generation < actor.trains_in:
                        raise Broken(f"barrier: {actor.name} trains in {actor.trains_in}, {member.node} never entered")

    def check_log(self) -> None:
        """The fence and the ranks, in the order in which the table took the transactions."""
        sealed, committed = 0, 0
        for what, generation, step in self.log:
            if what == "seal":
                if generation != sealed + 1 or step != committed:
                    raise Broken(f"fence: {generation} was sealed after {sealed} from {step}, not {committed}")
                sealed = generation
            elif generation != sealed or step <= committed:
                raise Broken(f"fence: {generation} committed {step} while {sealed} was the newest")
            else:
                committed = step

    def check_ranks(self, before: Generation | None, after: Generation) -> None:
        now = {member.node: rank for rank, member in enumerate(members_of(after))}
        was = {member.node: rank for rank, member in enumerate(members_of(before))}
        moved = [node for node in now if node in was and was[node] != now[node]]
        if len(now) != WORLD or moved:
            raise Broken(f"ranks: {was} -> {now}")

    def picture(self) -> str:
        newest = Memberships(self.table).newest(RUN)
        return f"{newest}, members {self.sealed()}, alive {[(one.name, one.trains_in) for one in self.alive()]}"


class Stormy:
    """The table as one launcher sees it: each operation takes its turn, and may fail before or after it was done."""

    def __init__(self, world: World) -> None:
        self.world = world

    def _around(self, doing: Callable[[], object]) -> object:
        world = self.world
        world.wait(LATENCY_S * world.chance.random())
        roll = 1.0 if world.is_calm else world.chance.random()
        if roll < 0.01:
            raise Unavailable("before it was done")
        done = doing()
        if roll < 0.02:
            raise Unavailable("after it was done")
        return done

    def get(self, key: Key) -> Item | None:
        return self._around(lambda: self.world.table.get(key))  # type: ignore[return-value]

    def query(
        self, pk: str, *, prefix: str = "", since: str = "", limit: int | None = None, newest_first: bool = False
    ) -> list[Item]:
        asked = lambda: self.world.table.query(pk, prefix=prefix, since=since, limit=limit, newest_first=newest_first)  # noqa: E731
        return self._around(asked)  # type: ignore[return-value]

    def write(self, op: Write) -> Item:
        return self._around(lambda: self.world.table.write(op))  # type: ignore[return-value]

    def transact(self, ops: Sequence[Op]) -> None:
        def do() -> None:
            before = self.world.sealed()
            self.world.table.transact(ops)
            self._note(ops, before)

        self._around(do)

    def _note(self, ops: Sequence[Op], before: Generation | None) -> None:
        for op in ops:
            if isinstance(op, Put) and op.key.sk.startswith(GENERATION_PREFIX):
                number, start = int(str(op.item["generation"])), op.item.get("start_step")
                self.world.log.append(("seal", number, int(str(start or 0))))
                after = Memberships(self.world.table).generation(RUN, number)
                assert after is not None
                self.world.check_ranks(before, after)
            elif isinstance(op, Put) and op.key.sk == "POINTER":
                self.world.log.append(("commit", int(str(op.item["generation"])), int(str(op.item["step"]))))


@dataclass(slots=True)
class Life:
    """One launcher: enter, meet, train until the generation is over or a member is lost, again."""

    world: World
    actor: Actor

    def run(self) -> None:
        world, table = self.world, Stormy(self.world)
        joining = Joining(
            table=table,
            run=RUN,
            seat=Seat(node=self.actor.name),
            size=Size(smallest=WORLD, largest=WORLD),
            clock=lambda: world.now,
            pause=world.wait,
            chance=world.chance.random,
        )
        while True:
            self.actor.trains_in = 0
            entered = joining.enter(f"{self.actor.name}:1")
            self.actor.entered = entered
            watch = Watch(table=table, entered=entered, node=self.actor.name, clock=lambda: world.now)
            if self._meet(entered, watch):
                self._train(entered, watch)

    def _meet(self, entered: Entered, watch: Watch) -> bool:
        until = self.world.now + 17.0
        generation = entered.sealed.generation
        while not self._are_here(entered):
            watch.look()
            if watch.is_over or self.world.now >= until:
                return False
            self.world.wait(0.2)
        self.actor.trains_in = generation
        return True

    def _are_here(self, entered: Entered) -> bool:
        others = [self.world.actors[member.node].entered for member in members_of(entered.sealed)]
        return all(one is not None and one.sealed.generation >= entered.sealed.generation for one in others)

    def _train(self, entered: Entered, watch: Watch) -> None:
        while not watch.is_over and not self._hears_an_error(entered):
            self.world.wait(self.world.chance.uniform(0.2, 2.0))
            watch.look()

    def _hears_an_error(self, entered: Entered) -> bool:
        """A member's death is heard by its collectives, mostly."""
        dead = [member for member in members_of(entered.sealed) if self.world.actors[member.node].is_killed]
        return bool(dead) and self.world.chance.random() < 0.5


@dataclass(slots=True)
class Uploads:
    """The node's agent: commits with the generation that its trainer last had, however long that takes."""

    world: World
    launcher: Actor

    def run(self) -> None:
        world, pointers = self.world, Pointers(Stormy(self.world))
        while True:
            world.wait(world.chance.uniform(0.05, 1.5))
            if self.launcher.entered is None or world.is_calm:
                continue
            generation = self.launcher.entered.sealed.generation
            world.wait(world.chance.uniform(0.0, 1.0))
            world.step += 1
            with suppress(Lost, Unavailable, Superseded):  # another was further, nobody knows, or it is over
                pointers.rise(pointer(RUN, generation, world.step), own_generation=generation)


def history(seed: int) -> World:
    """Play one history. Raises Broken, naming its seed."""
    world = World(seed)
    try:
        world.run()
    except (Broken, StoreError) as error:
        raise Broken(f"seed {seed}: {error}") from error
    return world


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--n", type=int, default=200)
    parser.add_argument("--seed", type=int, help="only this one")
    asked = parser.parse_args()
    seeds = range(asked.n) if asked.seed is None else [asked.seed]
    began, seals, commits = time.monotonic(), 0, 0
    for seed in seeds:
        log = history(seed).log
        seals += sum(what == "seal" for what, _, _ in log)
        commits += sum(what == "commit" for what, _, _ in log)
    took_s = time.monotonic() - began
    print(f"{len(seeds)} histories, {seals} seals, {commits} commits in {took_s:.0f} s: all four hold")
    return 0


if __name__ == "__main__":
    sys.exit(main())
