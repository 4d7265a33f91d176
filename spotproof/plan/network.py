"""How fast an instance type sends to S3 for longer than a moment: what a flush may count on before it is measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

DEMONSTRATED_GBIT_S: Final = 64.0
"""The most that one node was ever shown to move to or from S3 (8 GB/s on 100 Gb/s cards); the rest is a promise."""

_G: Final = {"xlarge": 2.5, "2xlarge": 5, "4xlarge": 10, "8xlarge": 25, "16xlarge": 25, "12xlarge": 40, "24xlarge": 50}

# Source: EC2 DescribeInstanceTypes (BaselineBandwidthInGbps of the first card) as moto 5.2.5 has it. The baseline, not
# the burst: a run that trains for hours has spent its credits. Traffic to S3 goes over one card.
BASELINE_GBIT_S: Final[Mapping[str, Mapping[str, float]]] = {
    "g4dn": {"xlarge": 5, "2xlarge": 10, "4xlarge": 20, "8xlarge": 50, "12xlarge": 50, "16xlarge": 50, "metal": 100},
    "g5": {**_G, "48xlarge": 100},
    "g5g": {"xlarge": 1.25, "2xlarge": 2.5, "4xlarge": 5, "8xlarge": 12, "16xlarge": 25, "metal": 25},
    "g6": {**_G, "48xlarge": 100},
    "g6e": {
        "xlarge": 2.5,
        "2xlarge": 5,
        "4xlarge": 20,
        "8xlarge": 25,
        "16xlarge": 35,
        "12xlarge": 100,
        "24xlarge": 200,
        "48xlarge": 400,
    },
    "g7": {"2xlarge": 40, "4xlarge": 80, "8xlarge": 100, "12xlarge": 175, "24xlarge": 350, "48xlarge": 350},
    "g7e": {"2xlarge": 50, "4xlarge": 50, "8xlarge": 100, "12xlarge": 400, "24xlarge": 400, "48xlarge": 400},
    "gr6": {"4xlarge": 10, "8xlarge": 25},
    "p3dn": {"24xlarge": 100},
    "p4d": {"24xlarge": 100},
    "p4de": {"24xlarge": 100},
    "p5": {"4xlarge": 100, "48xlarge": 100},
    "p5e": {"48xlarge": 100},
    "p5en": {"48xlarge": 200},
    "p6-b200": {"48xlarge": 200},
    "p6-b300": {"48xlarge": 350},
}


def bytes_s_of(instance_type: str) -> float | None:
    """Bytes a second to S3; None for a type that the table does not know."""
    family, _, size = instance_type.partition(".")
    gbit_s = BASELINE_GBIT_S.get(family, {}).get(size)
    return None if gbit_s is None else min(gbit_s, DEMONSTRATED_GBIT_S) * 1e9 / 8


def slowest_bytes_s(instance_types: Iterable[str]) -> float | None:
    """Of several types the slowest, because any of them may be the next node; None if none is known."""
    known = [rate for name in instance_types if (rate := bytes_s_of(name)) is not None]
    return min(known, default=None)
