"""CreateFleet, type instant, as AWS answers it: instances and errors side by side, all or nothing where asked."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

from moto.ec2.models.instance_types import INSTANCE_TYPES

from rehearsal.plane.calls import Call
from rehearsal.plane.failures import AwsFailure
from rehearsal.plane.instances import Instances, Launch
from rehearsal.plane.market import Market
from rehearsal.plane.templates import Template, Templates
from rehearsal.plane.tokens import Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One override of one launch template: a pool that the request allows."""

    template: Template
    overrides: dict[str, Any]
    instance_type: str
    zone: str
    subnet_id: str
    priority: float
    weight: int
    position: int

    def described(self) -> dict[str, Any]:
        """LaunchTemplateAndOverrides of an answer."""
        return {
            "LaunchTemplateSpecification": {"LaunchTemplateId": self.template.id, "Version": self.template.version},
            "Overrides": self.overrides | {"InstanceType": self.instance_type, "AvailabilityZone": self.zone},
        }


@dataclass(kw_only=True)
class Answer:
    """What the fleet has got so far."""

    granted: list[Candidate] = field(default_factory=list)
    errors: dict[tuple[str, str, str], dict[str, Any]] = field(default_factory=dict)

    def refuse(self, candidate: Candidate, code: str, lifecycle: str) -> None:
        self.errors[candidate.instance_type, candidate.zone, code] = {
            "LaunchTemplateAndOverrides": candidate.described(),
            "Lifecycle": lifecycle,
            "ErrorCode": code,
            "ErrorMessage": f"{code}: {candidate.instance_type} in {candidate.zone}",
        }


class Fleets:
    """The replaced verbs CreateFleet and DeleteFleets."""

    def __init__(self, *, market: Market, instances: Instances, templates: Templates) -> None:
        self._market = market
        self._instances = instances
        self._templates = templates
        self._tokens = Tokens()
        self._fleets: dict[str, list[str]] = {}

    def create_fleet(self, call: Call) -> dict[str, Any]:
        """One synchronous attempt. HTTP success with empty Instances is AWS's way to say that there is no capacity."""
        params = call.params
        if params.get("Type") != "instant":
            raise AwsFailure("UnsupportedOperation", "the rehearsal plays CreateFleet of type instant only")
        if params.get("DryRun"):
            raise AwsFailure("DryRunOperation", "Request would have succeeded, but DryRun flag is set.", status=412)
        return self._tokens.once(params, lambda: self._launch(params))

    def _launch(self, params: dict[str, Any]) -> dict[str, Any]:
        target = params["TargetCapacitySpecification"]
        lifecycle = "on-demand" if target.get("DefaultTargetCapacityType") == "on-demand" else "spot"
        options = params.get("OnDemandOptions" if lifecycle == "on-demand" else "SpotOptions") or {}
        candidates = self._in_order(self._candidates(params["LaunchTemplateConfigs"]), options)
        wanted = int(target["TotalTargetCapacity"])
        answer = self._ask(candidates, wanted, lifecycle, options)
        fleet_id = f"fleet-{uuid.uuid4()}"
        made = [self._start(candidate, lifecycle, fleet_id, params) for candidate in answer.granted]
        self._fleets[fleet_id] = [instance_id for instance_id, _ in made]
        return {
            "FleetId": fleet_id,
            "Instances": _grouped(made, lifecycle),
            "Errors": list(answer.errors.values()),
        }

    def _candidates(self, configs: list[dict[str, Any]]) -> list[Candidate]:
        found: list[Candidate] = []
        for config in configs:
            template = self._templates.resolve(config["LaunchTemplateSpecification"])
            for overrides in config.get("Overrides") or [{}]:
                found.append(self._candidate(template, dict(overrides), len(found)))
        return found

    def _candidate(self, template: Template, overrides: dict[str, Any], position: int) -> Candidate:
        if "InstanceRequirements" in overrides:
            raise AwsFailure("UnsupportedOperation", "the rehearsal has no attribute-based selection")
        instance_type = overrides.get("InstanceType") or template.data.get("InstanceType") or ""
        if instance_type not in INSTANCE_TYPES:
            raise AwsFailure("InvalidParameterValue", f"Invalid value '{instance_type}' for InstanceType.")
        subnet_id, zone = self._templates.place(template, overrides)
        return Candidate(
            template=template,
            overrides=overrides,
            instance_type=instance_type,
            zone=zone,
            subnet_id=subnet_id,
            priority=float(overrides.get("Priority", 0)),
            weight=int(float(overrides.get("WeightedCapacity", 1))),
            position=position,
        )

    def _in_order(self, candidates: list[Candidate], options: dict[str, Any]) -> list[Candidate]:
        strategy = options.get("AllocationStrategy", "lowest-price")
        if "prioritized" in strategy:
            return sorted(candidates, key=lambda c: (c.priority, c.position))
        return sorted(candidates, key=lambda c: (self._market.price_of(c.instance_type, c.zone), c.position))

    def _ask(self, candidates: list[Candidate], wanted: int, lifecycle: str, options: dict[str, Any]) -> Answer:
        minimum = int(options.get("MinTargetCapacity") or 0)
        groups = _groups(candidates, options)
        answer = Answer()
        for group in groups:
            if minimum and self._room(group, lifecycle) < minimum:
                self._refuse_all(group, answer, lifecycle)
                continue
            self._fill(group, wanted, answer, lifecycle)
            if answer.granted:
                return answer
        if minimum and candidates:
            answer.refuse(candidates[0], "UnfulfillableCapacity", lifecycle)
        return answer

    def _room(self, group: list[Candidate], lifecycle: str) -> int:
        pools = {(c.instance_type, c.zone) for c in group}
        return sum(self._market.room(instance_type, zone, lifecycle) for instance_type, zone in pools)

    def _refuse_all(self, group: list[Candidate], answer: Answer, lifecycle: str) -> None:
        for candidate in group:
            code = self._market.refusal(candidate.instance_type, candidate.zone, lifecycle)
            answer.refuse(candidate, code or "InsufficientInstanceCapacity", lifecycle)

    def _fill(self, group: list[Candidate], wanted: int, answer: Answer, lifecycle: str) -> None:
        for candidate in group:
            while sum(c.weight for c in answer.granted) < wanted:
                refusal = self._market.take(candidate.instance_type, candidate.zone, lifecycle)
                if refusal:
                    answer.refuse(candidate, refusal, lifecycle)
                    break
                answer.granted.append(candidate)

    def _start(
        self, candidate: Candidate, lifecycle: str, fleet_id: str, params: dict[str, Any]
    ) -> tuple[str, Candidate]:
        instance_id = self._instances.launch(
            Launch(
                template=candidate.template,
                overrides=candidate.overrides,
                instance_type=candidate.instance_type,
                subnet_id=candidate.subnet_id,
                lifecycle=lifecycle,
                tags=_tags(params, "instance") | {"aws:ec2:fleet-id": fleet_id},
                volume_tags=_tags(params, "volume"),
                client_token=str(params.get("ClientToken", "")),
            )
        )
        return instance_id, candidate

    def delete_fleets(self, call: Call) -> dict[str, Any]:
        """Of an instant fleet this terminates every instance, as on AWS."""
        deleted = []
        for fleet_id in call.params["FleetIds"]:
            self._instances.terminate([i for i in self._fleets.get(fleet_id, []) if self._instances.is_alive(i)])
            deleted.append({"FleetId": fleet_id, "CurrentFleetState": "deleted_terminating"})
        return {"SuccessfulFleetDeletions": deleted, "UnsuccessfulFleetDeletions": []}


def _groups(candidates: list[Candidate], options: dict[str, Any]) -> list[list[Candidate]]:
    """Candidates that may serve one answer together, in the order of their first member."""
    grouped: dict[tuple[str, str], list[Candidate]] = {}
    for candidate in candidates:
        key = (
            candidate.zone if _true(options.get("SingleAvailabilityZone")) else "",
            candidate.instance_type if _true(options.get("SingleInstanceType")) else "",
        )
        grouped.setdefault(key, []).append(candidate)
    return list(grouped.values())


def _true(value: object) -> bool:
    return str(value).lower() == "true"


def _tags(params: dict[str, Any], resource_type: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for specification in params.get("TagSpecifications") or []:
        if specification["ResourceType"] == resource_type:
            found.update({tag["Key"]: tag["Value"] for tag in specification.get("Tags", [])})
    return found


def _grouped(made: list[tuple[str, Candidate]], lifecycle: str) -> list[dict[str, Any]]:
    """One entry per pool, as AWS groups them."""
    entries: dict[int, dict[str, Any]] = {}
    for instance_id, candidate in made:
        entry = entries.setdefault(
            candidate.position,
            {
                "LaunchTemplateAndOverrides": candidate.described(),
                "Lifecycle": lifecycle,
                "InstanceIds": [],
                "InstanceType": candidate.instance_type,
                "AvailabilityZone": candidate.zone,
                "SubnetId": candidate.subnet_id,
            },
        )
        entry["InstanceIds"].append(instance_id)
    return list(entries.values())
