"""The loss curve over losses is the uninterrupted one, bit by bit: three nodes, in every way of losing one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from spotproof.rendezvous.joining import leave
from tests.lab.nodes import Lab, Plan, Zygote
from tests.lab.test_pitfalls import RECOVERY_S, THREE, curve

pytestmark = [pytest.mark.torch, pytest.mark.slow]
STEPS = 60
PACE_S = 0.06
MODELS = ("ddp", "fsdp2")

MakeLab = Callable[..., Lab]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a training has come to: the loss of each step, the last state, who was given which samples when."""

    curve: list[str]
    state: set[str]
    samples: dict[tuple[int, int], list[int]]


def facts(lab: Lab) -> Facts:
    """Of a lab whose three ranks reach the end."""
    lab.until(lambda: len({one["rank"] for one in lab.events("state")}) == 3, limit_s=90.0, what="the end")
    samples: dict[tuple[int, int], list[int]] = {}
    for one in lab.events("step"):
        known = samples.setdefault((one["step"], one["rank"]), one["ids"])
        assert known == one["ids"], f"step {one['step']} of rank {one['rank']} was made again with other samples"
    return Facts(curve=curve(lab, STEPS), state={one["digest"] for one in lab.events("state")}, samples=samples)


def start(lab: Lab, model: str, *nodes: str, environment: dict[str, str] | None = None) -> None:
    for node in nodes:
        lab.start(node, environment={"LAB_MODEL": model, **(environment or {})})


@pytest.fixture(scope="module")
def uninterrupted(zygote: Zygote, namespaces: bool, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Facts]:
    """The facts of a training that nothing happens to, by model."""
    found: dict[str, Facts] = {}

    def of(model: str) -> Facts:
        if model not in found:
            folder = tmp_path_factory.mktemp(f"whole-{model}")
            with Lab(folder, zygote, namespaces=namespaces, plan=Plan(steps=STEPS, pace_s=0.0)) as lab:
                start(lab, model, *THREE)
                found[model] = facts(lab)
        return found[model]

    return of


Whole = Callable[[str], Facts]


def interrupted(make_lab: MakeLab, model: str, **plan: Any) -> Lab:
    lab = make_lab(steps=STEPS, pace_s=PACE_S, **plan)
    start(lab, model, *THREE)
    lab.until_steps(12, limit_s=90.0)
    return lab


@pytest.mark.parametrize("model", MODELS)
def test_pitfall_9_bit_equal_hard_kill(make_lab: MakeLab, uninterrupted: Whole, model: str) -> None:
    lab = interrupted(make_lab, model)
    for number, rank in ((3, 0), (4, 2)):
        at = lab.kill(lab.members()[rank])
        start(lab, model, f"n{number}")
        lab.recovered_after(at, limit_s=RECOVERY_S)
        lab.until_steps(7, limit_s=RECOVERY_S)
    assert facts(lab) == uninterrupted(model)


@pytest.mark.parametrize("model", MODELS)
def test_pitfall_9_bit_equal_kill_during_recovery(make_lab: MakeLab, uninterrupted: Whole, model: str) -> None:
    lab = interrupted(make_lab, model)
    lab.kill(lab.members()[1])
    start(lab, model, "n3")
    lab.until_member("n3", limit_s=RECOVERY_S)
    at = lab.kill(lab.members()[0])
    start(lab, model, "n4")
    lab.recovered_after(at, limit_s=RECOVERY_S)
    assert facts(lab) == uninterrupted(model)


@pytest.mark.parametrize(("model", "rank"), [("ddp", 0), ("ddp", 1), ("fsdp2", 0)])
def test_pitfall_9_MN_04_bit_equal_graceful_leave_loses_no_step(
    make_lab: MakeLab, uninterrupted: Whole, model: str, rank: int
) -> None:
    lab = interrupted(make_lab, model, every=1000)
    stopped_at = leaves(lab, lab.members()[rank])
    start(lab, model, "n3")
    assert facts(lab) == uninterrupted(model)
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
    facts(lab)
    assert next(one["step"] for one in lab.events("step") if one["node"] == "n3") == stopped_at + 1
