"""EC2 operations beside CreateFleet: what moto does, made to behave as EC2 does."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from moto.ec2 import utils as ec2_utils

from rehearsal.plane.account import Account
from rehearsal.plane.calls import Call
from rehearsal.plane.failures import AwsFailure
from rehearsal.plane.instances import STATES, Instances
from rehearsal.plane.market import Market
from rehearsal.plane.server import Around, Verb
from rehearsal.plane.tokens import Tokens
from rehearsal.plane.wire import WireAnswer

ZONES = "abcd"
# DescribeInstances filters that moto answers with HTTP 500, and the attribute that each means.
MORE_FILTERS = {
    "instance-lifecycle": "lifecycle",
    "capacity-reservation-id": "capacity_reservation_id",  # moto's instances have none: nothing is found
    "client-token": "client_token",
    "network-interface.subnet-id": "subnet_id",
    "spot-instance-request-id": "spot_instance_request_id",
}


class Compute:
    """The verbs and the wrapped operations of EC2. `tag_changed` is told of every instance whose tags change."""

    def __init__(
        self,
        *,
        account: Account,
        market: Market,
        instances: Instances,
        tag_changed: Callable[[str, list[str]], None],
    ) -> None:
        self._account = account
        self._market = market
        self._instances = instances
        self._tag_changed = tag_changed
        self._tokens = Tokens()
        ec2_utils.filter_dict_attribute_mapping.update(MORE_FILTERS)

    def verbs(self) -> dict[tuple[str, str], Verb]:
        return {
            ("ec2", "TerminateInstances"): self.terminate_instances,
            ("ec2", "GetSpotPlacementScores"): self.get_spot_placement_scores,
            ("ec2", "DescribeSpotPriceHistory"): self.describe_spot_price_history,
        }

    def around(self) -> dict[tuple[str, str], Around]:
        return {
            ("ec2", "RunInstances"): self.run_instances,
            ("ec2", "DescribeInstances"): self.describe_instances,
            ("ec2", "CreateTags"): self.change_tags,
            ("ec2", "DeleteTags"): self.change_tags,
        }

    def seen(self, call: Call) -> dict[str, dict[str, str]]:
        """The instances that a TerminateInstances names and that exist, with their tags."""
        named = [str(instance_id) for instance_id in call.params.get("InstanceIds") or []]
        return {one: self._instances.tags(one) for one in named if self._instances.get(one) is not None}

    def terminate_instances(self, call: Call) -> dict[str, Any]:
        """shutting-down at once, terminated a little later, the host killed in between."""
        if call.params.get("DryRun"):
            raise AwsFailure("DryRunOperation", "Request would have succeeded, but DryRun flag is set.", status=412)
        changes = self._instances.terminate(list(call.params["InstanceIds"]))
        return {
            "TerminatingInstances": [
                {
                    "InstanceId": instance_id,
                    "PreviousState": {"Code": STATES[before], "Name": before},
                    "CurrentState": {"Code": STATES[now], "Name": now},
                }
                for instance_id, before, now in changes
            ]
        }

    def get_spot_placement_scores(self, call: Call) -> dict[str, Any]:
        """A score per zone: 9 where the asked capacity has room in some type, 1 where not. Zone ids, as on AWS."""
        wanted, region = int(call.params["TargetCapacity"]), self._account.region
        scores = []
        for number, letter in enumerate(ZONES, start=1):
            room = sum(self._market.room(t, region + letter, "spot") for t in call.params.get("InstanceTypes", []))
            scores.append(
                {"Region": region, "AvailabilityZoneId": f"use1-az{number}", "Score": 9 if room >= wanted else 1}
            )
        if str(call.params.get("SingleAvailabilityZone")).lower() == "true":
            return {"SpotPlacementScores": scores}
        return {"SpotPlacementScores": [{"Region": region, "Score": max(s["Score"] for s in scores)}]}

    def describe_spot_price_history(self, call: Call) -> dict[str, Any]:
        """The price that holds now, one row for each asked type and zone: prices of a rehearsal do not change."""
        region, now = self._account.region, datetime.now(UTC)
        rows = [
            {
                "AvailabilityZone": region + letter,
                "AvailabilityZoneId": f"use1-az{number}",
                "InstanceType": instance_type,
                "ProductDescription": "Linux/UNIX",
                "SpotPrice": f"{self._market.price_of(instance_type, region + letter):.6f}",
                "Timestamp": now,
            }
            for instance_type in call.params.get("InstanceTypes") or []
            for number, letter in enumerate(ZONES, start=1)
        ]
        return {"SpotPriceHistory": rows}

    def run_instances(self, call: Call, proceed: Callable[[], WireAnswer]) -> WireAnswer:
        """moto's RunInstances behind its token and the market; the instances begin their life here."""
        params = call.params
        known = self._tokens.check(params)
        if known is not None:
            return known
        before = {i.id for i in self._account.ec2.all_instances()}
        answer = proceed()
        made = [i for i in self._account.ec2.all_instances() if i.id not in before]
        for instance in made:
            lifecycle = "spot" if instance.lifecycle == "spot" else "on-demand"
            refusal = self._market.take(instance.instance_type, instance.availability_zone, lifecycle)
            if refusal:
                self._forget(made)
                raise AwsFailure(refusal, f"{refusal}: {instance.instance_type} in {instance.availability_zone}")
        for instance in made:
            self._instances.adopt(instance)
        return answer if answer[0] >= 300 else self._tokens.once(params, lambda: answer)

    def _forget(self, made: list[Any]) -> None:
        ids = {instance.id for instance in made}
        reservations = self._account.ec2.reservations
        for key in [k for k, r in reservations.items() if ids & {i.id for i in r.instances}]:
            del reservations[key]

    def describe_instances(self, call: Call, proceed: Callable[[], WireAnswer]) -> WireAnswer:
        """moto's answer without the instances that are too young to be known everywhere."""
        young = self._instances.too_young()
        if not young:
            return proceed()
        asked = set(call.params.get("InstanceIds") or [])
        if asked & young:
            unknown = min(asked & young)
            raise AwsFailure("InvalidInstanceID.NotFound", f"The instance ID '{unknown}' does not exist")
        reservations = self._account.ec2.reservations
        hidden = {k: r for k, r in reservations.items() if young & {i.id for i in r.instances}}
        try:
            for key in hidden:
                del reservations[key]
            return proceed()
        finally:
            reservations.update(hidden)

    def change_tags(self, call: Call, proceed: Callable[[], WireAnswer]) -> WireAnswer:
        """CreateTags and DeleteTags; each instance among the resources is announced."""
        answer = proceed()
        if answer[0] < 300:
            keys = [tag["Key"] for tag in call.params.get("Tags") or []]
            for resource_id in call.params.get("Resources") or []:
                if str(resource_id).startswith("i-"):
                    self._tag_changed(str(resource_id), keys)
        return answer
