"""The stage: a region with the deployed stack, one run on it, and the instruments that watch it from outside."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rehearsal import losses
from rehearsal.auditor import Auditor
from rehearsal.deploy import REPOSITORY
from rehearsal.evidence import Departure, DepartureKind
from rehearsal.permissions.proof import Proof, prove
from rehearsal.plan import RUN, Plan, run_spec
from rehearsal.region import Region
from rehearsal.trouble import Expected
from spotproof.contract import keys, names

TICK_S = 1.0  # a minute of the schedule, shortened
Say = Callable[[str], None]


class CommandFailed(Exception):
    """An operator's command ended with an error; the text is its output."""


class InVain(Exception):
    """Something that the story needs did not happen in time; the verdicts tell what that breaks."""


class Stage:
    """One run on one region. Acts call its verbs; what they did is in `departures`, `extras` and `expected`.

    `companions` are the stages of further runs beside it. `moments` and `noted` are what a scenario notes for its
    verdicts.
    """

    def __init__(
        self, region: Region, plan: Plan, *, cdk_out: Path, outputs: dict[str, str], say: Say, run: str = RUN
    ) -> None:
        self.region = region
        self.plan = plan
        self.cdk_out = cdk_out
        self.outputs = outputs
        self.say = say
        self.run = run
        self.companions: list[Stage] = []
        self.loss_log = region.workdir / f"{run}-losses.jsonl"
        self.logs = plan.logs(self.loss_log)  # of each rank
        self.first = plan.slots  # nodes that the stack launches before anything happens
        self.departures: list[Departure] = []
        self.extras: list[str] = []
        self.by_hand: set[str] = set()
        self.expected: list[Expected] = []
        self.moments: dict[str, float] = {}
        self.noted: dict[str, str] = {}
        self.proofs: list[Proof] = []  # of what was called before the stack was deployed anew
        self.proved_calls = 0
        self.woke_at: float | None = None
        self.woken_generation = 0
        self.woken_ended: bool | None = None
        self.auditor = Auditor(
            run=run,
            dynamodb=region.client("dynamodb"),
            s3=region.client("s3"),
            table=outputs[names.OUTPUT_TABLE],
            bucket=outputs[names.OUTPUT_BUCKET],
        )
        self._dynamodb = region.client("dynamodb")

    # ------------------------------------------------------------------ the run
    def submit(self) -> None:
        """`spotproof submit`, as an operator types it. Raises CommandFailed with what it said."""
        spec, outputs = self.region.workdir / f"{self.run}.yaml", self.region.workdir / "outputs.json"
        # JSON is YAML: no second writer of the format is needed.
        spec.write_text(json.dumps(run_spec(self.plan, run=self.run, loss_log=self.loss_log), indent=2))
        outputs.write_text(json.dumps(self.outputs))
        self.spotproof("submit", str(spec), "--outputs", str(outputs))

    def upgrade(self, cdk_out: Path) -> None:
        """Deploys another version of the stack while the run goes on. What was called until now is judged first."""
        self.proofs.append(prove(self.region, self.outputs, whole=False, since=self.proved_calls))
        self.proved_calls = len(self.region.calls)
        self.outputs = self.region.deploy(cdk_out)

    def spotproof(self, *words: str) -> str:
        """Runs one command of the product's own command line and returns its standard output."""
        log = self.region.workdir / f"spotproof-{words[0]}.log"
        entry = "import sys; sys.argv[0] = 'spotproof'; from spotproof.cli.main import main; sys.exit(main())"
        child = self.region.processes.start(
            [sys.executable, "-c", entry, *words],
            env=self.region.operator_env() | {"PYTHONPATH": str(REPOSITORY)},
            cwd=self.region.workdir,
            log=log,
        )
        code = child.wait(60)
        said = log.read_text(errors="replace")
        if code != 0:
            raise CommandFailed(f"spotproof {' '.join(words)} ended with {code}:\n{said[-2000:]}")
        return said

    @contextlib.contextmanager
    def clock(self) -> Iterator[None]:
        """Every schedule of the stack fires each TICK_S seconds inside the with block."""
        stop = threading.Event()

        def tick() -> None:
            while not stop.wait(TICK_S):
                self.region.schedules.tick()

        thread = threading.Thread(target=tick, name="schedules", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(10)

    # ------------------------------------------------------------------ looking
    def item(self, key: keys.Key) -> dict[str, Any]:
        """One item of the table, as DynamoDB spells it; empty if there is none."""
        answer = self._dynamodb.get_item(
            TableName=self.outputs[names.OUTPUT_TABLE],
            Key={"pk": {"S": key.pk}, "sk": {"S": key.sk}},
            ConsistentRead=True,
        )
        item: dict[str, Any] = answer.get("Item", {})
        return item

    def holder(self, slot: int = 0) -> str:
        """The instance that works in the slot: the newest that the slot knows."""
        item = self.item(keys.slot(self.run, slot))
        return str((item.get("successor_instance") or item.get("holder_instance") or {"S": ""})["S"])

    def holder_now(self, slot: int = 0) -> str:
        """The instance that holds the slot, whoever is on its way; '' for nobody."""
        return str(self.item(keys.slot(self.run, slot)).get("holder_instance", {"S": ""})["S"])

    def successor(self, slot: int = 0) -> str:
        """The instance that is on its way to the slot; '' for nobody."""
        return str(self.item(keys.slot(self.run, slot)).get("successor_instance", {"S": ""})["S"])

    def generation(self) -> int:
        """The newest sealed generation, 0 before the first."""
        return int(self.item(keys.newest(self.run)).get("generation", {"N": "0"})["N"])

    def status(self) -> str:
        """The run's status as HEAD says it."""
        return str(self.item(keys.head(self.run)).get("status", {"S": "unknown"})["S"])

    def step(self) -> int:
        """The newest step that any trainer finished."""
        return losses.last_step(self.logs[0])

    def pieces(self) -> int:
        """How many processes have trained so far."""
        return len(losses.pieces(losses.read(self.logs[0])))

    @property
    def runs(self) -> tuple[Stage, ...]:
        """This stage and those beside it."""
        return (self, *self.companions)

    def alive(self) -> list[str]:
        """Instances that EC2 bills and that nobody started by hand."""
        return [one for one in self.region.instances.in_state("pending", "running") if one not in self.by_hand]

    # ------------------------------------------------------------------ waiting
    def wait(self, ready: Callable[[], object], *, what: str) -> None:
        """Raises InVain, naming `what`, after the plan's patience."""
        try:
            self.region.wait(ready, what=what, timeout_s=self.plan.patience_s)
        except TimeoutError as error:
            raise InVain(str(error)) from error

    def wait_for_step(self, step: int) -> None:
        self.wait(lambda: self.step() >= step, what=f"training reaches step {step}")

    def wait_for_status(self, status: str) -> None:
        self.wait(lambda: self.status() == status, what=f"run {self.run} is {status}")

    def wait_for_commit_beyond(self, step: int) -> int:
        """Returns the step of a commit that is newer than `step`."""
        self.wait(lambda: self._committed() > step, what=f"a checkpoint newer than step {step} is committed")
        return self._committed()

    def _committed(self) -> int:
        newest = self.auditor.newest()
        return 0 if newest is None else newest.step

    def wait_for_replacement(self, pieces_before: int) -> None:
        """Until another process has made its first steps."""
        self.wait(lambda: self.pieces() > pieces_before, what="a replacement makes its first step")
        self.say(f"    goes on at step {self.step()} on {self.holder()}")

    # ------------------------------------------------------------------ what the acts note
    def mark(self, moment: str) -> None:
        """Notes the time of something that a verdict asks for."""
        self.moments[moment] = time.time()

    @contextlib.contextmanager
    def expecting(self, why: str, *, settles_s: float = 0.0) -> Iterator[None]:
        """What fails inside the with block, and `settles_s` seconds longer, is this script's own doing."""
        begin = time.time()
        try:
            yield
        finally:
            self.expected.append(Expected(why=why, begin=begin, end=time.time() + settles_s))

    def departs(self, act: str, kind: DepartureKind, instance: str, *, good_step: int, damaged: bool = False) -> None:
        """Notes that the script takes this instance away now."""
        gone = Departure(act=act, kind=kind, instance=instance, at=time.time(), good_step=good_step, damaged=damaged)
        self.departures.append(gone)


def is_running(pid: int) -> bool:
    """Whether a process lives and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rsplit(b")", 1)[1].split()[0]
    except OSError:
        return False
    return state not in (b"Z", b"X") and pid != os.getpid()
