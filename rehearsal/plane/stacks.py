"""The life of stacks beside moto's: custom resources are asked, a refusal keeps the stack, and what is gone is gone.

Source: CloudFormation User Guide, "Custom resource request and response reference". A function is called with a signed
address and has to put its answer there; an answer that never comes is a failure. Here a custom resource is asked when
moto has made the others, so one whose attributes another resource refers to cannot be played.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from moto.cloudformation.models import Event

from rehearsal.plane.account import Account
from rehearsal.plane.calls import Call
from rehearsal.plane.failures import EmulationGap
from rehearsal.plane.functions import Functions
from rehearsal.plane.resources import Deployed, Properties, Resource
from rehearsal.plane.server import ANSWERS, Verb
from rehearsal.plane.wire import WireAnswer, write_answer

CUSTOM: Final = "Custom::"
TRIES: Final = 3  # an asynchronous invocation and its two retries
QUERY: Final = "application/x-www-form-urlencoded"  # what CloudFormation's clients speak


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """A custom resource as its function has answered for it."""

    physical_id: str
    properties: Properties


class Stacks:
    """Wraps CreateStack, UpdateStack and DeleteStack. None of it runs under the account's lock: functions call back.

    `ended` is told of the resources of a stack before moto deletes them, `gone` of each that is no longer there.
    """

    def __init__(
        self,
        *,
        account: Account,
        deployed: Deployed,
        functions: Functions,
        ended: Callable[[list[Resource]], None],
        gone: Callable[[Resource], None],
    ) -> None:
        self.endpoint = ""
        self._account = account
        self._deployed = deployed
        self._functions = functions
        self._ended = ended
        self._gone = gone
        self._made: dict[tuple[str, str], _Made] = {}
        self._answers: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()

    def outside(self) -> dict[tuple[str, str], Callable[[Call, Callable[[], WireAnswer]], WireAnswer]]:
        """The operations that this wraps."""
        verbs = {"CreateStack": self.make, "UpdateStack": self.make, "DeleteStack": self.delete}
        return {("cloudformation", operation): verb for operation, verb in verbs.items()}

    @staticmethod
    def verbs() -> dict[tuple[str, str], Verb]:
        """What the CDK CLI asks beside CloudFormation, after a deployment that failed: nobody keeps a trail here."""
        return {("cloudtrail", "LookupEvents"): lambda _call: {"Events": []}}

    def answered(self, path: str, body: bytes) -> None:
        """A function's answer has arrived at the address that it was given."""
        with self._lock:
            self._answers[path.removeprefix(ANSWERS)] = json.loads(body)

    # ------------------------------------------------------------------------------------------ making
    def make(self, call: Call, proceed: Callable[[], WireAnswer]) -> WireAnswer:
        """Create or update: what left the template is forgotten, then each new or changed custom resource is asked."""
        stack = str(call.params.get("StackName", ""))
        self._remember_defaults(stack)
        answer = proceed()
        if answer[0] >= 300 or (found := self._stack(stack)) is None:
            return answer
        self._forget_removed(stack, found.template_dict["Resources"])
        for resource in self._custom(stack):
            self._refuse_references(found.template_dict, resource)
            if refusal := self._ask_to_make(found, resource):
                self._roll_back(found, resource, refusal)
                break
        return answer

    def _remember_defaults(self, name: str) -> None:
        """A parameter's previous value is its default where none was given; moto knows only what was given."""
        with self._account.lock:
            stack = self._stack(name)
            declared = {} if stack is None else stack.template_dict.get("Parameters", {})
            for key, one in declared.items():
                if "Default" in one:
                    stack.parameters.setdefault(key, one["Default"])

    def _ask_to_make(self, stack: Any, resource: Resource) -> str:
        """Why the resource could not be made; '' for made, or for nothing to do."""
        known = self._made.get((resource.stack, resource.logical_id))
        if known is not None and known.properties == resource.properties:
            return ""
        said = self._ask(stack, resource, "Update" if known else "Create", known)
        if said["Status"] != "SUCCESS" and known is not None:
            raise EmulationGap(f"{resource.logical_id} refused an update; rolling an update back is not played")
        made = _Made(physical_id=str(said["PhysicalResourceId"]), properties=resource.properties)
        self._made[resource.stack, resource.logical_id] = made
        resource.model.name, resource.model.answered = made.physical_id, said["Status"] == "SUCCESS"
        return "" if said["Status"] == "SUCCESS" else str(said["Reason"])

    def _roll_back(self, stack: Any, resource: Resource, refusal: str) -> None:
        """A creation that failed: what was made is deleted again, retained resources stay, as CloudFormation does."""
        known = self._made.pop((resource.stack, resource.logical_id))
        _event(stack, resource, known.physical_id, "CREATE_FAILED", refusal)
        said = self._ask(stack, resource, "Delete", known)
        self._end(resource.stack)
        made = self._deployed.of_stack(resource.stack)
        with self._account.lock:
            stack.resource_map.delete()
            stack.status = "ROLLBACK_COMPLETE" if said["Status"] == "SUCCESS" else "ROLLBACK_FAILED"
            stack._add_stack_event(stack.status, resource_status_reason=refusal)
        for one in made:
            self._gone(one)

    def _refuse_references(self, template: dict[str, Any], resource: Resource) -> None:
        others = {name: one for name, one in template["Resources"].items() if name != resource.logical_id}
        if f'["{resource.logical_id}"' in json.dumps([others, template.get("Outputs")]):
            raise EmulationGap(f"something refers to {resource.logical_id}: it would have to be asked earlier")

    # ------------------------------------------------------------------------------------------ deleting
    def delete(self, call: Call, proceed: Callable[[], WireAnswer]) -> WireAnswer:
        """Custom resources are asked first. One that refuses leaves the stack, DELETE_FAILED, as it was.

        CloudFormation deletes at once what the refusing resource does not depend on: that would be gone here too, and
        is an error of the rehearsal, because nobody wants it.
        """
        found = self._stack(str(call.params.get("StackName", "")))
        if found is None:
            return proceed()
        for resource in self._custom(found.name):
            known = self._made.get((resource.stack, resource.logical_id))
            said = self._ask(found, resource, "Delete", known) if known else {"Status": "SUCCESS"}
            if said["Status"] != "SUCCESS":
                beside = unguarded(found.template_dict["Resources"], resource.logical_id)
                if beside:
                    raise EmulationGap(f"{resource.logical_id} refuses while {', '.join(beside)} are deleted already")
                self._refused(found, resource, str(said["Reason"]))
                return write_answer(call, {}, QUERY)
            self._made.pop((resource.stack, resource.logical_id), None)
        self._end(found.name)
        made = self._deployed.of_stack(found.name)
        answer = proceed()
        for resource in made:
            self._gone(resource)
        return answer

    def _refused(self, stack: Any, resource: Resource, reason: str) -> None:
        with self._account.lock:
            stack._add_stack_event("DELETE_IN_PROGRESS", resource_status_reason="User Initiated")
            _event(stack, resource, resource.model.name, "DELETE_FAILED", reason)
            failed = f"The following resource(s) failed to delete: [{resource.logical_id}]. "
            stack._add_stack_event("DELETE_FAILED", resource_status_reason=failed)
            stack.status, stack.stack_status_reason = "DELETE_FAILED", failed

    # ------------------------------------------------------------------------------------------ asking
    def _ask(self, stack: Any, resource: Resource, wish: str, known: _Made | None) -> dict[str, Any]:
        token = uuid.uuid4().hex
        event: dict[str, Any] = {
            "RequestType": wish,
            "ResponseURL": f"{self.endpoint}{ANSWERS}{token}",
            "StackId": stack.stack_id,
            "RequestId": str(uuid.uuid4()),
            "LogicalResourceId": resource.logical_id,
            "ResourceType": resource.type,
            "ResourceProperties": resource.properties,
        }
        if known is not None:
            event |= {"PhysicalResourceId": known.physical_id}
        if known is not None and wish == "Update":
            event |= {"OldResourceProperties": known.properties}
        name = str(resource.properties["ServiceToken"]).rsplit(":", 1)[-1]
        for _ in range(TRIES):
            self._functions.invoke(name, event)
            with self._lock:
                said = self._answers.pop(token, None)
            if said is not None:
                return said
        silence = "Custom Resource failed to stabilize in expected time."
        physical_id = known.physical_id if known else f"{stack.name}-{resource.logical_id}-{token[:12]}"
        return {"Status": "FAILED", "Reason": silence, "PhysicalResourceId": physical_id}

    # ------------------------------------------------------------------------------------------ what is there
    def _stack(self, name_or_id: str) -> Any:
        with self._account.lock:
            stacks = list(self._account.backend("cloudformation").stacks.values())
        return next((one for one in stacks if name_or_id in (one.name, one.stack_id)), None)

    def _custom(self, stack: str) -> list[Resource]:
        return [one for one in self._deployed if one.stack == stack and one.type.startswith(CUSTOM)]

    def _end(self, stack: str) -> None:
        self._ended(self._deployed.of_stack(stack))

    def _forget_removed(self, stack: str, template: dict[str, Any]) -> None:
        for resource in self._deployed.of_stack(stack):
            if resource.logical_id not in template:
                self._gone(resource)
                self._deployed.forget(stack, resource.logical_id)
                self._made.pop((stack, resource.logical_id), None)


def _event(stack: Any, resource: Resource, physical_id: str, status: str, reason: str) -> None:
    stack.events.append(
        Event(
            stack_id=stack.stack_id,
            stack_name=stack.name,
            logical_resource_id=resource.logical_id,
            physical_resource_id=physical_id,
            resource_type=resource.type,
            resource_status=status,
            resource_status_reason=reason,
            resource_properties=None,
        )
    )


def unguarded(template: dict[str, Any], guard: str) -> list[str]:
    """Resources that may be deleted before `guard` has answered: those that it does not depend on."""
    reached, left = set[str](), [guard]
    while left:
        name = left.pop()
        if name not in reached and name in template:
            reached.add(name)
            left += _needs(template[name])
    return sorted(set(template) - reached)


def _needs(resource: dict[str, Any]) -> list[str]:
    after = resource.get("DependsOn", [])
    return [*([after] if isinstance(after, str) else after), *_references(resource.get("Properties", {}))]


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(named := value.get("Ref"), str):
            yield named
        if isinstance(attribute := value.get("Fn::GetAtt"), list):
            yield str(attribute[0])
        for part in value.values():
            yield from _references(part)
    elif isinstance(value, list):
        for part in value:
            yield from _references(part)
