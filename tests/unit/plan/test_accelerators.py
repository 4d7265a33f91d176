"""Instance types that fit together, and those that do not."""

from __future__ import annotations

from typing import Any

import pytest
from moto.ec2.models.instance_types import INSTANCE_TYPES

from spotproof.contract.runspec import Pools, RunSpec
from spotproof.errors import BadRunSpec
from spotproof.plan.accelerators import FAMILIES, Accelerators, accelerators_of, check


def spec(*types: str, **pools: Any) -> RunSpec:
    return RunSpec(run="mini", image="i", command=("c",), pools=Pools(types=types, **pools))


def test_the_table_agrees_with_a_public_copy_of_describe_instance_types() -> None:
    """A second source: what the emulator ships. Fractions and other makers' accelerators are not in the table."""
    gpus = {
        name: described["GpuInfo"]["Gpus"][0]
        for name, described in INSTANCE_TYPES.items()
        if described.get("GpuInfo") and described["GpuInfo"]["Gpus"][0]["Count"]
    }
    expected = {
        name: Accelerators(name=gpu["Name"], count=gpu["Count"], memory_mib=gpu["MemoryInfo"]["SizeInMiB"])
        for name, gpu in gpus.items()
    }
    ours = {f"{family}.{size}" for family, row in FAMILIES.items() for size in row.counts}
    assert ours == set(expected)
    assert {name: accelerators_of(name) for name in ours} == expected


@pytest.mark.parametrize(
    ("types", "pools"),
    [
        (("g5.xlarge", "g6.2xlarge"), {}),
        (("g5.12xlarge", "g6e.24xlarge"), {}),
        (("p4d.24xlarge", "p5.48xlarge"), {"accelerator_memory_gib": 40.0}),
        (("p5e.48xlarge", "p5en.48xlarge"), {"same_gpu": True}),
    ],
)
def test_types_that_fit(types: tuple[str, ...], pools: dict[str, Any]) -> None:
    assert check(spec(*types, **pools)) == ()


@pytest.mark.parametrize(
    ("types", "pools", "said"),
    [
        (("g5.xlarge", "g5.12xlarge"), {}, "g5.xlarge has 1, g5.12xlarge has 4"),
        (("g4dn.xlarge", "p4de.24xlarge"), {"accelerator_memory_gib": 10.0}, "has 8"),
        (("p4d.24xlarge", "p4de.24xlarge"), {"accelerator_memory_gib": 41.0}, "p4d.24xlarge has 40.0"),
        (("g5.xlarge", "g6.xlarge"), {"same_gpu": True}, "g5.xlarge has A10G, g6.xlarge has L4"),
    ],
)
def test_types_that_do_not_fit_are_a_configuration_error(
    types: tuple[str, ...], pools: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadRunSpec, match=said) as refused:
        check(spec(*types, **pools))
    assert refused.value.next_step


def test_a_type_that_nobody_knows_is_allowed_with_a_warning() -> None:
    [warning] = check(spec("g5.xlarge", "x99.xlarge", same_gpu=True))
    assert "x99.xlarge" in warning
    assert "g5.xlarge" not in warning
