"""SSM Run Command: runs the deployed document on the right nodes, and refuses what AWS refuses."""

from __future__ import annotations

import datetime
import re
import threading
import traceback
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from rehearsal.plane.account import Account, utc_now, wire_time
from rehearsal.plane.calls import Call
from rehearsal.plane.failures import AwsFailure
from rehearsal.plane.instances import Instances
from rehearsal.plane.server import Verb

OUTPUT_CHARS = 24_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One aws:runShellScript step, ready to run: script and environment."""

    name: str
    script: str
    env: dict[str, str]
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """Exit status of a step; None when it ran out of time or its node died."""

    code: int | None
    output: str


class Shells(Protocol):
    """Nodes as Run Command sees them. `registered` is the SSM agent's ping; `run` blocks while the node is frozen."""

    def registered(self, instance_id: str) -> bool: ...

    def run(self, instance_id: str, step: Step) -> StepResult: ...


@dataclass(kw_only=True)
class CommandRun:
    """One command and its invocations, by instance id."""

    id: str
    document: str
    version: str
    parameters: dict[str, list[str]]
    comment: str
    at: datetime.datetime
    targets: list[dict[str, Any]]
    invocations: dict[str, dict[str, Any]] = field(default_factory=dict)
    delivery_s: float = 3600

    def status(self) -> str:
        states = [i["Status"] for i in self.invocations.values()]
        if any(s in ("Pending", "InProgress") for s in states):
            return "InProgress"
        return next((s for s in ("TimedOut", "Failed") if s in states), "Success")


class Commands:
    """The verbs SendCommand, ListCommands, ListCommandInvocations, GetCommandInvocation, DescribeInstanceInformation.

    `steps_run` counts (document, step) that ran; `emit` gets the status events, best effort as on AWS.
    """

    def __init__(
        self,
        *,
        account: Account,
        instances: Instances,
        emit: Callable[[dict[str, Any]], str],
        start_s: float = 0.05,
    ) -> None:
        self.shells: Shells | None = None
        self.runs: dict[str, CommandRun] = {}
        self.steps_run: dict[tuple[str, str], int] = {}
        self.problems: list[str] = []
        self.start_s = start_s
        self._account = account
        self._instances = instances
        self._emit = emit

    def verbs(self) -> dict[tuple[str, str], Verb]:
        return {
            ("ssm", "SendCommand"): self.send_command,
            ("ssm", "ListCommands"): self.list_commands,
            ("ssm", "ListCommandInvocations"): self.list_command_invocations,
            ("ssm", "GetCommandInvocation"): self.get_command_invocation,
            ("ssm", "DescribeInstanceInformation"): self.describe_instance_information,
        }

    def send_command(self, call: Call) -> dict[str, Any]:
        """Refuses the whole call for one bad instance, document or parameter; else runs in the background."""
        params = call.params
        document = self._document(params)
        values = _parameters(document.content_json, params.get("Parameters") or {})
        chosen = self._chosen(params)
        run = CommandRun(
            id=str(uuid.uuid4()),
            document=document.name,
            version=str(document.document_version),
            parameters=values,
            comment=params.get("Comment", ""),
            at=utc_now(),
            targets=params.get("Targets") or [],
            delivery_s=float(params.get("TimeoutSeconds") or 3600),
        )
        for instance_id in chosen:
            run.invocations[instance_id] = _invocation(run, instance_id)
        self.runs[run.id] = run
        content = document.content_json
        for instance_id in chosen:
            threading.Thread(target=self._play, args=(run, instance_id, content), daemon=True).start()
        return {"Command": self._described(run)}

    def _document(self, params: dict[str, Any]) -> Any:
        name = str(params.get("DocumentName", "")).rsplit("/", 1)[-1]
        documents = self._account.documents._documents.get(name)
        if documents is None:
            raise AwsFailure("InvalidDocument", f"Document with name {name} does not exist.")
        version = str(params.get("DocumentVersion") or "$DEFAULT")
        number = {"$DEFAULT": documents.default_version, "$LATEST": documents.latest_version}.get(version, version)
        document = documents.versions.get(str(number))
        if document is None:
            raise AwsFailure("InvalidDocumentVersion", f"{name} has no version {version}.")
        if params.get("DocumentHash") and params["DocumentHash"] != document.hash:
            raise AwsFailure("InvalidDocument", f"{name}: the document's hash is another one.")
        return document

    def _chosen(self, params: dict[str, Any]) -> list[str]:
        listed = [str(i) for i in params.get("InstanceIds") or []]
        if len(set(listed)) < len(listed):
            raise AwsFailure("DuplicateInstanceId", "An instance id is listed twice.")
        for instance_id in listed:
            if not self._reachable(instance_id):
                raise AwsFailure("InvalidInstanceId", f"Instances [[{instance_id}]] not in a valid state for account")
        targets = params.get("Targets") or []
        if not listed and not targets:
            raise AwsFailure("InvalidParameters", "Specify InstanceIds or Targets.")
        if listed:
            return listed
        return [i for i in self._instances.launched if self._reachable(i) and self._matches(i, targets)]

    def seen(self, call: Call) -> dict[str, dict[str, str]]:
        """The instances that a SendCommand is sent to, with their tags; none for a call that is refused."""
        try:
            return {instance_id: self._instances.tags(instance_id) for instance_id in self._chosen(call.params)}
        except AwsFailure:
            return {}

    def _reachable(self, instance_id: str) -> bool:
        instance = self._instances.get(instance_id)
        running = instance is not None and instance.state == "running"
        return running and self.shells is not None and self.shells.registered(instance_id)

    def _matches(self, instance_id: str, targets: list[dict[str, Any]]) -> bool:
        """All criteria must hold; within one, any of its values."""
        tags = self._instances.tags(instance_id)
        for target in targets:
            key, values = target["Key"], target.get("Values") or []
            if key == "InstanceIds":
                held = instance_id in values
            elif key.startswith("tag:"):
                held = tags.get(key.removeprefix("tag:")) in values
            else:
                raise AwsFailure("InvalidTarget", f"The rehearsal has no targets of key {key}.")
            if not held:
                return False
        return True

    def _play(self, run: CommandRun, instance_id: str, content: dict[str, Any]) -> None:
        try:
            threading.Event().wait(self.start_s)
            self._move(run, instance_id, "InProgress")
            for step in content.get("mainSteps") or []:
                if not self._step(run, instance_id, content, step):
                    return
            self._move(run, instance_id, "Success")
        except Exception:  # noqa: BLE001  the edge of the thread: the report shows it
            self.problems.append(f"command {run.id} on {instance_id}: {traceback.format_exc()}")
            self._move(run, instance_id, "Failed")

    def _step(self, run: CommandRun, instance_id: str, content: dict[str, Any], step: dict[str, Any]) -> bool:
        """Whether the next step may run."""
        if step["action"] != "aws:runShellScript":
            raise AwsFailure("UnsupportedPlatformType", f"{step['action']} does not run on these nodes")
        platform = ((step.get("precondition") or {}).get("StringEquals") or ["platformType", "Linux"])[1]
        if platform != "Linux" or self.shells is None:
            return True
        result = self.shells.run(instance_id, _shell(step, content.get("parameters") or {}, run.parameters))
        invocation = run.invocations[instance_id]
        invocation["_output"] = (invocation.get("_output", "") + result.output)[:OUTPUT_CHARS]
        invocation["_code"] = -1 if result.code is None else result.code
        key = (run.document, step["name"])
        self.steps_run[key] = self.steps_run.get(key, 0) + 1
        if result.code == 0:
            return True
        self._move(run, instance_id, "TimedOut" if result.code is None else "Failed")
        return False

    def _move(self, run: CommandRun, instance_id: str, status: str) -> None:
        invocation = run.invocations[instance_id]
        invocation["Status"] = status
        invocation["StatusDetails"] = "ExecutionTimedOut" if status == "TimedOut" else status
        detail = {
            "command-id": run.id,
            "document-name": run.document,
            "instance-id": instance_id,
            "requested-date-time": wire_time(run.at),
            "status": status,
        }
        arn = f"arn:aws:ec2:{self._account.region}:{self._account.id}:instance/{instance_id}"
        kind = "EC2 Command Invocation Status-change Notification"
        self._emit({"source": "aws.ssm", "detail-type": kind, "detail": detail, "resources": [arn]})

    def list_commands(self, call: Call) -> dict[str, Any]:
        wanted = call.params.get("CommandId")
        return {"Commands": [self._described(r) for r in self.runs.values() if wanted in (None, r.id)]}

    def list_command_invocations(self, call: Call) -> dict[str, Any]:
        command_id, instance_id = call.params.get("CommandId"), call.params.get("InstanceId")
        found = [
            {name: value for name, value in invocation.items() if not name.startswith("_")}
            for run in self.runs.values()
            if command_id in (None, run.id)
            for invocation in run.invocations.values()
            if instance_id in (None, invocation["InstanceId"])
        ]
        return {"CommandInvocations": found}

    def get_command_invocation(self, call: Call) -> dict[str, Any]:
        run = self.runs.get(call.params["CommandId"])
        invocation = None if run is None else run.invocations.get(call.params["InstanceId"])
        if run is None or invocation is None:
            raise AwsFailure("InvocationDoesNotExist", "")
        return {
            "CommandId": run.id,
            "InstanceId": invocation["InstanceId"],
            "DocumentName": run.document,
            "Status": invocation["Status"],
            "StatusDetails": invocation["StatusDetails"],
            "ResponseCode": invocation.get("_code", -1),
            "StandardOutputContent": invocation.get("_output", ""),
        }

    def describe_instance_information(self, call: Call) -> dict[str, Any]:
        del call
        online = [i for i in self._instances.launched if self._reachable(i)]
        return {
            "InstanceInformationList": [
                {"InstanceId": i, "PingStatus": "Online", "PlatformType": "Linux", "AgentVersion": "3.3.3000.0"}
                for i in online
            ]
        }

    def _described(self, run: CommandRun) -> dict[str, Any]:
        return {
            "CommandId": run.id,
            "DocumentName": run.document,
            "DocumentVersion": run.version,
            "Comment": run.comment,
            "Parameters": run.parameters,
            "InstanceIds": [] if run.targets else list(run.invocations),
            "Targets": run.targets,
            "RequestedDateTime": run.at,
            "Status": run.status(),
            "StatusDetails": run.status(),
            "TargetCount": len(run.invocations),
        }


def _invocation(run: CommandRun, instance_id: str) -> dict[str, Any]:
    return {
        "CommandId": run.id,
        "InstanceId": instance_id,
        "DocumentName": run.document,
        "DocumentVersion": run.version,
        "RequestedDateTime": run.at,
        "Comment": run.comment,
        "Status": "Pending",
        "StatusDetails": "Pending",
    }


def _parameters(content: dict[str, Any], given: dict[str, Any]) -> dict[str, list[str]]:
    """Every parameter of the document with its value. Raises InvalidParameters as the API does."""
    declared = content.get("parameters") or {}
    unknown = sorted(set(given) - set(declared))
    if unknown:
        raise AwsFailure("InvalidParameters", f"Parameters {unknown} are not those of the document.")
    values: dict[str, list[str]] = {}
    for name, rule in declared.items():
        value = given.get(name, rule.get("default"))
        if value is None:
            raise AwsFailure("InvalidParameters", f"Parameter {name} has no value and no default.")
        values[name] = [str(v) for v in (value if isinstance(value, list) else [value])]
        for text in values[name]:
            _check(name, text, rule)
    return values


def _check(name: str, text: str, rule: dict[str, Any]) -> None:
    pattern, allowed = rule.get("allowedPattern"), rule.get("allowedValues")
    if pattern and not re.search(pattern, text):
        raise AwsFailure("InvalidParameters", f"Parameter {name} does not match its allowedPattern {pattern}.")
    if allowed and text not in [str(v) for v in allowed]:
        raise AwsFailure("InvalidParameters", f"Parameter {name} is none of its allowedValues.")
    if not int(rule.get("minChars", 0)) <= len(text) <= int(rule.get("maxChars", 1 << 20)):
        raise AwsFailure("InvalidParameters", f"Parameter {name} is too short or too long.")


def _shell(step: dict[str, Any], declared: dict[str, Any], values: dict[str, list[str]]) -> Step:
    """The step's script. ENV_VAR parameters become SSM_<name>; the others are pasted into the text, as SSM does."""
    inputs = step["inputs"]
    script = "\n".join(inputs["runCommand"])
    env: dict[str, str] = {}
    for name, texts in values.items():
        joined = ",".join(texts)
        if declared[name].get("interpolationType") == "ENV_VAR":
            env[f"SSM_{name}"] = joined
        else:
            script = joined.join(re.split(r"\{\{\s*" + re.escape(name) + r"\s*\}\}", script))
    return Step(name=step["name"], script=script, env=env, timeout_s=float(inputs.get("timeoutSeconds", 3600)))
