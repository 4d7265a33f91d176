"""The loss curve over losses is the uninterrupted one, bit by bit: three nodes, in every way of losing one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spotproof.rendezvous.joining import leave
from tests.lab.nodes import Lab
from tests.lab.test_pitfalls import RECOVERY_S, begun, curve

pytestmark = [pytest.mark.torch, pytest.mark.slow]
STEPS = 60
PACE_S = 0.06

MakeLab = Callable[..., Lab]


def ended(lab: Lab) -> Lab:
    lab.until(lambda: len({one["rank"] for one in lab.events("state")}) == 3, limit_s=90.0, what="the end")
    return lab


def same(lab: Lab, whole: Lab) -> None:
    assert curve(lab, STEPS) == curve(whole, STEPS)
    assert {one["digest"] for one in lab.events("state")} == {one["digest"] for one in whole.events("state")}
    made = {(one["step"], one["rank"]): one["ids"] for one in lab.events("step")}
    assert made == {(one["step"], one["rank"]): one["ids"] for one in whole.events("step")}


def uninterrupted(make_lab: MakeLab, **plan: object) -> Lab:
    return ended(begun(make_lab("whole", steps=STEPS, pace_s=0.0, **plan)))


def test_pitfall_9_bit_equal_ddp_hard_kill(make_lab: MakeLab) -> None:
    lab = begun(make_lab("killed", steps=STEPS, pace_s=PACE_S), steps=12)
    for number, rank in ((3, 0), (4, 2)):
        at = lab.kill(lab.members()[rank])
        lab.start(f"n{number}")
        lab.recovered_after(at, limit_s=RECOVERY_S)
        lab.until_steps(7, limit_s=RECOVERY_S)
    same(ended(lab), uninterrupted(make_lab))


def test_pitfall_9_bit_equal_ddp_kill_during_recovery(make_lab: MakeLab) -> None:
    lab = begun(make_lab("killed", steps=STEPS, pace_s=PACE_S), steps=12)
    lab.kill(lab.members()[1])
    lab.start("n3")
    lab.until_member("n3", limit_s=RECOVERY_S)
    at = lab.kill(lab.members()[0])
    lab.start("n4")
    lab.recovered_after(at, limit_s=RECOVERY_S)
    same(ended(lab), uninterrupted(make_lab))


@pytest.mark.parametrize("rank", [0, 1])
def test_pitfall_9_MN_04_bit_equal_ddp_graceful_leave_loses_no_step(make_lab: MakeLab, rank: int) -> None:
    lab = begun(make_lab("left", steps=STEPS, pace_s=PACE_S, every=1000), steps=12)
    before = lab.members()
    stopped_at = leaves(lab, before[rank])
    lab.start("n3")
    same(ended(lab), uninterrupted(make_lab))
    again = [one["step"] for one in lab.events("step") if one["node"] == "n3"]
    assert again[0] == stopped_at + 1


def leaves(lab: Lab, node: str) -> int:
    """A notice on one node: all ranks park at one step, then its agent takes it out. Returns the step."""
    (lab.folder / f"notice-{node}").touch()
    lab.until(lambda: len(lab.events("parked")) == 3, limit_s=RECOVERY_S, what="all ranks parked")
    (stopped_at,) = {one["step"] for one in lab.events("parked")}
    lab.until((lab.folder / f"step-{stopped_at:06d}").exists, limit_s=RECOVERY_S, what="the save")
    (lab.folder / f"notice-{node}").unlink()
    leave(lab.table, run="lab", node=node)
    lab.stop_launcher(node)
    return int(stopped_at)


def test_CW_13_a_save_that_takes_longer_than_the_launchers_patience_is_whole(make_lab: MakeLab) -> None:
    """The flush does not go through the launcher's signal: torchrun kills its workers a second after SIGTERM here."""
    lab = make_lab(steps=STEPS, pace_s=PACE_S, every=1000)
    for node in ("n0", "n1", "n2"):
        lab.start(node, environment={"LAB_SAVE_S": "4", "LAB_PATIENCE_S": "1"})
    lab.until_steps(12, limit_s=90.0)
    stopped_at = leaves(lab, lab.members()[0])
    lab.start("n3")
    ended(lab)
    assert next(one["step"] for one in lab.events("step") if one["node"] == "n3") == stopped_at + 1


@pytest.mark.parametrize("rank", [0, 2])
def test_pitfall_9_bit_equal_fsdp2_hard_kill(make_lab: MakeLab, rank: int) -> None:
    sharded = {"LAB_MODEL": "fsdp2"}
    whole = make_lab("whole", steps=STEPS, pace_s=0.0)
    lab = make_lab("killed", steps=STEPS, pace_s=PACE_S)
    for one in (whole, lab):
        for node in ("n0", "n1", "n2"):
            one.start(node, environment=sharded)
    lab.until_steps(12, limit_s=90.0)
    at = lab.kill(lab.members()[rank])
    lab.start("n3", environment=sharded)
    lab.recovered_after(at, limit_s=RECOVERY_S)
    same(ended(lab), ended(whole))
