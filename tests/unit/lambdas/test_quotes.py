"""What is read of EC2's Spot prices and placement scores: the newest price of each pool, over all pages."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import pytest
from botocore.stub import ANY, Stubber

from lambdas.effects.quotes import Quote, Quotes
from spotproof.errors import Denied, Unavailable
from spotproof.store.clients import Clients

NOW = 1_777_888_800


@pytest.fixture
def stubbed() -> Iterator[tuple[Any, Stubber]]:
    client = boto3.client("ec2", region_name="us-east-1", aws_access_key_id="k", aws_secret_access_key="s")
    with Stubber(client) as stubber:
        yield client, stubber


def row(kind: str, zone: str, usd: str, *, before_s: int = 0) -> dict[str, Any]:
    return {
        "InstanceType": kind,
        "AvailabilityZone": zone,
        "AvailabilityZoneId": f"use1-az{ord(zone[-1]) - 96}",
        "ProductDescription": "Linux/UNIX",
        "SpotPrice": usd,
        "Timestamp": datetime.fromtimestamp(NOW, tz=UTC) - timedelta(seconds=before_s),
    }


def test_the_newest_price_of_each_pool_counts_over_all_pages(stubbed: tuple[Any, Stubber]) -> None:
    client, stubber = stubbed
    asked = {"InstanceTypes": ["g5.xlarge"], "ProductDescriptions": ["Linux/UNIX"], "StartTime": ANY}
    first = [row("g5.xlarge", "us-east-1a", "0.50", before_s=900), row("g5.xlarge", "us-east-1b", "0.30")]
    second = [row("g5.xlarge", "us-east-1a", "0.40"), row("g5.xlarge", "us-east-1b", "0.90", before_s=60)]
    stubber.add_response("describe_spot_price_history", {"SpotPriceHistory": first, "NextToken": "more"}, asked)
    stubber.add_response(
        "describe_spot_price_history", {"SpotPriceHistory": second, "NextToken": ""}, {**asked, "NextToken": "more"}
    )
    assert set(Quotes(client).prices(["g5.xlarge"], now=NOW)) == {
        Quote(instance_type="g5.xlarge", zone="us-east-1a", zone_id="use1-az1", usd=0.4),
        Quote(instance_type="g5.xlarge", zone="us-east-1b", zone_id="use1-az2", usd=0.3),
    }
    stubber.assert_no_pending_responses()


def test_scores_are_asked_by_zone_for_the_whole_run(stubbed: tuple[Any, Stubber]) -> None:
    client, stubber = stubbed
    stubber.add_response(
        "get_spot_placement_scores",
        {"SpotPlacementScores": [{"Region": "us-east-1", "AvailabilityZoneId": "use1-az4", "Score": 7}]},
        {
            "InstanceTypes": ["a1.large", "b1.large", "c1.large"],
            "TargetCapacity": 8,
            "SingleAvailabilityZone": True,
            "RegionNames": ["us-east-1"],
        },
    )
    types = ["a1.large", "b1.large", "c1.large"]
    assert Quotes(client).scores(types, nodes=8, region="us-east-1") == {"use1-az4": 7}


@pytest.mark.parametrize(("code", "error"), [("RequestLimitExceeded", Unavailable), ("UnauthorizedOperation", Denied)])
def test_a_refusal_is_an_error_of_ours(stubbed: tuple[Any, Stubber], code: str, error: type[Exception]) -> None:
    client, stubber = stubbed
    stubber.add_client_error("describe_spot_price_history", code)
    stubber.add_client_error("get_spot_placement_scores", code)
    with pytest.raises(error):
        Quotes(client).prices(["g5.xlarge"], now=NOW)
    with pytest.raises(error):
        Quotes(client).scores(["g5.xlarge"], nodes=1, region="us-east-1")


@pytest.mark.emulator
def test_an_emulator_takes_the_request(moto_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_url)
    found = Quotes(Clients(region="us-east-1").get("ec2")).prices(["g5.xlarge"], now=NOW)
    assert {quote.instance_type for quote in found} <= {"g5.xlarge"}
