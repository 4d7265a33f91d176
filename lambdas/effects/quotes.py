"""What EC2 tells of Spot pools beside launching: prices, and placement scores. Cheap calls, and only advice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from spotproof.store.awserrors import aws_failures, error_for

PRODUCT: Final = "Linux/UNIX"
MOST_PAGES: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """The newest price of a pool; `zone_id` is how placement scores name its zone."""

    instance_type: str
    zone: str
    zone_id: str
    usd: float


class Quotes:
    """DescribeSpotPriceHistory and GetSpotPlacementScores."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def prices(self, types: Sequence[str], *, now: int) -> tuple[Quote, ...]:
        """The Spot price of an hour of these types in every zone now. Raises StoreError where EC2 does not answer."""
        newest: dict[tuple[str, str], tuple[datetime, Quote]] = {}
        for row in self._history(types, now):
            at, quote = row["Timestamp"], _quote(row)
            known = newest.get((quote.instance_type, quote.zone))
            if known is None or at > known[0]:
                newest[quote.instance_type, quote.zone] = at, quote
        return tuple(quote for _, quote in newest.values())

    def scores(self, types: Sequence[str], *, nodes: int, region: str) -> dict[str, int]:
        """EC2's placement score, 1 to 10, of `nodes` of these types together, by zone id; of the best ten only."""
        try:
            answer = self._client.get_spot_placement_scores(
                InstanceTypes=list(types),
                TargetCapacity=nodes,
                SingleAvailabilityZone=True,
                RegionNames=[region],
            )
        except aws_failures() as failure:
            raise error_for(failure, doing="get Spot placement scores") from failure
        found = answer.get("SpotPlacementScores") or ()
        return {str(one["AvailabilityZoneId"]): int(one["Score"]) for one in found if one.get("AvailabilityZoneId")}

    def _history(self, types: Sequence[str], now: int) -> Iterator[Mapping[str, Any]]:
        """From now on: EC2 adds the last change before that, which is the price that holds (AWS_FACTS 2.6)."""
        request: dict[str, Any] = {
            "InstanceTypes": list(types),
            "ProductDescriptions": [PRODUCT],
            "StartTime": datetime.fromtimestamp(now, tz=UTC),
        }
        for _ in range(MOST_PAGES):
            try:
                page = self._client.describe_spot_price_history(**request)
            except aws_failures() as failure:
                raise error_for(failure, doing="describe Spot prices") from failure
            yield from page.get("SpotPriceHistory") or ()
            if not page.get("NextToken"):
                return
            request["NextToken"] = page["NextToken"]


def _quote(row: Mapping[str, Any]) -> Quote:
    return Quote(
        instance_type=str(row["InstanceType"]),
        zone=str(row["AvailabilityZone"]),
        zone_id=str(row.get("AvailabilityZoneId", "")),
        usd=float(row["SpotPrice"]),
    )
