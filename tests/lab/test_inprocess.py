"""Recovery inside the processes: survivors keep their memory, whoever is lost."""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.lab.nodes import RESTARTED, ROOT, Lab
from tests.lab.test_pitfalls import begun, curve

pytestmark = [pytest.mark.torch, pytest.mark.slow]
RECOVERY_S = 30.0


@pytest.mark.parametrize("recoveries", [8, pytest.param(30, marks=pytest.mark.full)])
def test_pitfall_8_recoveries_in_the_process_end_no_run_and_are_bit_equal(
    make_lab: Callable[..., Lab], record_testsuite_property: Callable[[str, object], None], recoveries: int
) -> None:
    lab = begun(make_lab("killed", backend="in-process", steps=1_000_000, pace_s=0.01))
    chance = random.Random(8)
    took_s = []
    for number in range(recoveries):
        at = lab.kill(lab.members()[chance.randrange(3)])
        lab.start(f"n{number + 3}")
        took_s.append(lab.recovered_after(at, limit_s=RECOVERY_S))
        lab.until_steps(3, limit_s=RECOVERY_S)
    restarts = sum(path.read_text().count(RESTARTED) for path in lab.folder.glob("*.log"))
    print(f"median {statistics.median(took_s):.2f} s, worst {max(took_s):.2f} s, {restarts} by the watchdog")
    record_testsuite_property(f"{recoveries} in-process median_s", round(statistics.median(took_s), 2))
    record_testsuite_property(f"{recoveries} in-process ended by the watchdog", restarts)
    reached = lab.newest_step() - 1
    made: dict[tuple[int, int], str] = {}
    for one in lab.events("step"):
        assert made.setdefault((one["step"], one["rank"]), one["loss"]) == one["loss"], (
            "a step was made twice, otherwise"
        )
    whole = begun(make_lab("whole", backend="in-process", steps=reached, pace_s=0.0), steps=reached)
    assert curve(lab, reached) == curve(whole, reached)
    assert restarts == 0  # not one hang: gloo does not always let go, so nobody waits for gloo


def test_pitfall_8_members_lost_while_the_next_generation_forms_hang_nobody(make_lab: Callable[..., Lab]) -> None:
    lab = begun(make_lab(backend="in-process", group_timeout_s=300.0))
    before = lab.members()
    lab.kill(before[0])
    at = 0.0
    for number in (3, 4, 5):
        lab.start(f"n{number}")
        lab.until_member(f"n{number}", limit_s=RECOVERY_S)
        at = lab.kill(f"n{number}")  # the others wait for its connection, its store, or its part of the state
    lab.start("n6")
    lab.recovered_after(at, limit_s=RECOVERY_S)  # a tenth of the group's time-out: no member's silence is waited for
    assert lab.members() == before | {0: "n6"}
    assert not any(RESTARTED in path.read_text() for path in lab.folder.glob("*.log"))


def test_pitfall_8_a_come_out_that_hangs_ends_the_process_for_its_launcher() -> None:
    program = """
import time
from spotproof.rendezvous.inprocess import watchdog
with watchdog(0.2):
    time.sleep(60)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=60, check=False)
    assert done.returncode == 70


def test_a_blackhole_ends_no_process_and_no_group_time_out_is_waited_for(
    make_lab: Callable[..., Lab], namespaces: bool
) -> None:
    if not namespaces:
        pytest.skip("network namespaces are not allowed here: a link cannot be taken down")
    lab = begun(make_lab(backend="in-process", group_timeout_s=300.0))
    before = lab.members()
    at = lab.blackhole(before[0])
    lab.mark_bad()
    lab.start("n3")
    lab.recovered_after(at, limit_s=RECOVERY_S)
    assert lab.members() == before | {0: "n3"}
    processes = {
        one["node"]: {other["pid"] for other in lab.events("group") if other["node"] == one["node"]}
        for one in lab.events("group")
    }
    assert all(len(processes[node]) == 1 for node in (before[1], before[2]))
