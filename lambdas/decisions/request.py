"""The CreateFleet request and its token. Type instant: one attempt, answered at once, no fleet left behind."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Final

from lambdas.decisions.pools import Asked, Candidate
from spotproof.contract import tags
from spotproof.contract.frozen import dataclass
from spotproof.contract.runspec import Placement
from spotproof.contract.states import Market

TAGGED: Final = ("fleet", "instance", "volume", "network-interface")


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """A gang's nodes: all or nothing, in one zone; over EFA in one instance type too."""

    one_type: bool


def fleet_request(
    asked: Asked, placement: Placement, *, wants: int, launch_tags: dict[str, str], together: Together | None = None
) -> str:
    """The complete request, without its token, as canonical JSON: equal text is an equal request.

    The template is the stack's own, by version number. No maximum price (it only brings more interruptions), and
    never anything that a node wrote.
    """
    request: dict[str, Any] = {
        "Type": "instant",
        "LaunchTemplateConfigs": [
            {
                "LaunchTemplateSpecification": {
                    "LaunchTemplateId": placement.template,
                    "Version": placement.template_version,
                },
                "Overrides": _overrides(asked.candidates),
            }
        ],
        "TargetCapacitySpecification": {
            "TotalTargetCapacity": wants,
            "DefaultTargetCapacityType": _capacity_type(asked.market),
        },
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": [{"Key": key, "Value": value} for key, value in launch_tags.items()]}
            for kind in TAGGED
        ],
        **_options(asked.market, {} if together is None else _all_or_nothing(wants, together)),
    }
    return json.dumps(request, sort_keys=True, separators=(",", ":"))


def token_of(request: str) -> str:
    """The ClientToken: 64 hex digits that change whenever any parameter does (CAP-04)."""
    return hashlib.sha256(request.encode()).hexdigest()


def tags_of(*, stack: str, run: str, launch: int) -> dict[str, str]:
    """The tags of everything that the launch makes."""
    return tags.of_launch(stack=stack, run=run, launch=launch)


def _overrides(candidates: Sequence[Candidate]) -> list[dict[str, str]]:
    return [{"InstanceType": one.instance_type, "SubnetId": one.subnet} for one in candidates]


def _capacity_type(market: Market) -> str:
    match market:
        case Market.SPOT:
            return "spot"
        case Market.ON_DEMAND:
            return "on-demand"
        case Market.CAPACITY_BLOCK:
            return "capacity-block"


def _all_or_nothing(wants: int, together: Together) -> dict[str, Any]:
    one_type = {"SingleInstanceType": True} if together.one_type else {}
    return {"MinTargetCapacity": wants, "SingleAvailabilityZone": True, **one_type}


def _options(market: Market, more: dict[str, Any]) -> dict[str, Any]:
    """Which pools are named is our order (plan.poolorder); between them EC2 chooses, by what it alone knows."""
    match market:
        case Market.SPOT:
            return {
                "SpotOptions": {
                    "AllocationStrategy": "price-capacity-optimized",
                    "InstanceInterruptionBehavior": "terminate",
                    **more,
                }
            }
        case Market.ON_DEMAND:
            return {"OnDemandOptions": {"AllocationStrategy": "lowest-price", **more}}
        case Market.CAPACITY_BLOCK:
            return {}
