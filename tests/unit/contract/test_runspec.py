"""The run spec: what people write, and refusals that name the key and say what would do."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest
import yaml

from spotproof.contract import limits, runspec
from spotproof.contract.runspec import MarketPolicy, Placement, parse, to_document
from spotproof.errors import BadRunSpec

IMAGE = "111122223333.dkr.ecr.us-east-1.amazonaws.com/train@sha256:" + "0f" * 32


def written(**changes: object) -> dict[str, Any]:
    document: dict[str, Any] = {
        "run": "mini-gpt",
        "image": IMAGE,
        "command": ["python", "train.py"],
        "pools": {"types": ["g5.xlarge"]},
    }
    for key, value in changes.items():
        place, _, name = key.rpartition("__")
        (document.setdefault(place, {}) if place else document)[name] = value
    return document


def test_the_least_that_a_person_writes_has_the_products_defaults() -> None:
    spec = parse(written())
    assert (spec.slots, spec.pools.market, spec.pools.zones) == (1, MarketPolicy.SPOT, ())
    assert (spec.checkpoint.every_s, spec.checkpoint.arenas) == (180.0, 2)
    assert (spec.liveness.heartbeat_s, spec.liveness.silence_s) == (limits.HEARTBEAT_S, limits.SILENCE_S)
    assert (spec.budgets.recoveries, spec.budgets.trainer_failures) == (25, 3)
    assert spec.placement is None


def test_everything_that_a_person_can_write_reads_back_equal() -> None:
    document = written(
        slots=3,
        standby=2,
        elastic="2..3",
        elastic_after_s=0,
        regrow_after_s=5.5,
        start_from="s3://others/gpt/step-500",
        environment=["SEED=1", "EMPTY=", "WORDS=a=b c"],
        pools__types=["g5.xlarge", "p4d.24xlarge", "u-6tb1.metal"],
        pools__zones=["us-east-1a", "us-west-2-lax-1a", "us-gov-west-1b"],
        pools__market="spot-then-on-demand",
        pools__fallback_after=5,
        pools__cooldown_s=60,
        pools__first_on_demand_s=600,
        pools__failback_after_s=0,
        pools__deadline_s=86400,
        pools__deadline_step=5000,
        pools__gang=False,
        pools__gang_patience_s=120,
        pools__efa=False,
        pools__same_gpu=True,
        pools__accelerator_memory_gib=40.5,
        pools__on_demand_usd=["g5.xlarge=1.006", "p4d.24xlarge=32", "u-6tb1.metal=54.6"],
        pools__placement_scores=True,
        checkpoint__every_s=2.5,
        checkpoint__every_steps=100,
        checkpoint__keep=2,
        checkpoint__arenas=1,
        checkpoint__chunk_mib=8,
        checkpoint__when_busy="skip",
        liveness__heartbeat_s=1,
        liveness__silence_s=3,
        liveness__first_heartbeat_s=30,
        budgets__recoveries=2,
        budgets__trainer_failures=1,
        budgets__node_faults=2,
        budgets__dollars=100,
        budgets__wall_clock_s=3600,
        signals__prewarm=True,
        signals__prewarm_keep_s=600,
        signals__storm_after=3,
        signals__moves=False,
        signals__move_lead_s=1200,
        placement={"template": "lt-1", "template_version": "3", "subnets": ["subnet-1=us-east-1a"]},
    )
    spec = parse(document)
    assert to_document(spec) == document
    assert parse(to_document(spec)) == spec
    assert parse(json.loads(json.dumps(to_document(spec)))) == spec
    assert spec.placement == Placement(template="lt-1", template_version="3", subnets=("subnet-1=us-east-1a",))


def test_a_spec_without_placement_reads_back_equal() -> None:
    spec = parse(written())
    assert "placement" not in to_document(spec)
    assert parse(to_document(spec)) == spec


def test_the_example_in_the_docstring_is_one() -> None:
    example = (runspec.__doc__ or "").partition("\n\n")[2].replace("sha256:...", "sha256:" + "0f" * 32)
    assert parse(yaml.safe_load(example)).pools.types == ("g5.xlarge", "g6.xlarge")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("run", "Mini GPT"),
        ("run", ""),
        ("run", 7),
        ("image", "train:latest"),
        ("image", IMAGE[:-1]),
        ("image", IMAGE + "\n"),
        ("image", "--privileged@sha256:" + "0f" * 32),
        ("image", None),
        ("command", []),
        ("command", "python train.py"),
        ("command", ["python", 7]),
        ("command", {"python": "train.py"}),
        ("slots", 0),
        ("slots", -1),
        ("slots", limits.ENGAGED_SLOTS_MAX + 1),
        ("slots", True),
        ("slots", 1.0),
        ("slots", "1"),
        ("environment", ["SEED"]),
        ("environment", ["=1"]),
        ("environment", ["a-b=1"]),
        ("environment", ["1A=1"]),
        ("environment", ["SPOTPROOF_RUN=other"]),
        ("environment", {"SEED": "1"}),
        ("pools", None),
        ("pools", ["g5.xlarge"]),
        ("pools.types", []),
        ("pools.types", ["g5"]),
        ("pools.types", ["g5.xlarge; reboot"]),
        ("pools.types", "g5.xlarge"),
        ("pools.zones", ["us-east-1"]),
        ("pools.zones", ["use1-az2"]),
        ("pools.market", "free"),
        ("pools.market", ["spot"]),
        ("pools.fallback_after", 0),
        ("pools.cooldown_s", 0),
        ("pools.cooldown_s", 7201),
        ("pools.first_on_demand_s", -1),
        ("pools.first_on_demand_s", 60),  # a run that may use Spot only has no first minutes elsewhere
        ("pools.failback_after_s", -1),
        ("pools.deadline_step", 5),
        ("pools.gang", 1),
        ("pools.gang", "yes"),
        ("pools.gang_patience_s", 0),
        ("pools.efa", True),
        ("pools.accelerator_memory_gib", True),
        ("pools.accelerator_memory_gib", -1),
        ("pools.on_demand_usd", ["g5.xlarge"]),
        ("pools.on_demand_usd", ["g5.xlarge=cheap"]),
        ("checkpoint.every_s", 0),
        ("checkpoint.every_s", math.inf),
        ("checkpoint.every_s", math.nan),
        ("checkpoint.every_s", "180"),
        ("checkpoint.every_steps", -1),
        ("checkpoint.keep", 0),
        ("checkpoint.arenas", 0),
        ("checkpoint.arenas", 5),
        ("checkpoint.chunk_mib", -1),
        ("checkpoint.chunk_mib", 513),
        ("liveness.heartbeat_s", 0.5),
        ("liveness.silence_s", 44),
        ("liveness.first_heartbeat_s", 1),
        ("budgets.recoveries", 0),
        ("budgets.trainer_failures", 0),
        ("budgets.node_faults", 0),
        ("budgets.dollars", -1),
        ("budgets.dollars", 5),  # without a price nothing can be counted
        ("budgets.wall_clock_s", -1),
        ("signals", True),
        ("signals.prewarm", 1),
        ("signals.prewarm_keep_s", 0),
        ("signals.storm_after", 0),
        ("signals.storm_after", True),
        ("signals.moves", "no"),
        ("signals.move_lead_s", -1),
        ("placement", ["lt-1"]),
        ("elastic", "2-4"),
        ("elastic", "4..2"),
        ("elastic", "1..2"),  # of a run of one node
        ("standby", -1),
        ("standby", 1),  # of a run of one node
    ],
)
def test_a_refusal_names_the_key(key: str, value: object) -> None:
    with pytest.raises(BadRunSpec, match=re.escape(key)):
        parse(written(**{key.replace(".", "__"): value}))


@pytest.mark.parametrize("key", ["run", "image", "command", "pools"])
def test_what_is_missing_is_named(key: str) -> None:
    document = written()
    del document[key]
    with pytest.raises(BadRunSpec, match=f"{key} is missing"):
        parse(document)


def test_a_missing_key_inside_is_named_with_its_place() -> None:
    with pytest.raises(BadRunSpec, match=r"pools\.types is missing"):
        parse(written(pools={}))
    with pytest.raises(BadRunSpec, match=r"placement\.template_version is missing"):
        parse(written(placement={"template": "lt-1", "subnets": []}))


@pytest.mark.parametrize(
    ("key", "named"), [("commnad", "commnad"), ("pools__type", "pools.type"), ("checkpoint__every", "checkpoint.every")]
)
def test_a_key_that_nobody_knows_is_named_and_the_known_ones_are_offered(key: str, named: str) -> None:
    with pytest.raises(BadRunSpec, match=re.escape(f"{named}: unknown key")) as caught:
        parse(written(**{key: 1}))
    assert "known are" in caught.value.next_step


@pytest.mark.parametrize("document", [None, [], "run: x", 7])
def test_what_is_no_mapping_is_refused(document: object) -> None:
    with pytest.raises(BadRunSpec, match="mapping"):
        parse(document)


def test_every_limit_of_a_run_says_what_would_do() -> None:
    with pytest.raises(BadRunSpec) as caught:
        parse(written(checkpoint__arenas=9))
    assert caught.value.next_step == "1 to 4"
