"""The settings file: what it may say, what it may not, and that the shipped one says what the defaults are."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from cdk_app.settings import FILE, RETENTION_DAYS, Network, StackSettings, load, parse
from spotproof.errors import BadSettings
from tests.architecture.tree import ROOT
from tests.synth.synthesis import synthesize


def test_the_shipped_file_says_what_the_defaults_are() -> None:
    document = tomllib.loads((ROOT / FILE).read_text())
    assert parse(document) == StackSettings() == parse({})
    assert set(document) == set(StackSettings.__dataclass_fields__) - {"nat_gateways"}


def test_every_setting_has_its_row_in_the_guide() -> None:
    guide = (ROOT / "docs" / "stack.md").read_text()
    assert [key for key in StackSettings.__dataclass_fields__ if f"`{key}`" not in guide] == []


def test_zones_are_a_number_or_names() -> None:
    assert parse({"zones": 2}).zone_count() == 2
    assert parse({"zones": ["us-west-2a", "us-west-2c"]}).zones == ("us-west-2a", "us-west-2c")


def test_nat_gateways_exist_only_in_a_network_with_nat() -> None:
    assert parse({"network": "nat"}).gateway_count() == 1
    assert parse({"network": "nat", "nat_gateways": 3}).gateway_count() == 3
    assert parse({"network": "endpoints"}).gateway_count() == 0


GUEST: dict[str, Any] = {
    "vpc_id": "vpc-0123456789abcdef0",
    "subnets": ["subnet-0123456789abcdef0=us-east-1a", "subnet-0123456789abcdef1=us-east-1b"],
    "route_tables": ["rtb-0123456789abcdef0"],
}


def test_an_existing_network_says_its_zones_by_its_subnets() -> None:
    settings = parse({**GUEST, "zones": 3})
    assert settings.zone_count() == 2
    assert settings.given_subnets() == {
        "subnet-0123456789abcdef0": "us-east-1a",
        "subnet-0123456789abcdef1": "us-east-1b",
    }


def test_an_existing_network_has_gateway_endpoints_or_gets_them() -> None:
    assert parse({**GUEST, "route_tables": [], "existing_gateway_endpoints": True}).route_tables == ()


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"nmae": "x"}, "nmae", "name, network"),
    ({"name": "Team B"}, "name", "lower-case"),
    ({"name": 3}, "name", "text"),
    ({"network": "vpn"}, "network", "public, nat, endpoints"),
    ({"network": ["nat"]}, "network", "one of"),
    ({"zones": 0}, "zones", "1 to 6"),
    ({"zones": 7}, "zones", "1 to 6"),
    ({"zones": True}, "zones", "whole number"),
    ({"zones": [1, 2]}, "zones", "list of texts"),
    ({"zones": []}, "zones", "1 to 6"),
    ({"zones": ["us-east-1"]}, "zones", "us-east-1a"),
    ({"zones": ["us-east-1a", "us-west-2a"]}, "zones", "one region"),
    ({"zones": ["us-east-1a", "us-east-1a"]}, "zones", "once"),
    ({"nat_gateways": 1}, "nat_gateways", 'network = "nat"'),
    ({"network": "nat", "nat_gateways": 4}, "nat_gateways", "1 to 3"),
    ({"network": "nat", "nat_gateways": 0}, "nat_gateways", "1 to 3"),
    ({"vpc_id": "my-vpc"}, "vpc_id", "vpc-0"),
    ({"vpc_id": GUEST["vpc_id"]}, "subnets", "subnets of the VPC"),
    ({"subnets": GUEST["subnets"]}, "subnets", "vpc_id"),
    ({"route_tables": GUEST["route_tables"]}, "route_tables", "vpc_id"),
    ({"existing_gateway_endpoints": True}, "existing_gateway_endpoints", "vpc_id"),
    ({**GUEST, "subnets": ["subnet-0123456789abcdef0"]}, "subnets", "=us-east-1a"),
    ({**GUEST, "subnets": [GUEST["subnets"][0], GUEST["subnets"][0].replace("f0=", "f2=")]}, "subnets", "one per zone"),
    ({**GUEST, "subnets": [GUEST["subnets"][0], "subnet-0123456789abcdef1=us-west-2b"]}, "subnets", "one region"),
    ({**GUEST, "route_tables": ["rtb"]}, "route_tables", "rtb-0"),
    ({**GUEST, "route_tables": []}, "route_tables", "gateway endpoints"),
    ({**GUEST, "existing_gateway_endpoints": True}, "existing_gateway_endpoints", "not both"),
    ({**GUEST, "zones": ["us-east-1a"]}, "zones", "remove zones"),
    ({**GUEST, "network": "nat", "nat_gateways": 1}, "nat_gateways", "way out"),
    ({"attach_table": "t-1"}, "attach_bucket", "table and the bucket"),
    ({"attach_bucket": "b-1"}, "attach_table", "table and the bucket"),
    ({"attach_table": "arn:aws:dynamodb:x", "attach_bucket": "b-1"}, "attach_table", "output Table"),
    ({"attach_table": "t-1", "attach_bucket": "s3://b"}, "attach_bucket", "output Bucket"),
    ({"drills": "yes"}, "drills", "true or false"),
    ({"strict_metadata": "yes"}, "strict_metadata", "true or false"),
    ({"strict_metadata": True, "data_buckets": ["corpus"]}, "data_buckets", "strict_metadata = false"),
    ({"data_buckets": ["arn:aws:s3:::corpus"]}, "data_buckets", "names of buckets"),
    ({"data_buckets": "corpus"}, "data_buckets", "list of texts"),
    ({"ami_parameter": "ami-0123"}, "ami_parameter", "/a/b"),
    ({"ami_root_device": "sda1"}, "ami_root_device", "/dev/"),
    ({"root_volume_gib": 8}, "root_volume_gib", "60 to"),
    ({"root_volume_gib": 150.0}, "root_volume_gib", "whole number"),
    ({"notify_email": "me"}, "notify_email", "address"),
    ({"launches_per_hour": 0}, "launches_per_hour", "1 to"),
    ({"log_retention_days": 10}, "log_retention_days", "one of 1, 3, 5"),
]


@pytest.mark.parametrize(("document", "key", "advice"), REFUSED, ids=lambda value: str(value)[:40])
def test_a_setting_that_is_not_possible_is_refused_with_its_key_and_the_next_step(
    document: dict[str, Any], key: str, advice: str
) -> None:
    with pytest.raises(BadSettings) as refused:
        parse(document)
    assert refused.value.what.startswith(key)
    assert advice in refused.value.next_step


def test_a_file_that_is_not_there_or_not_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="no settings file"):
        load(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text('name = "a\n')
    with pytest.raises(BadSettings, match=r"broken\.toml is not TOML"):
        load(broken)


def test_every_retention_that_is_offered_exists() -> None:
    from cdk_app.constructs.log_groups import RETENTION

    assert tuple(RETENTION) == RETENTION_DAYS


def test_every_network_has_its_kind_of_subnet() -> None:
    from cdk_app.constructs.network import _KINDS

    assert set(_KINDS) == set(Network)


def test_bad_settings_end_the_synthesis_with_one_line(tmp_path: Path) -> None:
    done = synthesize(tmp_path / "out", tmp_path, settings="zones = 9")
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("spotproof:")]
    assert "zones: 9 is not possible" in line
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "out").glob("*.template.json"))
