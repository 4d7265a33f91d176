"""Prices of what a stack has while nothing runs, in US dollars, for us-east-1; other Regions are up to a third dearer.

One file, so that one look updates it. `AS_OF` is when they were last compared with the pages that `source` names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

AS_OF: Final = "2026-02"
REGION: Final = "us-east-1"
HOURS_A_MONTH: Final = 730


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What one unit costs. `free` units a month cost nothing in any account, for ever, all stacks together."""

    usd: float
    unit: str
    source: str
    free: float = 0


_CLOUDWATCH: Final = "aws.amazon.com/cloudwatch/pricing"
_LAMBDA: Final = "aws.amazon.com/lambda/pricing"
_DYNAMODB: Final = "aws.amazon.com/dynamodb/pricing/on-demand"
_VPC: Final = "aws.amazon.com/vpc/pricing"

ALARM: Final = Price(usd=0.10, unit="alarm", source=_CLOUDWATCH, free=10)
DASHBOARD: Final = Price(usd=3.00, unit="dashboard of up to 50 metrics", source=_CLOUDWATCH, free=3)
LARGE_DASHBOARD: Final = Price(usd=3.00, unit="dashboard of more than 50 metrics", source=_CLOUDWATCH)
METRIC: Final = Price(usd=0.30, unit="custom metric", source=_CLOUDWATCH, free=10)
LOG_GIB: Final = Price(usd=0.50, unit="GiB of logs written", source=_CLOUDWATCH, free=5)
INVOCATION: Final = Price(usd=0.20e-6, unit="invocation", source=_LAMBDA, free=1e6)
GIB_SECOND: Final = Price(usd=0.0000133334, unit="GiB-second on arm64", source=_LAMBDA, free=400_000)
QUEUE_REQUEST: Final = Price(usd=0.40e-6, unit="request", source="aws.amazon.com/sqs/pricing", free=1e6)
LIST_REQUEST: Final = Price(usd=5.0e-6, unit="LIST request", source="aws.amazon.com/s3/pricing")
READ_UNIT: Final = Price(usd=0.125e-6, unit="read request unit", source=_DYNAMODB)
TICK: Final = Price(usd=1.00e-6, unit="invocation", source="aws.amazon.com/eventbridge/pricing (Scheduler)", free=14e6)
INTERFACE_HOUR: Final = Price(usd=0.01, unit="endpoint and zone, an hour", source="aws.amazon.com/privatelink/pricing")
NAT_HOUR: Final = Price(usd=0.045, unit="NAT gateway, an hour", source=_VPC)
ADDRESS_HOUR: Final = Price(usd=0.005, unit="public IPv4 address, an hour", source=_VPC)
KEY: Final = Price(usd=1.00, unit="customer managed key", source="aws.amazon.com/kms/pricing")

INTERFACE_MONTH_USD: Final = INTERFACE_HOUR.usd * HOURS_A_MONTH
NAT_MONTH_USD: Final = (NAT_HOUR.usd + ADDRESS_HOUR.usd) * HOURS_A_MONTH
