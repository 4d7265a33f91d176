"""All machines of the region: they boot with their instances, hear notices, freeze, and die at their deadlines."""

from __future__ import annotations

import datetime
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rehearsal.nodes.imds import Imds
from rehearsal.nodes.node import Host, Node, identity_of
from rehearsal.plane.account import Account, Credentials, utc_now, wire_time
from rehearsal.plane.commands import Step, StepResult
from rehearsal.plane.instances import Instances
from rehearsal.processes import Processes
from rehearsal.timeline import Timeline


@dataclass(kw_only=True)
class Milestone:
    """Something that happened to a machine, for the report's timeline."""

    at: float
    instance_id: str
    what: str
    detail: dict[str, Any] = field(default_factory=dict)


class Hosts:
    """Implements `Machines` for the instances and `Shells` for Run Command.

    `image_env` is added to the environment that the container image sets; `sabotage` names a folder that stands
    first on every container's PYTHONPATH, so that its sitecustomize.py runs in each of them.
    """

    def __init__(
        self,
        *,
        account: Account,
        processes: Processes,
        instances: Instances,
        timeline: Timeline,
        emit: Callable[[dict[str, Any]], str],
        folder: Path,
        endpoints: dict[str, str],
    ) -> None:
        self.image_env: dict[str, str] = {}
        self.sabotage: Path | None = None
        self.ssm_ready_s = 0.2
        self.nodes: dict[str, Node] = {}
        self.milestones: list[Milestone] = []
        self.problems: list[str] = []
        self._account = account
        self._processes = processes
        self._instances = instances
        self._timeline = timeline
        self._emit = emit
        self._folder = folder
        self._endpoints = endpoints
        self._addresses = itertools.count()
        self._lock = threading.Lock()

    # ------------------------------------------------------------------ Machines
    def boot(self, instance: Any) -> None:
        """A machine for an instance that is now running."""
        with self._account.lock:
            role_arn, profile_arn = self._profile(instance)
            options = instance.metadata_options
            identity = identity_of(
                instance,
                region=self._account.region,
                account=self._account.id,
                role=role_arn.rsplit("/", 1)[-1],
                profile_arn=profile_arn,
                tags_allowed=str(options.instance_metadata_tags).lower() == "enabled",
                address=self._address(),
            )
            hop_limit = int(options.http_put_response_hop_limit or 1)
        instance_id = identity.instance_id
        imds = Imds(
            identity,
            tags=lambda: self._instances.tags(instance_id),
            keys=lambda: self._keys(role_arn, instance_id),
            power_off=lambda: self._timeline.after(0.05, lambda: self._instances.lose(instance_id)),
        )
        node = Node(
            self._processes,
            folder=self._folder / instance_id / "disk",
            logs=self._folder / instance_id / "logs",
            imds=imds,
            hop_limit=hop_limit,
        )
        with self._lock:
            self.nodes[instance_id] = node
        self._note(
            instance_id,
            "booted",
            type=identity.instance_type,
            zone=identity.zone,
            tags=self._instances.tags(instance_id),
        )
        node.boot(self._host())

    def _address(self) -> str:
        """A loopback address that no other machine of the region has."""
        number = next(self._addresses)
        return f"127.0.{number // 250}.{number % 250 + 2}"

    def destroy(self, instance_id: str) -> None:
        """Ends the machine under an instance, if it has one."""
        node = self.nodes.get(instance_id)
        if node is not None and not node.destroyed:
            node.destroy()
            self._note(instance_id, "destroyed")

    def _host(self) -> Host:
        return Host(endpoints=self._endpoints, image_env=self.image_env, sabotage=self.sabotage)

    def _profile(self, instance: Any) -> tuple[str, str]:
        """(role ARN, profile ARN) of the instance's deployed profile; empty without one."""
        profile = instance.iam_instance_profile
        if not profile:
            return "", ""
        found = self._account.backend("iam").instance_profiles
        match = next(p for p in found.values() if p.arn == profile["Arn"])
        return str(match.roles[0].arn), str(match.arn)

    def _keys(self, role_arn: str, instance_id: str) -> Credentials:
        return self._account.assume(role_arn, instance_id)

    # ------------------------------------------------------------------ Shells
    def registered(self, instance_id: str) -> bool:
        node = self.nodes.get(instance_id)
        return node is not None and not node.destroyed and time.time() - node.booted_at >= self.ssm_ready_s

    def run(self, instance_id: str, step: Step) -> StepResult:
        return self.nodes[instance_id].run(step, self._host())

    # ------------------------------------------------------------------ what a scenario does to them
    def interrupt(
        self, instance_id: str, *, notice_s: float, imds: bool = True, event: bool = True, action: str = "terminate"
    ) -> float:
        """EC2 takes a Spot instance back in `notice_s` seconds; returns the deadline (epoch seconds).

        `imds` and `event` say which of the two notices come at all. The event has no deadline, so its readers reckon
        with 120 s from now; IMDS knows the true one.
        """
        deadline = utc_now() + datetime.timedelta(seconds=notice_s)
        if imds:
            self.nodes[instance_id].imds.notices.action = {"action": action, "time": wire_time(deadline)}
        self._note(instance_id, "notice", notice_s=notice_s, imds=imds, event=event)
        if event:
            self._emit(
                {
                    "source": "aws.ec2",
                    "detail-type": "EC2 Spot Instance Interruption Warning",
                    "resources": [self._zone_arn(instance_id)],
                    "detail": {"instance-id": instance_id, "instance-action": action},
                }
            )
        self._timeline.after(notice_s, lambda: self._instances.lose(instance_id))
        return deadline.timestamp()

    def rebalance(self, instance_id: str, *, imds: bool = True, event: bool = True) -> None:
        """A rebalance recommendation. Nothing need follow."""
        if imds:
            self.nodes[instance_id].imds.notices.rebalance = {"noticeTime": wire_time(utc_now())}
        self._note(instance_id, "rebalance")
        if event:
            self._emit(
                {
                    "source": "aws.ec2",
                    "detail-type": "EC2 Instance Rebalance Recommendation",
                    "resources": [self._zone_arn(instance_id)],
                    "detail": {"instance-id": instance_id},
                }
            )

    def silent_kill(self, instance_id: str, *, ec2_notices: bool = True) -> None:
        """The machine is gone without a word: every process SIGKILLed, the disk removed.

        With `ec2_notices` EC2 sees it and the state changes follow; without, EC2 goes on saying `running`.
        """
        self._note(instance_id, "silent death", ec2_notices=ec2_notices)
        if ec2_notices:
            self._instances.lose(instance_id)
        else:
            self.nodes[instance_id].destroy()

    def freeze(self, instance_id: str) -> None:
        """Every process stops; EC2 says `running`, the sockets stay open. `wake` ends it."""
        self.nodes[instance_id].freeze()
        self._note(instance_id, "frozen")

    def wake(self, instance_id: str) -> None:
        self.nodes[instance_id].wake()
        self._note(instance_id, "woken")

    def alive(self) -> list[str]:
        """Instance ids of machines that are on."""
        return [i for i, node in self.nodes.items() if not node.destroyed]

    def close(self) -> None:
        for node in self.nodes.values():
            node.destroy(keep_disk=True)

    def _zone_arn(self, instance_id: str) -> str:
        """As Spot notices spell it: the zone in the Region's place, no account."""
        return f"arn:aws:ec2:{self.nodes[instance_id].imds.identity.zone}:instance/{instance_id}"

    def _note(self, instance_id: str, what: str, **detail: Any) -> None:
        with self._lock:
            self.milestones.append(Milestone(at=time.time(), instance_id=instance_id, what=what, detail=detail))
