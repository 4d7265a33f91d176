"""EC2 as far as the control plane calls it: instant fleets in a market, client tokens, tags, delayed visibility.

It keeps AWS's promises and traps: a token with equal parameters launches nothing twice and answers the same, with
other parameters it is refused; instances and errors can come in one answer; a new instance is invisible for a while.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import ClientError, ConnectTimeoutError

ENDED = frozenset({"shutting-down", "terminated"})


@dataclass(slots=True, kw_only=True)
class Instance:
    """One instance."""

    instance: str
    instance_type: str
    zone: str
    lifecycle: str
    tags: dict[str, str]
    launched_at: float
    state: str = "pending"
    reservation: str = ""

    @property
    def is_alive(self) -> bool:
        return self.state in {"pending", "running"}


@dataclass(slots=True, kw_only=True)
class FakeEc2:
    """A low-level EC2 client. `refused` maps `type#zone#lifecycle` to an error code, `room` to what is left there."""

    clock: Callable[[], float]
    zones: dict[str, str]  # subnet -> zone
    invisible_s: float = 0.0
    refused: dict[str, str] = field(default_factory=dict)
    room: dict[str, int] = field(default_factory=dict)
    instances: dict[str, Instance] = field(default_factory=dict)
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    terminated: list[str] = field(default_factory=list)
    honours_tokens: bool = True
    extra: int = 0  # how many instances more than asked the next fleet launches
    extras: int = 0  # how many that were so far
    prices: dict[str, float] = field(default_factory=dict)  # `type#zone`: Spot, dollars an hour
    scores: dict[str, int] = field(default_factory=dict)  # by zone id
    names: list[str] = field(default_factory=list)  # ids of the next instances, where a test wants its own
    _launched: int = 0
    _answers: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)
    _faults: dict[str, list[str]] = field(default_factory=dict)

    def fail(self, operation: str, code: str, *, times: int = 1) -> None:
        """The next calls of `operation` fail with `code`; 'timeout' is no answer at all, after the work was done."""
        self._faults.setdefault(operation, []).extend([code] * times)

    def count(self, operation: str) -> int:
        return sum(1 for called, _ in self.calls if called == operation)

    def alive(self) -> list[Instance]:
        return [one for one in self.instances.values() if one.is_alive]

    def tag(self, instance: str, **fields: Any) -> Instance:
        """An instance that somebody else launched."""
        values = {"instance_type": "g5.xlarge", "zone": "us-east-1a", "lifecycle": "spot", "tags": {}, **fields}
        self.instances[instance] = Instance(instance=instance, launched_at=self.clock(), state="running", **values)
        return self.instances[instance]

    # -------------------------------------------------------------------------------------------------- the API
    def create_fleet(self, *, ClientToken: str, **request: Any) -> dict[str, Any]:  # noqa: N803 - AWS's name
        self.calls.append(("create_fleet", {"ClientToken": ClientToken, **request}))
        fault = self._fault("create_fleet")
        if fault and fault != "timeout":
            raise _error(fault, "CreateFleet")
        answer = self._fleet(ClientToken, request)
        if fault:
            raise ConnectTimeoutError(endpoint_url="ec2")
        return answer

    def describe_instances(self, **request: Any) -> dict[str, Any]:
        self.calls.append(("describe_instances", request))
        fault = self._fault("describe_instances")
        if fault:
            raise _error(fault, "DescribeInstances")
        wanted = {one["Name"]: set(one["Values"]) for one in request.get("Filters", ())}
        seen = [one for one in self.instances.values() if self._visible(one) and _matches(one, wanted)]
        return {"Reservations": [{"Instances": [_described(one)]} for one in seen]}

    def terminate_instances(self, *, InstanceIds: list[str]) -> dict[str, Any]:  # noqa: N803 - AWS's name
        self.calls.append(("terminate_instances", {"InstanceIds": InstanceIds}))
        fault = self._fault("terminate_instances")
        if fault:
            raise _error(fault, "TerminateInstances")
        unknown = [one for one in InstanceIds if one not in self.instances]
        if unknown:
            raise _error("InvalidInstanceID.NotFound", "TerminateInstances")
        for one in InstanceIds:
            if self.instances[one].state not in ENDED:
                self.terminated.append(one)
            self.instances[one].state = "terminated"
        return {}

    def describe_spot_price_history(self, **request: Any) -> dict[str, Any]:
        self.calls.append(("describe_spot_price_history", request))
        fault = self._fault("describe_spot_price_history")
        if fault:
            raise _error(fault, "DescribeSpotPriceHistory")
        priced = ((pool.split("#"), usd) for pool, usd in self.prices.items())
        return {
            "SpotPriceHistory": [
                {
                    "InstanceType": kind,
                    "AvailabilityZone": zone,
                    "AvailabilityZoneId": f"use1-az{zone[-1]}",
                    "SpotPrice": f"{usd:.6f}",
                    "Timestamp": datetime.fromtimestamp(self.clock(), tz=UTC),
                }
                for (kind, zone), usd in priced
                if kind in request["InstanceTypes"]
            ]
        }

    def get_spot_placement_scores(self, **request: Any) -> dict[str, Any]:
        self.calls.append(("get_spot_placement_scores", request))
        fault = self._fault("get_spot_placement_scores")
        if fault:
            raise _error(fault, "GetSpotPlacementScores")
        return {
            "SpotPlacementScores": [
                {"Region": "us-east-1", "AvailabilityZoneId": zone_id, "Score": score}
                for zone_id, score in self.scores.items()
            ]
        }

    # --------------------------------------------------------------------------------------------------- inside
    def _fleet(self, token: str, request: dict[str, Any]) -> dict[str, Any]:
        text = json.dumps(request, sort_keys=True)
        if self.honours_tokens and token in self._answers:
            asked, answer = self._answers[token]
            if asked != text:
                raise _error("IdempotentParameterMismatch", "CreateFleet")
            return answer
        answer = self._launch(request)
        self._answers[token] = (text, answer)
        return answer

    def _launch(self, request: dict[str, Any]) -> dict[str, Any]:
        target = request["TargetCapacitySpecification"]
        wanted = target["TotalTargetCapacity"] + self.extra
        lifecycle = target["DefaultTargetCapacityType"]
        tags = next(one["Tags"] for one in request["TagSpecifications"] if one["ResourceType"] == "instance")
        options = request.get("OnDemandOptions" if lifecycle == "on-demand" else "SpotOptions") or {}
        launched: list[dict[str, Any]] = []
        errors: list[dict[str, Any]] = []
        for group in self._groups(request["LaunchTemplateConfigs"][0]["Overrides"], options):
            if self._room(group, lifecycle) >= options.get("MinTargetCapacity", 0):
                self._fill(group, wanted, lifecycle=lifecycle, tags=tags, launched=launched, errors=errors)
            else:
                errors += [self._said(one, lifecycle, self._refusal_of(one, lifecycle)) for one in group]
            if launched and options.get("MinTargetCapacity"):
                break
        self.extras += max(0, len(launched) - target["TotalTargetCapacity"])
        self.extra = 0
        return {"FleetId": f"fleet-{len(self._answers)}", "Instances": launched, "Errors": errors}

    def _groups(self, overrides: list[dict[str, Any]], options: dict[str, Any]) -> list[list[dict[str, Any]]]:
        """Overrides that may serve one answer together."""
        grouped: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for one in overrides:
            zone = self.zones[one["SubnetId"]] if options.get("SingleAvailabilityZone") else ""
            kind = one["InstanceType"] if options.get("SingleInstanceType") else ""
            grouped.setdefault((zone, kind), []).append(one)
        return list(grouped.values())

    def _room(self, group: list[dict[str, Any]], lifecycle: str) -> int:
        pools = (f"{one['InstanceType']}#{self.zones[one['SubnetId']]}#{lifecycle}" for one in group)
        return sum(self.room.get(pool, 10_000) for pool in pools if pool not in self.refused)

    def _refusal_of(self, override: dict[str, Any], lifecycle: str) -> str:
        pool = f"{override['InstanceType']}#{self.zones[override['SubnetId']]}#{lifecycle}"
        return self._refusal(pool) or "InsufficientInstanceCapacity"

    def _said(self, override: dict[str, Any], lifecycle: str, code: str) -> dict[str, Any]:
        described = {"Overrides": {**override, "AvailabilityZone": self.zones[override["SubnetId"]]}}
        return {"ErrorCode": code, "Lifecycle": lifecycle, "LaunchTemplateAndOverrides": described}

    def _fill(
        self,
        group: list[dict[str, Any]],
        wanted: int,
        *,
        lifecycle: str,
        tags: list[dict[str, str]],
        launched: list[dict[str, Any]],
        errors: list[dict[str, Any]],
    ) -> None:
        for override in group:
            zone = self.zones[override["SubnetId"]]
            pool = f"{override['InstanceType']}#{zone}#{lifecycle}"
            code = self._refusal(pool)
            said = {"Overrides": {**override, "AvailabilityZone": zone}}
            ids: list[str] = []
            while not code and len(launched) + len(ids) < wanted and not (code := self._refusal(pool)):
                ids.append(self._start(override["InstanceType"], zone, lifecycle, tags))
            launched += [
                {
                    "InstanceIds": [one],
                    "InstanceType": override["InstanceType"],
                    "Lifecycle": lifecycle,
                    "LaunchTemplateAndOverrides": said,
                }
                for one in ids
            ]
            if code:
                errors.append({"ErrorCode": code, "Lifecycle": lifecycle, "LaunchTemplateAndOverrides": said})

    def _refusal(self, pool: str) -> str:
        if pool in self.refused:
            return self.refused[pool]
        return "InsufficientInstanceCapacity" if self.room.get(pool, 1) < 1 else ""

    def _start(self, instance_type: str, zone: str, lifecycle: str, tags: list[dict[str, str]]) -> str:
        pool = f"{instance_type}#{zone}#{lifecycle}"
        if pool in self.room:
            self.room[pool] -= 1
        self._launched += 1
        name = self.names.pop(0) if self.names else f"i-{self._launched:017x}"
        self.instances[name] = Instance(
            instance=name,
            instance_type=instance_type,
            zone=zone,
            lifecycle=lifecycle,
            tags={tag["Key"]: tag["Value"] for tag in tags},
            launched_at=self.clock(),
        )
        return name

    def _visible(self, one: Instance) -> bool:
        return self.clock() - one.launched_at >= self.invisible_s

    def _fault(self, operation: str) -> str:
        waiting = self._faults.get(operation)
        return waiting.pop(0) if waiting else ""


@dataclass(slots=True, kw_only=True)
class FakeSsm:
    """SendCommand: keeps what was sent."""

    sent: list[dict[str, Any]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def send_command(self, **request: Any) -> dict[str, Any]:
        if self.faults:
            raise _error(self.faults.pop(0), "SendCommand")
        self.sent.append(request)
        return {"Command": {"CommandId": f"command-{len(self.sent)}"}}


@dataclass(slots=True, kw_only=True)
class FakeSns:
    """Publish: keeps what was said."""

    said: list[dict[str, str]] = field(default_factory=list)

    def publish(self, **request: str) -> dict[str, str]:
        self.said.append(request)
        return {"MessageId": "1"}


@dataclass(slots=True, kw_only=True)
class FakeSqs:
    """A queue whose messages wait until somebody takes them."""

    bodies: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    delays: list[int] = field(default_factory=list)

    def send_message_batch(self, *, QueueUrl: str, Entries: list[dict[str, str]]) -> dict[str, Any]:  # noqa: N803
        self.counts[QueueUrl] += len(Entries)
        self.bodies += [entry["MessageBody"] for entry in Entries]
        return {"Successful": [{"Id": entry["Id"]} for entry in Entries]}

    def send_message(self, *, QueueUrl: str, MessageBody: str, DelaySeconds: int) -> dict[str, Any]:  # noqa: N803
        """A look that somebody put off; here it waits until somebody takes it."""
        self.counts[QueueUrl] += 1
        self.bodies.append(MessageBody)
        self.delays.append(DelaySeconds)
        return {"MessageId": "1"}

    def take(self) -> list[str]:
        taken, self.bodies = self.bodies, []
        return taken


def _error(code: str, operation: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "our words"}}, operation)


def _matches(one: Instance, wanted: dict[str, set[str]]) -> bool:
    for name, values in wanted.items():
        if name == "instance-id":
            if one.instance not in values:
                return False
        elif name == "capacity-reservation-id":
            if one.reservation not in values:
                return False
        elif one.tags.get(name.removeprefix("tag:")) not in values:
            return False
    return True


def _described(one: Instance) -> dict[str, Any]:
    described: dict[str, Any] = {
        "InstanceId": one.instance,
        "InstanceType": one.instance_type,
        "State": {"Name": one.state},
        "Placement": {"AvailabilityZone": one.zone},
        "LaunchTime": datetime.fromtimestamp(one.launched_at, tz=UTC),
        "Tags": [{"Key": key, "Value": value} for key, value in one.tags.items()],
    }
    if one.reservation:
        described["CapacityReservationId"] = one.reservation
    if one.lifecycle == "spot":
        described["InstanceLifecycle"] = "spot"
    return described
