"""One emulated region for the tests of the plane, with a small hand-made stack in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rehearsal.region import Region
from tests.rehearsal import handmade


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The region and the outputs of the stack in it."""

    region: Region
    outputs: dict[str, str]

    def names(self, part: str) -> list[str]:
        """Functions whose name holds `part`."""
        return [name for name in self.region.functions.names() if part in name]

    def queue(self, logical_id: str) -> str:
        resource = self.region.deployed.get("plane", logical_id)
        assert resource is not None
        return resource.physical_id.rsplit("/", 1)[-1]

    def launch(self, tag: str, **changes: Any) -> dict[str, Any]:
        """CreateFleet for one g6.xlarge of us-east-1b, tagged `test=tag`."""
        request: dict[str, Any] = {
            "Type": "instant",
            "LaunchTemplateConfigs": [
                {
                    "LaunchTemplateSpecification": {"LaunchTemplateId": self.outputs["Template"], "Version": "1"},
                    "Overrides": [{"InstanceType": "g6.xlarge", "SubnetId": self.subnet("us-east-1b")}],
                }
            ],
            "TargetCapacitySpecification": {"TotalTargetCapacity": 1, "DefaultTargetCapacityType": "spot"},
            "TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "test", "Value": tag}]}],
        }
        answer: dict[str, Any] = self.region.client("ec2").create_fleet(**(request | changes))
        return answer

    def booted(self, tag: str) -> str:
        """The id of a new instance whose user data has run to its end."""
        self.region.market.set({("g6.xlarge", "us-east-1b"): 1})
        instance_id = str(self.launch(tag)["Instances"][0]["InstanceIds"][0])
        node = self.region.hosts.nodes
        ready = "container-up"
        self.region.wait(
            lambda: instance_id in node and (node[instance_id].runtime_dir / ready).exists(),
            what=f"{instance_id} boots",
        )
        return instance_id

    def subnet(self, zone: str) -> str:
        subnets = self.region.client("ec2").describe_subnets()["Subnets"]
        return next(str(s["SubnetId"]) for s in subnets if s["AvailabilityZone"] == zone)


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The region lives as long as the session: tests name what is theirs and take nothing for granted."""
    with Region(tmp_path_factory.mktemp("region"), seed=1, time_scale=0.01) as region:
        yield Stack(region=region, outputs=region.deploy_template("plane", json.dumps(handmade.template())))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path
