"""The life of instances: pending, running, shutting-down, terminated, each with its event, and the node under each."""

from __future__ import annotations

import contextlib
import functools
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from moto.core.types import Base64EncodedString

from rehearsal.plane.account import Account
from rehearsal.plane.failures import AwsFailure
from rehearsal.plane.market import Market
from rehearsal.plane.templates import Template, Templates
from rehearsal.timeline import Timeline

STATES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64, "stopped": 80}
ALIVE = ("pending", "running", "stopping", "stopped")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Everything that decides one new instance."""

    template: Template
    overrides: dict[str, Any] = field(default_factory=dict)
    instance_type: str
    subnet_id: str
    lifecycle: str
    tags: dict[str, str]
    volume_tags: dict[str, str] = field(default_factory=dict)
    client_token: str = ""


class Machines(Protocol):
    """The hosts under instances. `boot` is called when an instance becomes running, `destroy` before it is gone."""

    def boot(self, instance: Any) -> None: ...

    def destroy(self, instance_id: str) -> None: ...


class Instances:
    """Launches, ends and describes instances. Callers hold the account's lock; transitions happen on the timeline."""

    def __init__(
        self,
        *,
        account: Account,
        market: Market,
        templates: Templates,
        timeline: Timeline,
        emit: Callable[[str, str], None],
    ) -> None:
        self.boot_s = 0.3
        self.shutdown_s = 0.3
        self.visible_after_s = 0.0  # DescribeInstances does not know younger ones: eventual consistency, when set
        self.machines: Machines | None = None
        self.launched: list[str] = []
        self.left_at: dict[str, float] = {}  # when it began to end, whoever ended it
        self._account = account
        self._market = market
        self._templates = templates
        self._timeline = timeline
        self._emit = emit
        self._born: dict[str, float] = {}

    def launch(self, launch: Launch) -> str:
        """A new instance in state pending; it runs `boot_s` later."""
        data = launch.template.data
        reservation = self._account.ec2.run_instances(
            self._templates.image(
                str(launch.overrides.get("ImageId") or data.get("ImageId") or "ami-00000000000000000")
            ),
            1,
            _user_data(data.get("UserData")),
            [],
            instance_type=launch.instance_type,
            is_instance_type_default=False,
            subnet_id=launch.subnet_id,
            security_group_ids=launch.template.security_groups(),
            launch_template={"LaunchTemplateId": launch.template.id, "Version": launch.template.version},
            tags={"instance": launch.tags, "volume": launch.volume_tags},
            block_device_mappings=[],
            client_token=launch.client_token,
            metadata_options=launch.template.metadata_options(),
            lifecycle="spot" if launch.lifecycle == "spot" else None,
        )
        instance = reservation.instances[0]
        if launch.lifecycle == "spot":
            instance.spot_instance_request_id = f"sir-{secrets.token_hex(4)}"
        self._give_profile(instance, launch.template.profile())
        self.adopt(instance)
        return str(instance.id)

    def adopt(self, instance: Any) -> None:
        """Takes an instance that moto just made into the life cycle, in state pending."""
        self._born[instance.id] = time.monotonic()
        self.launched.append(instance.id)
        self._move(instance, "pending")
        self._timeline.after(self.boot_s, lambda: self._run(instance.id))

    def _give_profile(self, instance: Any, profile: dict[str, str]) -> None:
        if not profile:
            return
        name = profile.get("Name") or profile.get("Arn", "").rsplit("/", 1)[-1]
        found = self._account.backend("iam").instance_profiles
        match = next((p for p in found.values() if p.name == name), None)
        if match is None:
            raise AwsFailure("InvalidParameterValue", f"Invalid IAM Instance Profile name {name}")
        instance.iam_instance_profile = {"Arn": match.arn, "Id": match.id}

    def _run(self, instance_id: str) -> None:
        with self._account.lock:
            instance = self.get(instance_id)
            if instance is None or instance.state != "pending":
                return
            self._move(instance, "running")
        if self.machines is not None:
            self.machines.boot(instance)

    def terminate(self, instance_ids: list[str], *, by_owner: bool = True) -> list[tuple[str, str, str]]:
        """(id, state before, state now) of each. Raises InvalidInstanceID.NotFound and then ends none of them."""
        found = [self.require(instance_id) for instance_id in instance_ids]
        changes = []
        for instance in found:
            before = instance.state
            if before in ALIVE:
                self.left_at.setdefault(instance.id, time.time())
                self._move(instance, "shutting-down")
                if by_owner:
                    lifecycle = "spot" if instance.lifecycle == "spot" else "on-demand"
                    self._market.give_back(instance.instance_type, instance.availability_zone, lifecycle)
                self._timeline.after(self.shutdown_s, functools.partial(self._end, instance.id, by_owner=by_owner))
            changes.append((instance.id, before, instance.state))
        return changes

    def lose(self, instance_id: str) -> None:
        """EC2 takes the instance: its host dies at once, the states and events follow."""
        if self.machines is not None:
            self.machines.destroy(instance_id)
        with self._account.lock:
            self.terminate([instance_id], by_owner=False)

    def _end(self, instance_id: str, *, by_owner: bool) -> None:
        if self.machines is not None:
            self.machines.destroy(instance_id)
        with self._account.lock:
            instance = self.require(instance_id)
            if instance.state == "terminated":
                return
            with contextlib.suppress(KeyError):
                instance.terminate()
            if not by_owner and instance.lifecycle == "spot":
                instance._reason = "Server.SpotInstanceTermination"
                instance.state_reason.code = "Server.SpotInstanceTermination"
                instance.state_reason.message = "Server.SpotInstanceTermination: Spot instance termination"
            self._move(instance, "terminated")

    def _move(self, instance: Any, state: str) -> None:
        instance._state.name, instance._state.code = state, STATES[state]
        self._emit(instance.id, state)

    def get(self, instance_id: str) -> Any | None:
        """moto's instance, None for an id that never was."""
        return self._account.ec2.get_instance_by_id(instance_id)

    def require(self, instance_id: str) -> Any:
        instance = self.get(instance_id)
        if instance is None:
            raise AwsFailure("InvalidInstanceID.NotFound", f"The instance ID '{instance_id}' does not exist")
        return instance

    def is_alive(self, instance_id: str) -> bool:
        instance = self.get(instance_id)
        return instance is not None and instance.state in ALIVE

    def in_state(self, *states: str) -> list[str]:
        """Ids of the instances in these states, oldest first."""
        with self._account.lock:
            return [i for i in self.launched if (found := self.get(i)) is not None and found.state in states]

    def tags(self, instance_id: str) -> dict[str, str]:
        """The instance's tags now."""
        with self._account.lock:
            return {tag["key"]: tag["value"] for tag in self.require(instance_id).get_tags()}

    def too_young(self) -> set[str]:
        """Ids that DescribeInstances does not know yet."""
        if not self.visible_after_s:
            return set()
        now = time.monotonic()
        return {i for i, born in self._born.items() if now - born < self.visible_after_s}


def _user_data(encoded: object) -> Base64EncodedString | None:
    if encoded is None or isinstance(encoded, Base64EncodedString):
        return encoded
    return Base64EncodedString(str(encoded))
