"""The flush order: one line that a shell can carry, and the script that carries it."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from spotproof.contract import orders
from spotproof.contract.limits import ENGAGED_SLOTS_MAX
from spotproof.contract.orders import FlushOrder, bitmap_of, parse_request, request_line, slots_of
from spotproof.contract.states import NoticeKind
from spotproof.errors import ContractError

SHELLS = [
    pytest.param(shell, id=shell.rpartition("/")[2]) for name in ("dash", "bash") if (shell := shutil.which(name))
]


def order(*leavers: int, kind: NoticeKind = NoticeKind.INTERRUPTION, name: str = "0a1b2c3d") -> FlushOrder:
    return FlushOrder(order=name, kind=kind, deadline_at=1_800_000_000, leavers=frozenset(leavers))


@pytest.mark.parametrize(
    ("slots", "bitmap"),
    [((), "0"), ((0,), "1"), ((0, 1), "3"), ((4,), "10"), ((0, 999), "8" + "0" * 248 + "1")],
)
def test_slots_are_a_hex_bitmap(slots: tuple[int, ...], bitmap: str) -> None:
    assert bitmap_of(frozenset(slots)) == bitmap
    assert slots_of(bitmap) == frozenset(slots)


@pytest.mark.parametrize("kind", NoticeKind)
@pytest.mark.parametrize("leavers", [(), (0,), (3, 7, 250), tuple(range(ENGAGED_SLOTS_MAX))])
def test_an_order_reads_back_equal(kind: NoticeKind, leavers: tuple[int, ...]) -> None:
    asked = order(*leavers, kind=kind)
    assert parse_request(request_line(asked)) == asked
    assert parse_request(request_line(asked) + "\n") == asked


@pytest.mark.parametrize(
    "wrong",
    [
        order(ENGAGED_SLOTS_MAX),
        order(0, name=""),
        order(0, name="a,b"),
        order(0, name="A1"),
        order(0, name="x" * 65),
        order(0, name="a\nb"),
        FlushOrder(order="a", kind=NoticeKind.SILENCE, deadline_at=-1, leavers=frozenset()),
    ],
)
def test_what_could_not_be_read_is_not_written(wrong: FlushOrder) -> None:
    with pytest.raises(ContractError, match="flush request"):
        request_line(wrong)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "a,interruption,1",
        "a,interruption,1,0,0",
        "a,interruption,soon,0",
        "a,interruption,-1,0",
        "a,interruption,1.5,0",
        "a,interruption,1,xyz",
        "a,interruption,1,",
        "a,Interruption,1,0",
        "a,alien-invasion,1,0",
        "$(reboot),interruption,1,0",
        "a b,interruption,1,0",
        "../../x,interruption,1,0",
        "a,interruption,1,0\nb,interruption,2,1",
    ],
)
def test_what_is_no_request_is_refused(line: str) -> None:
    with pytest.raises(ContractError):
        parse_request(line)


def test_the_documents_pattern_lets_every_order_through_and_no_shell_word() -> None:
    assert re.search(orders.REQUEST_PATTERN, request_line(order(*range(1000), kind=NoticeKind.BLOCK_EXPIRY)))
    assert not re.search(orders.REQUEST_PATTERN, "a;reboot,interruption,1,0")
    assert not re.search(orders.REQUEST_PATTERN, "`reboot`,interruption,1,0")


# --- the document -----------------------------------------------------------------------------------------------------
def run_script(folder: Path, shell: str, request: str | None) -> subprocess.CompletedProcess[str]:
    script = folder / "_script.sh"
    script.write_text("\n".join(orders.request_script()) + "\n")
    environment = {"PATH": os.environ["PATH"], "SPOTPROOF_RUNTIME_DIR": str(folder / "runtime with a blank")}
    if request is not None:
        environment[f"SSM_{orders.DOCUMENT_PARAMETER}"] = request
    return subprocess.run([shell, str(script)], env=environment, capture_output=True, text=True, check=False)


def requests(folder: Path) -> Path:
    return folder / "runtime with a blank" / orders.REQUESTS


@pytest.mark.skipif(not shutil.which("dash"), reason="no dash here")
def test_the_script_is_correct_for_dash(tmp_path: Path) -> None:
    script = tmp_path / "script.sh"
    script.write_text("\n".join(orders.request_script()) + "\n")
    done = subprocess.run(["dash", "-n", str(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_drops_the_order_as_a_request_file(tmp_path: Path, shell: str) -> None:
    asked = order(0, 3)
    done = run_script(tmp_path, shell, request_line(asked))
    assert (done.returncode, done.stderr) == (0, "")
    (found,) = requests(tmp_path).iterdir()
    assert found.name == f"{orders.REQUEST_PREFIX}{asked.order}"
    assert parse_request(found.read_text()) == asked
    assert stat.S_IMODE(found.stat().st_mode) == 0o600


@pytest.mark.parametrize("shell", SHELLS)
def test_the_same_order_twice_is_one_request(tmp_path: Path, shell: str) -> None:
    for _ in range(2):
        assert run_script(tmp_path, shell, request_line(order(1))).returncode == 0
    assert len(list(requests(tmp_path).iterdir())) == 1


@pytest.mark.parametrize("shell", SHELLS)
def test_an_ssm_agent_that_is_too_old_fails_loudly(tmp_path: Path, shell: str) -> None:
    done = run_script(tmp_path, shell, None)
    assert done.returncode != 0
    assert "too old" in done.stderr
    assert not requests(tmp_path).exists()


@pytest.mark.parametrize("shell", SHELLS)
def test_a_place_that_cannot_be_written_fails_the_command(tmp_path: Path, shell: str) -> None:
    (tmp_path / "runtime with a blank").write_text("a file, not a folder")
    assert run_script(tmp_path, shell, request_line(order(1))).returncode != 0


def test_the_request_is_never_pasted_into_the_script() -> None:
    # The parameter travels as a variable: no {{ }} stands in a line that a shell reads.
    document = orders.document()
    assert "{{" not in json.dumps(document["mainSteps"])
    assert document["parameters"] == {
        orders.DOCUMENT_PARAMETER: {
            "type": "String",
            "description": "order,kind,deadline,leavers",
            "allowedPattern": orders.REQUEST_PATTERN,
            "interpolationType": "ENV_VAR",
        }
    }


def test_the_document_needs_nothing_but_a_shell() -> None:
    words = set(re.findall(r"^\s*([a-z]+)\b", "\n".join(orders.request_script()), re.MULTILINE))
    assert words <= {"set", "dir", "umask", "mkdir", "order", "printf", "mv"}
