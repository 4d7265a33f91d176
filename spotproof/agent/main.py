"""The agent's composition root: settings -> stores -> threads -> loop -> exit code."""

from __future__ import annotations

import os
import selectors
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from spotproof.agent.head import WiderLook, look
from spotproof.agent.heartbeat import Heart, Place, Vitals
from spotproof.agent.identity import completed
from spotproof.agent.imds import Endpoint, Imds
from spotproof.agent.launching import Launching
from spotproof.agent.leaving import NOTICE_FILE, Leaving
from spotproof.agent.loop import Loop, MetadataSays, Owned, SupersededHeard
from spotproof.agent.membership import Called, Joiner
from spotproof.agent.requests import Requests
from spotproof.agent.server import Server
from spotproof.agent.shares import Wanted
from spotproof.agent.situation import Situation
from spotproof.agent.threads import END_WITHIN_S, Mailbox, Repeating
from spotproof.agent.together import departing
from spotproof.agent.trainers import FetchedAgain, Trainers
from spotproof.checkpoint.fetch import Fetched, Fetcher
from spotproof.checkpoint.jobs import Begin
from spotproof.checkpoint.localcopy import LocalCopies
from spotproof.checkpoint.meter import Meter
from spotproof.contract import ids, names, s3keys
from spotproof.contract.limits import HEAD_POLL_S, IMDS_POLL_S
from spotproof.contract.runspec import Budgets, CheckpointPolicy, Pools, RunSpec
from spotproof.contract.settings import LocalSettings, NodeSettings, RendezvousSettings, variable
from spotproof.contract.states import NodePhase
from spotproof.errors import BadSettings, Damaged, StoreError
from spotproof.rendezvous.staged import say_staged
from spotproof.store.checkpoints import Checkpoints
from spotproof.store.head import Heads
from spotproof.store.members import Memberships
from spotproof.store.nodes import Nodes
from spotproof.store.objects import Objects
from spotproof.store.pointer import Pointers
from spotproof.store.starts import StagedCopy, Stores
from spotproof.store.table import Table

_LOOK_UP_S: Final = 3.0  # the loop waits for it
_NO_IMAGE: Final = "local@sha256:" + "0" * 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What differs between EC2 and a laptop."""

    run: str
    runtime_dir: Path
    scratch_dir: Path
    table: Table
    objects: Objects
    begin: Begin
    is_local: bool
    instance: str = ""
    rendezvous: RendezvousSettings = field(default_factory=RendezvousSettings)  # for a launcher of one of many nodes
    stack: str = ""  # local: none, and nobody reads metrics out of the log
    spec: RunSpec | None = None  # local: made up from the settings


def run_agent(environ: Mapping[str, str]) -> int:
    """Run the agent until the node's work is over; returns the exit code (contract.exits).

    Raises BadSettings before anything has started, if the environment is incomplete or the runtime folder is in use.
    """
    is_local, is_node = (bool(environ.get(variable(name))) for name in ("local_dir", "table"))
    if is_local and is_node:
        raise BadSettings(
            f"{variable('local_dir')} and {variable('table')} are both set", next_step="unset one: a folder or a stack"
        )
    if is_node:
        environ = completed(environ, _metadata_of(environ))
    if not ids.is_run_id(environ.get(variable("run"), "local")):
        raise BadSettings(
            f"{variable('run')}={environ[variable('run')]!r} is not a run id",
            next_step="use 1 to 63 lower-case letters, digits and '-', beginning and ending with a letter or digit",
        )
    with ExitStack() as stack:
        ground = _local(LocalSettings.from_env(environ), stack) if is_local else _node(NodeSettings.from_env(environ))
        return run_on(ground, environ, stack)


def run_on(ground: Ground, environ: Mapping[str, str], stack: ExitStack) -> int:
    """Run the agent on these stores; `stack` ends what it starts."""
    selector = stack.enter_context(selectors.DefaultSelector())
    server = stack.enter_context(Server(ground.runtime_dir, selector))
    (ground.runtime_dir / NOTICE_FILE).unlink(missing_ok=True)  # an earlier node's, where the folder outlives nodes
    mailbox = Mailbox()
    stack.callback(mailbox.close)
    situation = Situation(
        runtime_dir=ground.runtime_dir, now=time.time, log=_log, server=server, is_local=ground.is_local
    )
    joiner = Joiner(
        table=ground.table, post=mailbox.post, now=time.time, make_fetcher=lambda run: _fetcher(ground, run)
    )
    fetcher = _fetcher(ground, ground.run)
    again = fetching(fetcher.newest, joiner=joiner, mailbox=mailbox)
    parts = fetching_parts(fetcher, joiner=joiner, mailbox=mailbox)
    requests = Requests(runtime_dir=ground.runtime_dir)
    requests.open()
    departing_ = departing(ground.table, run=ground.run, node=ground.instance)
    leaving = Leaving(situation=situation, depart=stack.enter_context(departing_))
    loop = Loop(
        situation=situation,
        owned=_owned(ground, mailbox),
        mailbox=mailbox,
        selector=selector,
        server=server,
        joiner=joiner,
        trainers=Trainers(
            situation=situation,
            fetch=stack.enter_context(again),
            fetch_part=stack.enter_context(parts),
            on_damaged=lambda _: _choose_again(ground, situation),
            on_staged=lambda: _say_staged(ground),
        ),
        launching=Launching(situation=situation, on_person=leaving.hear, rendezvous=ground.rendezvous),
        leaving=leaving,
        requests=requests,
        stack=stack.enter_context(ExitStack()),
        should_stop=stack.enter_context(_stop_signals()),
    )
    stack.enter_context(_joining(ground, joiner))
    if not ground.is_local:
        stack.enter_context(_hearing_metadata(environ, mailbox))
    return loop.run()


def _owned(ground: Ground, mailbox: Mailbox) -> Owned:
    nodes, heads, memberships = Nodes(ground.table), Heads(ground.table), Memberships(ground.table)

    checkpoints = Checkpoints(ground.table)

    def heart(place: Place) -> Heart:
        return Heart(
            nodes=nodes,
            place=place,
            now=time.time,
            on_superseded=lambda why: mailbox.post(SupersededHeard(why=why)),
            vitals=Vitals(stack=ground.stack, write=_say, now=time.time) if ground.stack else None,
        )

    return Owned(
        begin=lambda _: ground.begin,
        was_committed=lambda generation, step: was_committed(
            ground.objects, checkpoints, ground.run, (generation, step)
        ),
        heart=heart,
        look=lambda: look(ground.run, heads=heads, memberships=memberships),
        look_wider=WiderLook(
            run=ground.run, heads=heads, memberships=memberships, pointers=Pointers(ground.table), now=time.time
        ),
        head_poll_s=HEAD_POLL_S,
        is_awaited=lambda place: is_awaited(nodes, place),
    )


def is_awaited(nodes: Nodes, place: Place) -> bool:
    """Whether the node that takes this place has parked; a table that does not answer says no."""
    try:
        successor = nodes.read(place.run, place.slot, place.incarnation + 1)
    except StoreError:
        return False
    return successor is not None and successor.phase is NodePhase.PARKED


def was_committed(objects: Objects, checkpoints: Checkpoints, run: str, order: tuple[int, int]) -> bool:
    """Whether the checkpoint is in the bucket and a restore would take it; what does not answer says no."""
    try:
        found = objects.head(s3keys.manifest(run, *order), until=time.monotonic() + _LOOK_UP_S)
        return found is not None and order not in checkpoints.quarantined(run)
    except StoreError:
        return False


def _fetcher(ground: Ground, run: str) -> Fetcher:
    stores = Stores(
        objects=ground.objects,
        checkpoints=Checkpoints(ground.table),
        pointers=Pointers(ground.table),
        memberships=Memberships(ground.table),
    )
    local, meter = LocalCopies(ground.scratch_dir, run), Meter(stream=sys.stderr)
    return Fetcher(stores=stores, run=run, clock=time.time, local=local, meter=meter)


@contextmanager
def fetching(read: Callable[[], Fetched | None], *, joiner: Joiner, mailbox: Mailbox) -> Iterator[Callable[[], None]]:
    """Reads the newest checkpoint on a thread, whenever it is called; each time it posts one event.

    A service that does not answer is waited for: the trainer would take it for checkpoints that are all damaged.
    """
    threads: list[threading.Thread] = []

    def work() -> None:
        try:
            mailbox.post(FetchedAgain(fetched=joiner.patiently(read)))
        except Called:
            pass
        except Exception as error:  # noqa: BLE001 -- the boundary of a thread: the trainer is told
            mailbox.post(FetchedAgain(error=error))

    def fetch() -> None:
        threads.append(threading.Thread(target=work, name="fetch", daemon=True))
        threads[-1].start()

    try:
        yield fetch
    finally:
        for thread in threads:
            thread.join(END_WITHIN_S)


@contextmanager
def fetching_parts(fetcher: Fetcher, *, joiner: Joiner, mailbox: Mailbox) -> Iterator[Callable[[Wanted], None]]:
    """Reads one rank's part of one checkpoint on a thread for each call, and posts what came of it."""
    threads: list[threading.Thread] = []

    def work(wanted: Wanted) -> None:
        def read() -> Fetched:
            return fetcher.exact(
                wanted.order, wanted.rank, is_committed=wanted.is_committed, any_world=wanted.any_world
            )

        try:
            mailbox.post(FetchedAgain(fetched=joiner.patiently(read), wanted=wanted))
        except Called:
            pass
        except Exception as error:  # noqa: BLE001 -- the boundary of a thread: the workers are told
            mailbox.post(FetchedAgain(error=error, wanted=wanted))

    def fetch(wanted: Wanted) -> None:
        threads.append(threading.Thread(target=work, args=(wanted,), name="fetch", daemon=True))
        threads[-1].start()

    try:
        yield fetch
    finally:
        for thread in threads:
            thread.join(END_WITHIN_S)


def _say_staged(ground: Ground) -> None:
    """Tell this node's launcher what is whole on this disk. Best effort: without it the run goes on from a commit."""
    found = []
    for copy in LocalCopies(ground.scratch_dir, ground.run).find():
        with suppress(Damaged):
            part = copy.part()
            found.append(StagedCopy(generation=part.generation, step=part.step, rank=part.rank, world=part.world))
    with suppress(OSError):
        say_staged(ground.runtime_dir, found)


def _choose_again(ground: Ground, situation: Situation) -> None:
    """The start that is sealed cannot be loaded here: the members seal again, with another one."""
    with suppress(StoreError):  # the worker fails at last, and its launcher says so
        Memberships(ground.table).mark_bad(ground.run, situation.generation)


@contextmanager
def _joining(ground: Ground, joiner: Joiner) -> Iterator[None]:
    """The way to the seal, on a thread that ends with the context."""
    spec = ground.spec

    def work() -> None:
        if spec is None:
            joiner.join(ground.instance, ground.run)
        else:
            joiner.join_alone(lambda number: _local_place(ground.run, number), spec)

    thread = threading.Thread(target=work, name="join", daemon=True)
    thread.start()
    try:
        yield
    finally:
        joiner.cancel()
        thread.join(END_WITHIN_S)


def _local_place(run: str, number: int) -> Place:
    """Each start is an incarnation of its own, so that two never beat under one key."""
    return Place(run=run, slot=0, incarnation=number, instance=f"local-{os.getpid()}-{number}")


def _metadata_of(environ: Mapping[str, str]) -> Imds:
    return Imds(endpoint=Endpoint.from_env(environ), monotonic=time.monotonic, now=time.time)


@contextmanager
def _hearing_metadata(environ: Mapping[str, str], mailbox: Mailbox) -> Iterator[None]:
    imds = _metadata_of(environ)

    def poll() -> None:
        notices = tuple(imds.poll())
        mailbox.post(MetadataSays(notices=notices, degraded=imds.degraded))

    with Repeating("metadata", poll, period_s=IMDS_POLL_S, mailbox=mailbox):
        yield


@contextmanager
def _stop_signals() -> Iterator[Callable[[], bool]]:
    """SIGTERM and SIGINT end the agent at the next turn; uploads that were asked are still finished."""
    stopped = threading.Event()
    before = {number: signal.signal(number, lambda *_: stopped.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stopped.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _local(settings: LocalSettings, stack: ExitStack) -> Ground:
    from spotproof.store.folder import FolderObjects
    from spotproof.store.local import LocalTable

    root = Path(settings.local_dir).absolute()
    scratch = Path(settings.scratch_dir).absolute() if settings.scratch_dir else root / "scratch"
    runtime = Path(settings.runtime_dir).absolute() if settings.runtime_dir else root / "run"
    root.mkdir(parents=True, exist_ok=True)
    table = stack.enter_context(LocalTable(root / names.LOCAL_TABLE))
    policy = CheckpointPolicy(every_s=settings.checkpoint_every_s, every_steps=settings.checkpoint_every_steps)
    begin = Begin(
        run=settings.run,
        scratch_dir=str(scratch),
        objects_dir=str(root / names.LOCAL_OBJECTS),
        table_file=str(root / names.LOCAL_TABLE),
    )
    spec = RunSpec(
        run=settings.run,
        image=_NO_IMAGE,
        command=(),
        pools=Pools(types=()),
        checkpoint=policy,
        budgets=Budgets(trainer_failures=1),  # on a laptop the person sees the error and decides
    )
    return Ground(
        run=settings.run,
        runtime_dir=runtime,
        scratch_dir=scratch,
        table=table,
        objects=FolderObjects(root / names.LOCAL_OBJECTS),
        begin=begin,
        is_local=True,
        spec=spec,
    )


def _node(settings: NodeSettings) -> Ground:
    from spotproof.store.clients import Clients
    from spotproof.store.dynamo import DynamoTable
    from spotproof.store.s3 import S3Objects

    clients = Clients(region=settings.region)
    begin = Begin(
        run=settings.run,
        scratch_dir=settings.scratch_dir,
        bucket=settings.bucket,
        table=settings.table,
        region=settings.region,
    )
    return Ground(
        run=settings.run,
        runtime_dir=Path(settings.runtime_dir),
        scratch_dir=Path(settings.scratch_dir),
        table=DynamoTable(clients.dynamodb, settings.table),
        objects=S3Objects(clients.s3, settings.bucket),
        begin=begin,
        is_local=False,
        instance=settings.instance,
        rendezvous=RendezvousSettings(
            table=settings.table,
            bucket=settings.bucket,
            region=settings.region,
            address=os.environ.get(variable("address"), ""),
        ),
        stack=settings.stack,
    )


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 -- the log driver takes each line of stdout as one log event


def _log(line: str) -> None:
    print(f"spotproof agent: {line}", file=sys.stderr, flush=True)  # noqa: T201 -- a daemon's log is its stderr
