"""The command line: one JSON document on stdout, errors that say what to do, exit code 78 where a person has to act."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from spotproof.cli.main import commands, exit_code_of
from spotproof.cli.stackoutputs import Stack, stack_of
from spotproof.cli.submit import placed, read_spec, write
from spotproof.contract import keys, names, runspec
from spotproof.contract.items import NO_INSTANCE
from spotproof.contract.runspec import Placement
from spotproof.contract.states import RunStatus
from spotproof.errors import ArenaRefused, BadRunSpec, BadSettings, SpotproofError
from spotproof.store.head import Heads
from spotproof.store.history import Histories
from spotproof.store.live import LiveIndex
from spotproof.store.local import IN_MEMORY, LocalTable
from spotproof.store.slots import Slots
from spotproof.store.table import Item, Write

IMAGE = "111122223333.dkr.ecr.us-east-1.amazonaws.com/train@sha256:" + "a" * 64
SPEC: dict[str, Any] = {
    "run": "mini",
    "image": IMAGE,
    "command": ["python", "train.py"],
    "pools": {"types": ["g5.xlarge"], "zones": ["us-east-1a"]},
}
OUTPUTS = {
    names.OUTPUT_TABLE: "table",
    names.OUTPUT_REGION: "us-east-1",
    names.OUTPUT_TEMPLATE_ID: "lt-0123",
    names.OUTPUT_TEMPLATE_VERSION: "4",
    names.OUTPUT_SUBNETS: "subnet-a=us-east-1a,subnet-b=us-east-1b",
}
STACK = Stack(
    table="table",
    region="us-east-1",
    placement=Placement(
        template="lt-0123", template_version="4", subnets=("subnet-a=us-east-1a", "subnet-b=us-east-1b")
    ),
)


def call(*words: str) -> Result:
    return CliRunner().invoke(commands, list(words))


def files(folder: Path, spec: dict[str, Any] = SPEC, outputs: dict[str, str] = OUTPUTS) -> tuple[Path, Path]:
    (folder / "run.yaml").write_text(json.dumps(spec))  # JSON is YAML
    (folder / "outputs.json").write_text(json.dumps({"spotproof-prod": outputs}))
    return folder / "run.yaml", folder / "outputs.json"


def test_cli_03_stdout_is_one_json_document(tmp_path: Path) -> None:
    run, outputs = files(tmp_path)
    done = call("submit", str(run), "--outputs", str(outputs), "--dry-run", "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["written"] is False
    assert runspec.parse(document["spec"]).placement == STACK.placement


def test_cli_03_warnings_and_errors_stay_off_stdout(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "spotproof.cli.main", "status", "mini", "--local", str(tmp_path), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == ""
    assert "holds no run" in done.stderr
    assert done.returncode == 1


def test_the_version_is_the_packages() -> None:
    assert call("--version").output.startswith("spotproof, version ")


def test_every_command_has_a_help_page() -> None:
    for name in ("run", "agent", "submit", "status", "report"):
        done = call(name, "--help")
        assert done.exit_code == 0
        assert done.output.startswith("Usage: ")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"run": "Not_A_Run"}, "run: 'Not_A_Run' is not a run id"),
        ({"image": "train:latest"}, "pin it by digest"),
        ({"slots": 1001}, "slots: 1001 is not possible"),
        ({"colour": "blue"}, "colour: unknown key"),
    ],
)
def test_a_spec_that_cannot_run_is_refused_by_its_key(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    run, _ = files(tmp_path, {**SPEC, **change})
    with pytest.raises(BadRunSpec) as refused:
        read_spec(run)
    assert says in str(refused.value)
    assert str(run) in str(refused.value)
    assert exit_code_of(refused.value) == 78


@pytest.mark.parametrize("text", ["{", "a: b: c", "- just\n- a list"])
def test_a_file_that_is_no_spec_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(text)
    with pytest.raises(BadRunSpec, match=r"odd\.yaml"):
        read_spec(path)
    with pytest.raises(BadRunSpec, match="No such file"):
        read_spec(tmp_path / "absent.yaml")


def test_a_zone_without_a_subnet_is_refused(tmp_path: Path) -> None:
    run, _ = files(tmp_path, {**SPEC, "pools": {"types": ["g5.xlarge"], "zones": ["us-east-1f"]}})
    with pytest.raises(BadRunSpec, match="us-east-1f"):
        placed(read_spec(run), STACK)


def test_a_stack_is_named_once_and_has_its_outputs(tmp_path: Path) -> None:
    _, outputs = files(tmp_path)
    assert stack_of(name=None, file=outputs) == STACK
    for name, file in ((None, None), ("a", outputs)):
        with pytest.raises(BadSettings, match="which stack"):
            stack_of(name=name, file=file)
    _, bare = files(tmp_path, outputs={names.OUTPUT_TABLE: "t"})
    with pytest.raises(BadSettings, match=names.OUTPUT_TEMPLATE_ID):
        stack_of(name=None, file=bare)


class Dies(Exception):
    """The operator's laptop is closed."""


class DyingTable(LocalTable):
    """Dies before its n-th write."""

    def __init__(self, path: Path, *, at: int) -> None:
        super().__init__(path)
        self.left = at

    def write(self, op: Write) -> Item:
        self.left -= 1
        if self.left < 0:
            raise Dies
        return super().write(op)


@pytest.mark.parametrize("at", range(6))
def test_a_submit_that_is_cut_off_anywhere_is_repaired_by_the_same_submit(tmp_path: Path, at: int) -> None:
    spec = placed(runspec.parse(SPEC), STACK)
    with DyingTable(tmp_path / "table", at=at) as table:
        try:
            write(spec, table, now=100)
        except Dies:
            assert LiveIndex(table).read("mini") is None  # nobody looks at a run that is not whole
    with LocalTable(tmp_path / "table") as table:
        write(spec, table, now=101)
        head, slot = Heads(table).read("mini"), Slots(table).read("mini", 0)
        assert head is not None
        assert (head.status, head.slots) == (RunStatus.ACTIVE, 1)
        assert slot is not None
        assert slot.holder_instance == NO_INSTANCE
        assert LiveIndex(table).read("mini") is not None
        assert len(Histories(table).list("mini")) in (1, 2)


def test_another_spec_under_the_same_id_is_refused() -> None:
    spec = placed(runspec.parse(SPEC), STACK)
    other = placed(runspec.parse({**SPEC, "command": ["false"]}), STACK)
    with LocalTable(IN_MEMORY) as table:
        write(spec, table, now=100)
        with pytest.raises(BadRunSpec, match="exists with another spec"):
            write(other, table, now=100)
        head = Heads(table).read("mini")
        assert head is not None
        Heads(table).move(head, RunStatus.DONE, now=101)
        with pytest.raises(BadRunSpec, match="mini is done"):
            write(spec, table, now=102)


def test_the_spec_in_the_table_names_the_image_for_user_data() -> None:
    with LocalTable(IN_MEMORY) as table:
        write(placed(runspec.parse(SPEC), STACK), table, now=100)
        item = table.get(keys.spec("mini"))
        assert item is not None
        assert item["image"] == IMAGE


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"SPOTPROOF_LOCAL_DIR": "x", "SPOTPROOF_TABLE": "t"}, "are both set"),
        ({"SPOTPROOF_LOCAL_DIR": "x", "SPOTPROOF_RUN": "Not_A_Run"}, "not a run id"),
        ({"SPOTPROOF_TABLE": "t"}, "SPOTPROOF_BUCKET is not set"),
    ],
)
@pytest.mark.parametrize("words", [("run", "--", "true"), ("agent",)])
def test_settings_that_contradict_are_named(
    tmp_path: Path, environ: dict[str, str], says: str, words: tuple[str, ...]
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "spotproof.cli.main", *words],
        env={"PATH": "/usr/bin:/bin", **environ},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 78, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_command_that_cannot_be_started_and_one_that_is_missing(tmp_path: Path) -> None:
    for words, says in ((("no-such-program",), "cannot be started"), ((), "there is no command")):
        done = subprocess.run(
            [sys.executable, "-m", "spotproof.cli.main", "run", "--local", str(tmp_path / "run"), "--", *words],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 78, done.stderr
        assert says in done.stderr


def test_only_what_a_person_has_to_change_is_78() -> None:
    assert [exit_code_of(error) for error in (ArenaRefused("x"), BadSettings("x"), SpotproofError("x"))] == [78, 78, 1]
