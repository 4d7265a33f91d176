"""The pitfalls of a rendezvous that torch's own fall into, as they are met by real launchers on nodes of a lab.

Nodes are network namespaces where they are allowed, else 127.0.0.x. The other pitfalls need no processes: they are in
tests/unit/rendezvous.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spotproof.rendezvous.joining import leave
from tests.lab.nodes import Lab

pytestmark = [pytest.mark.torch, pytest.mark.slow]

START_S = 90.0
RECOVERY_S = 60.0
THREE = ("n0", "n1", "n2")

MakeLab = Callable[..., Lab]


def begun(lab: Lab, *nodes: str, steps: int = 5) -> Lab:
    for node in nodes or THREE:
        lab.start(node)
    lab.until(lambda: lab.newest_step() >= steps, limit_s=START_S, what="start")
    return lab


def steps_of(lab: Lab) -> dict[int, str]:
    """Loss of all ranks together by step; of a step that was made again, the later one."""
    return {one["step"]: one["loss"] for one in lab.events("step")}


def curve(lab: Lab, steps: int) -> list[str]:
    found = steps_of(lab)
    return [found[step] for step in range(1, steps + 1)]


def workers_after(lab: Lab, at: float) -> list[dict[str, Any]]:
    return [one for one in lab.events("start") if one["began_at"] > at]


@pytest.mark.parametrize("rank", [0, 2])
def test_pitfall_1_MN_03_whoever_is_lost_a_replacement_steps_and_every_master_is_alive(
    make_lab: MakeLab, rank: int
) -> None:
    lab = begun(make_lab())
    before = lab.members()
    at = lab.kill(before[rank])
    lab.start("n3")
    lab.recovered_after(at, limit_s=RECOVERY_S)
    assert lab.members() == before | {rank: "n3"}
    alive = {lab.nodes[node].address for node in (*THREE, "n3") if node != before[rank]}
    groups = {one["group"] for one in workers_after(lab, at)}
    assert len(groups) == 1
    assert {group.split(":")[0] for group in groups} <= alive
    assert not groups & {one["group"] for one in lab.events("start") if one["began_at"] < at}


def test_pitfall_4_five_kills_in_a_row_use_up_no_run(make_lab: MakeLab) -> None:
    lab = begun(make_lab())
    for number, rank in enumerate((0, 1, 2, 0, 1)):
        at = lab.kill(lab.members()[rank])
        lab.start(f"n{number + 3}")
        lab.recovered_after(at, limit_s=RECOVERY_S)
    assert sorted(lab.members()) == [0, 1, 2]
    lab.until_steps(5, limit_s=RECOVERY_S)


def test_pitfall_5_a_node_that_leaves_ends_nobody_and_the_run_can_be_launched_again(make_lab: MakeLab) -> None:
    lab = begun(make_lab(steps=150))
    before = lab.members()
    leave(lab.table, run="lab", node=before[1])
    lab.stop_launcher(before[1])
    lab.start("n3")
    lab.until(lambda: lab.members() == before | {1: "n3"}, limit_s=RECOVERY_S, what="the replacement's seal")
    staying = (before[0], before[2], "n3")
    lab.until(lambda: not any(map(lab.is_alive, staying)), limit_s=RECOVERY_S, what="the end")
    assert lab.newest_step() == 150
    lab.plan.steps = 200
    begun(lab, "n4", "n5", "n6", steps=200)


@pytest.mark.parametrize("sign", ["event", "newcomer"])
def test_pitfall_6_MN_01_a_blackhole_is_bounded_by_the_sign_not_by_the_groups_time_out(
    make_lab: MakeLab, namespaces: bool, sign: str
) -> None:
    if not namespaces:
        pytest.skip("network namespaces are not allowed here: a link cannot be taken down")
    lab = begun(make_lab(group_timeout_s=300.0))
    rank = 0 if sign == "event" else 1
    before = lab.members()
    at = lab.blackhole(before[rank])
    if sign == "event":
        lab.mark_bad()
    lab.start("n3")
    lab.recovered_after(at, limit_s=RECOVERY_S)  # a fraction of the group's time-out
    assert lab.members() == before | {rank: "n3"}


def test_a_frozen_node_is_replaced_and_disturbs_nobody_when_it_wakes_up(make_lab: MakeLab) -> None:
    lab = begun(make_lab(group_timeout_s=300.0))
    before = lab.members()
    at = lab.freeze(before[0])
    lab.mark_bad()
    lab.start("n3")
    lab.recovered_after(at, limit_s=RECOVERY_S)
    after = lab.members()
    assert after == before | {0: "n3"}
    lab.thaw(before[0])
    reached = lab.newest_step()
    lab.until(
        lambda: lab.newest_step() > reached + 100, limit_s=RECOVERY_S, what="training beside the one that woke up"
    )
    assert lab.members() == after
    assert not [one for one in lab.events("step") if one["node"] == before[0] and one["at"] > at + 1.0]


def test_MN_05_the_replacement_is_lost_while_it_recovers_three_times_in_a_row(make_lab: MakeLab) -> None:
    lab = begun(make_lab())
    before = lab.members()
    at = lab.kill(before[2])
    for number in (3, 4, 5):
        lab.start(f"n{number}")
        lab.until_member(f"n{number}", limit_s=RECOVERY_S)
        at = lab.kill(f"n{number}")
    lab.start("n6")
    lab.recovered_after(at, limit_s=RECOVERY_S)
    assert lab.members() == before | {2: "n6"}


def test_pitfall_9_samples_are_the_same_at_three_two_and_four_nodes(make_lab: MakeLab) -> None:
    lab = begun(make_lab(nodes=(2, 4), config={"last_call": 2}, every=1))
    at = lab.kill(lab.members()[1])
    lab.recovered_after(at, limit_s=RECOVERY_S)
    assert len(lab.members()) == 2
    lab.start("n3")
    lab.start("n4")
    lab.until_steps(10, limit_s=RECOVERY_S)
    lab.mark_bad()  # what the control plane does at a checkpoint boundary
    lab.until(lambda: len(lab.members()) == 4, limit_s=RECOVERY_S, what="the seal of four")
    grown_at = lab.newest_step()
    lab.until(lambda: lab.events("step")[-1]["world"] == 4, limit_s=RECOVERY_S, what="steps of four")
    lab.until_steps(10, limit_s=RECOVERY_S)
    assert sorted({one["world"] for one in lab.events("step")}) == [2, 3, 4]
    killed_in = max(one["step"] for one in lab.events("step") if one["world"] == 3)
    for step in range(1, grown_at + 5):
        made = [one for one in lab.events("step") if one["step"] == step]
        last = [one for one in made if one["group"] == made[-1]["group"]]
        ids = sorted(number for one in last for number in one["ids"])
        wanted = list(range((step - 1) * 12, step * 12))
        if step == killed_in and len(last) == 2:  # who was killed had done this step and could not say so any more
            untold = [number for number in wanted if number not in ids]
            assert untold in [wanted[rank::3] for rank in range(3)]  # its share of the step, and nothing else
        else:
            assert ids == wanted
