"""CreateFleet: one call, its whole answer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from spotproof.contract.frozen import dataclass
from spotproof.contract.states import Market
from spotproof.errors import Unavailable
from spotproof.store.awserrors import Failure, aws_failures, code_of, kind_of

_MARKETS = {"spot": Market.SPOT, "on-demand": Market.ON_DEMAND, "capacity-block": Market.CAPACITY_BLOCK}
_OUTCOME_UNKNOWN = frozenset({Failure.THROTTLE, Failure.CONFLICT, Failure.NETWORK, Failure.SKEW, Failure.CREDENTIALS})
_REFUSED = frozenset({"AuthFailure"})  # EC2's word on the account, not on the age of our keys: no replay changes it


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetAnswer:
    """Everything that an answer says: each instance with its pool, each error as `type#az#market:code`."""

    instances: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()


class Fleet:
    """EC2 instant fleets. Never DeleteFleets: on an instant fleet it terminates the instances."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def create(self, request: str, token: str, *, market: Market, zones: Mapping[str, str]) -> FleetAnswer:
        """Make the call that the launch record holds. The same request and token launch nothing twice.

        A refusal of the whole request is an answer too (`*:code`). Raises Unavailable where the outcome is unknown or
        the call was throttled: the record stays unfinished and is replayed.
        """
        try:
            answer = self._client.create_fleet(ClientToken=token, **json.loads(request))
        except aws_failures() as failure:
            if kind_of(failure) in _OUTCOME_UNKNOWN and code_of(failure) not in _REFUSED:
                raise Unavailable(
                    f"CreateFleet: {code_of(failure)}", next_step="nothing: the next sweep asks again"
                ) from failure
            return FleetAnswer(errors=(f"*:{code_of(failure)}",))
        return read_answer(answer, market=market, zones=zones)


def read_answer(answer: Mapping[str, Any], *, market: Market, zones: Mapping[str, str]) -> FleetAnswer:
    """Instances and errors of an answer: both can be filled, both can be absent."""
    launched = list(_instances(answer, market, zones))
    return FleetAnswer(
        instances=tuple(instance for instance, _ in launched),
        pools=tuple(pool for _, pool in launched),
        errors=tuple(_error(error, market, zones) for error in answer.get("Errors") or ()),
    )


def _instances(answer: Mapping[str, Any], market: Market, zones: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for group in answer.get("Instances") or ():
        pool = _pool(group, market, zones)
        for instance in group.get("InstanceIds") or ():
            yield instance, pool


def _error(error: Mapping[str, Any], market: Market, zones: Mapping[str, str]) -> str:
    return f"{_pool(error, market, zones)}:{error.get('ErrorCode', 'none')}"


def _pool(entry: Mapping[str, Any], market: Market, zones: Mapping[str, str]) -> str:
    overrides = (entry.get("LaunchTemplateAndOverrides") or {}).get("Overrides") or {}
    instance_type = entry.get("InstanceType") or overrides.get("InstanceType") or ""
    zone = (
        entry.get("AvailabilityZone") or overrides.get("AvailabilityZone") or zones.get(_subnet(entry, overrides), "")
    )
    lifecycle = _MARKETS.get(str(entry.get("Lifecycle", "")), market)
    return f"{instance_type}#{zone}#{lifecycle.value}"


def _subnet(entry: Mapping[str, Any], overrides: Mapping[str, Any]) -> str:
    return str(entry.get("SubnetId") or overrides.get("SubnetId") or "")
