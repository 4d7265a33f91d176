"""What only a table in a file can go through: forks, killed writers, several openers, a file that is none."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from spotproof.contract.keys import Key
from spotproof.errors import StoreError
from spotproof.store.local import IN_MEMORY, LocalTable
from spotproof.store.table import Put, Update

ROOT = Path(__file__).resolve().parents[3]
KEY = Key(pk="RUN#r", sk="A")

WRITER = """
import sys
from spotproof.contract.keys import Key
from spotproof.store.local import LocalTable
from spotproof.store.table import Update

with LocalTable(sys.argv[1]) as table:
    while True:
        table.transact([Update(key=Key(pk="RUN#r", sk=sk), increment={"n": 1}) for sk in "AB"])
        print("acknowledged", flush=True)
"""

OPENER = """
import sys
from spotproof.contract.keys import Key
from spotproof.store.local import LocalTable
from spotproof.store.table import Update

sys.stdin.readline()
with LocalTable(sys.argv[1]) as table:
    table.write(Update(key=Key(pk="RUN#r", sk="A"), increment={"n": 1}))
"""


def start(program: str, path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, str(path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_killed_writer_loses_no_acknowledged_write_and_tears_no_transaction(tmp_path: Path) -> None:
    path = tmp_path / "table.sqlite"
    for kill_after in (1, 3, 8):
        before = 0
        if path.exists():
            with LocalTable(path) as table:
                before = int(table.query("RUN#r")[0]["n"])  # type: ignore[call-overload]
        with start(WRITER, path) as writer:
            assert writer.stdout is not None
            for _ in range(kill_after):
                assert writer.stdout.readline() == "acknowledged\n"
            writer.send_signal(signal.SIGKILL)
            acknowledged = kill_after + len(writer.stdout.readlines())
        with LocalTable(path) as table:
            one, other = (item["n"] for item in table.query("RUN#r"))
        assert one == other
        assert one in (before + acknowledged, before + acknowledged + 1)  # the last answer may be lost


def test_processes_that_open_a_new_file_at_once_all_get_in(tmp_path: Path) -> None:
    path = tmp_path / "table.sqlite"
    openers = [start(OPENER, path) for _ in range(4)]
    for opener in openers:
        assert opener.stdin is not None
        opener.stdin.write("go\n")
        opener.stdin.flush()
    for opener in openers:
        _, complaint = opener.communicate(timeout=60)
        assert (opener.returncode, complaint) == (0, "")
    with LocalTable(path) as table:
        [item] = table.query("RUN#r")
    assert item["n"] == 4


def test_a_forked_child_writes_through_a_connection_of_its_own(tmp_path: Path) -> None:
    with LocalTable(tmp_path / "table.sqlite") as table:
        table.write(Put(key=KEY, item={"n": 1}))
        child = os.fork()
        if child == 0:
            table.write(Update(key=KEY, increment={"n": 1}))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert status == 0
        table.write(Update(key=KEY, increment={"n": 1}))
        found = table.get(KEY)
    assert found is not None
    assert found["n"] == 3


def test_what_was_written_is_there_after_opening_again(tmp_path: Path) -> None:
    with LocalTable(tmp_path / "table.sqlite") as table:
        table.write(Put(key=KEY, item={"raw": b"\x00\xff", "who": frozenset({"a"})}))
    with LocalTable(tmp_path / "table.sqlite") as table:
        found = table.get(KEY)
    assert found == {"pk": "RUN#r", "sk": "A", "raw": b"\x00\xff", "who": frozenset({"a"})}


def test_a_file_that_is_no_table_is_named(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are my notes, not a database" * 100)
    with pytest.raises(StoreError, match=r"notes\.txt"):
        LocalTable(path)
    assert path.read_text().startswith("these are my notes")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="nowhere"):
        LocalTable(tmp_path / "nowhere" / "table.sqlite")


def test_a_writer_that_fails_leaves_the_table_as_it_was_and_usable() -> None:
    with LocalTable(IN_MEMORY) as table:
        table.write(Put(key=KEY, item={"n": "text"}))
        with pytest.raises(StoreError, match="no number"):
            table.transact([Put(key=Key(pk="RUN#r", sk="0"), item={}), Update(key=KEY, increment={"n": 1})])
        assert [item["sk"] for item in table.query("RUN#r")] == ["A"]
        table.write(Put(key=KEY, item={"n": 1}))


def test_a_closed_table_cannot_be_used() -> None:
    table = LocalTable(IN_MEMORY)
    table.close()
    with pytest.raises((StoreError, sqlite3.ProgrammingError)):
        table.get(KEY)
