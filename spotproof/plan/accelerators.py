"""Whether a run's instance types fit together: as many accelerators everywhere, enough memory, one kind if asked.

A fixed-size run has one rank for each accelerator: a replacement with another number of them could not take the place
of the lost node, and one with less memory would die when it loads the state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from spotproof.contract.runspec import RunSpec
from spotproof.errors import BadRunSpec

MIB_PER_GIB: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerators:
    """What one instance has: `count` of `name`, with `memory_mib` each."""

    name: str
    count: int
    memory_mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    name: str
    memory_mib: int
    counts: Mapping[str, int]  # by size


_SMALL: Final = {"xlarge": 1, "2xlarge": 1, "4xlarge": 1, "8xlarge": 1, "16xlarge": 1}
_G: Final = {**_SMALL, "12xlarge": 4, "24xlarge": 4, "48xlarge": 8}
_G7: Final = {"2xlarge": 1, "4xlarge": 1, "8xlarge": 1, "12xlarge": 2, "24xlarge": 4, "48xlarge": 8}

# Source: EC2 DescribeInstanceTypes (GpuInfo) as two public copies of it agree: karpenter-provider-aws of 2026-08-21
# (reference/instance-types) and moto 5.2.5. Fractions of a GPU (g6f, gr6f) are left out: no training runs on them.
FAMILIES: Final[Mapping[str, _Family]] = {
    "g4dn": _Family(name="T4", memory_mib=16_384, counts={**_SMALL, "12xlarge": 4, "metal": 8}),
    "g5": _Family(name="A10G", memory_mib=22_888, counts=_G),
    "g5g": _Family(name="T4g", memory_mib=16_384, counts={**_SMALL, "16xlarge": 2, "metal": 2}),
    "g6": _Family(name="L4", memory_mib=22_888, counts=_G),
    "g6e": _Family(name="L40S", memory_mib=45_776, counts=_G),
    "g7": _Family(name="RTX PRO 4500", memory_mib=32_768, counts=_G7),
    "g7e": _Family(name="RTX PRO Server 6000", memory_mib=98_304, counts=_G7),
    "gr6": _Family(name="L4", memory_mib=22_888, counts={"4xlarge": 1, "8xlarge": 1}),
    "p3dn": _Family(name="V100", memory_mib=32_768, counts={"24xlarge": 8}),
    "p4d": _Family(name="A100", memory_mib=40_960, counts={"24xlarge": 8}),
    "p4de": _Family(name="A100", memory_mib=81_920, counts={"24xlarge": 8}),
    "p5": _Family(name="H100", memory_mib=81_920, counts={"4xlarge": 1, "48xlarge": 8}),
    "p5e": _Family(name="H200", memory_mib=144_384, counts={"48xlarge": 8}),
    "p5en": _Family(name="H200", memory_mib=144_384, counts={"48xlarge": 8}),
    "p6-b200": _Family(name="B200", memory_mib=183_359, counts={"48xlarge": 8}),
    "p6-b300": _Family(name="B300", memory_mib=275_040, counts={"48xlarge": 8}),
}


def accelerators_of(instance_type: str) -> Accelerators | None:
    """What the type has; None for a type that the table does not know."""
    family, _, size = instance_type.partition(".")
    known = FAMILIES.get(family)
    count = None if known is None else known.counts.get(size)
    if known is None or count is None:
        return None
    return Accelerators(name=known.name, count=count, memory_mib=known.memory_mib)


def check(spec: RunSpec) -> tuple[str, ...]:
    """Warnings about types that nobody knows. Raises BadRunSpec for types that do not fit together."""
    known = {kind: found for kind in spec.pools.types if (found := accelerators_of(kind)) is not None}
    counts = {kind: found.count for kind, found in known.items()}
    if not _is_elastic(spec) and len(set(counts.values())) > 1:
        raise BadRunSpec(
            f"pools.types: {_listed(counts)} accelerators: a node could not take another's place",
            next_step="name types with as many accelerators each",
        )
    least_mib = spec.pools.accelerator_memory_gib * MIB_PER_GIB
    small = {kind: found.memory_mib / MIB_PER_GIB for kind, found in known.items() if found.memory_mib < least_mib}
    if small:
        raise BadRunSpec(
            f"pools.types: {_listed(small)} GiB an accelerator, less than pools.accelerator_memory_gib",
            next_step="leave them out, or ask for less",
        )
    names = {kind: found.name for kind, found in known.items()}
    if spec.pools.same_gpu and len(set(names.values())) > 1:
        raise BadRunSpec(
            f"pools.types: {_listed(names)} are different accelerators, and same_gpu is set",
            next_step="name types with one accelerator, or leave same_gpu out: the loss curve is not bit-equal then",
        )
    return tuple(_warnings(spec, known))


def _is_elastic(spec: RunSpec) -> bool:
    return bool(getattr(spec, "elastic", None))


def _warnings(spec: RunSpec, known: Mapping[str, Accelerators]) -> Iterator[str]:
    unknown = [kind for kind in spec.pools.types if kind not in known]
    if unknown:
        yield (
            f"pools.types: spotproof does not know the accelerators of {', '.join(unknown)}: "
            "see to it yourself that each has as many as the others, and enough memory"
        )


def _listed(values: Mapping[str, object]) -> str:
    shown = (f"{value:.1f}" if isinstance(value, float) else str(value) for value in values.values())
    return ", ".join(f"{kind} has {value}" for kind, value in zip(values, shown, strict=True))
