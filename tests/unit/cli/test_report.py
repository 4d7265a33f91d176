"""`spotproof report`: a run's story from the table, as a page and as a summary."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from spotproof.cli.main import commands
from spotproof.cli.report import story_of, write_page
from spotproof.contract import keys, names
from spotproof.contract.items import Generation, Pool, to_item
from spotproof.contract.states import Market
from spotproof.errors import BadSettings, Missing
from spotproof.store.local import IN_MEMORY, LocalTable
from spotproof.store.members import Memberships
from spotproof.store.table import Put
from tests.fakes.control import REGION, START, SUBNETS, World
from tests.unit.cli.test_status import recovered

RUN = "mini"
AT = 1_777_888_800


def call(*words: str) -> Result:
    return CliRunner().invoke(commands, ["report", *words])


def seal(table: LocalTable, number: int, at: int, *, step: int | None = None) -> None:
    sealed = Generation(
        run=RUN, generation=number, members=(f"0:{number}:local-9-{number}",), sealed_at=at, start_step=step
    )
    Memberships(table).seal(sealed, pointer=None)


def log(folder: Path, name: str, *pieces: tuple[int, range, float]) -> Path:
    """A loss log: (pid, steps, time of the first step) for each process."""
    file = folder / name
    with file.open("w") as lines:
        for pid, steps, at in pieces:
            for step in steps:
                point = {"step": step, "loss": (1 / step).hex(), "at": at + step - steps[0], "pid": pid}
                lines.write(json.dumps(point) + "\n")
    return file


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """A local run that was killed once: two starts, the second from step 20."""
    folder = tmp_path / "run"
    folder.mkdir()
    with LocalTable(folder / names.LOCAL_TABLE) as table:
        seal(table, 1, AT)
        seal(table, 2, AT + 60, step=20)
    return folder


def test_a_runs_page_and_summary_come_from_its_timeline(tmp_path: Path) -> None:
    world = recovered()
    told = story_of(RUN, world.table, losses=None, reference=None, now=world.clock())
    write_page(told, tmp_path / "story.html")
    page = (tmp_path / "story.html").read_text()
    assert "had to be replaced (EC2 took it back, with a notice)" in page
    assert [path.name for path in tmp_path.iterdir()] == ["story.html"]
    assert told.nodes[1].spans[-1].end_at == pytest.approx(world.clock())


def test_a_page_that_cannot_be_written_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    world = recovered()
    told = story_of(RUN, world.table, losses=None, reference=None, now=world.clock())
    with pytest.raises(BadSettings, match="cannot be written"):
        write_page(told, tmp_path / "no" / "folder" / "story.html")
    (tmp_path / "story.html").mkdir()
    with pytest.raises(BadSettings, match="cannot be written"):
        write_page(told, tmp_path / "story.html")
    assert [path.name for path in tmp_path.iterdir()] == ["story.html"]


def test_a_local_run_has_a_story_with_its_losses_beside_an_uninterrupted_run(local: Path, tmp_path: Path) -> None:
    losses = log(tmp_path, "losses.jsonl", (1, range(1, 31), AT + 2), (2, range(21, 41), AT + 62))
    reference = log(tmp_path, "reference.jsonl", (3, range(1, 41), AT))
    page = tmp_path / "story.html"
    done = call(RUN, "--local", str(local), "--losses", str(losses), "--reference", str(reference), "-o", str(page))
    assert done.exit_code == 0, done.output
    assert "loss: 40 steps bit-equal to the uninterrupted run" in done.output
    assert f"the page: {page}" in done.output
    assert "slot 0, node 2" in page.read_text()


def test_a_trainer_that_was_started_again_on_its_node_goes_on_in_the_nodes_segment(local: Path, tmp_path: Path) -> None:
    losses = log(
        tmp_path, "losses.jsonl", (1, range(1, 11), AT + 2), (2, range(11, 31), AT + 20), (3, range(21, 41), AT + 62)
    )
    with LocalTable(local / names.LOCAL_TABLE) as table:
        told = story_of(RUN, table, losses=losses, reference=None, now=AT + 99)
    assert [(one.incarnation, one.points[0].step, one.points[-1].step) for one in told.segments] == [
        (1, 1, 30),
        (2, 21, 40),
    ]


@pytest.mark.parametrize("content", ["nonsense\n", '{"step": 1}\n', "\xff"])
def test_what_is_no_loss_log_is_said_with_the_line(local: Path, tmp_path: Path, content: str) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(content.encode("latin-1") + b"\n")
    done = call(RUN, "--local", str(local), "--losses", str(bad))
    assert isinstance(done.exception, BadSettings)
    assert "is no loss log" in str(done.exception)


def test_a_log_that_is_not_there_is_said(local: Path, tmp_path: Path) -> None:
    done = call(RUN, "--local", str(local), "--losses", str(tmp_path / "none.jsonl"))
    assert isinstance(done.exception, BadSettings)


def test_a_run_that_nobody_knows_is_said() -> None:
    with LocalTable(IN_MEMORY) as table, pytest.raises(Missing, match="no run ghost"):
        story_of("ghost", table, losses=None, reference=None, now=1)


def test_a_run_without_prices_has_no_money() -> None:
    world = recovered()
    told = story_of(RUN, world.table, losses=None, reference=None, now=world.clock())
    assert told.money is None


def test_a_price_that_was_known_when_a_node_came_is_on_the_bill() -> None:
    world = World()
    for zone in SUBNETS.values():
        for kind in ("g5.xlarge", "g6.xlarge"):
            pool = Pool(region=REGION, instance_type=kind, zone=zone, market=Market.SPOT, price_usd=0.36, priced_at=1)
            world.table.write(Put(key=keys.pool(REGION, kind, zone, "spot"), item=to_item(pool)))
    world.started()
    world.clock.advance(3600)
    told = story_of(RUN, world.table, losses=None, reference=None, now=world.clock())
    assert told.money is not None
    assert told.money.spent_usd == pytest.approx(0.36 * (world.clock() - START - 60) / 3600, abs=0.01)
