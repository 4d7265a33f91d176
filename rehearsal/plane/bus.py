"""The default event bus: an event reaches the targets of the deployed rules, at least once, in no promised order."""

from __future__ import annotations

import json
import random
import threading
import uuid
from collections import Counter
from dataclasses import dataclass
from typing import Any, cast

from moto.events.utils import EventTemplateParser

from rehearsal.plane.account import Account, utc_now, wire_time
from rehearsal.plane.calls import Call
from rehearsal.plane.failures import EmulationGap
from rehearsal.plane.faults import FaultTable, Kind
from rehearsal.plane.functions import Functions
from rehearsal.plane.policies import allows
from rehearsal.plane.queues import Queues
from rehearsal.timeline import Timeline

Event = dict[str, Any]


@dataclass(kw_only=True)
class Delivery:
    """How unkind the bus is. All zero: each event once, in order.

    `duplicates` is the chance that a delivery is made a second time (0..1), `jitter_s` the longest random delay of a
    delivery, which reorders, `losses` the chance that an event reaches no target at all: EC2's are best effort.
    """

    duplicates: float = 0.0
    jitter_s: float = 0.0
    losses: float = 0.0


class Bus:
    """Matches with moto's EventPattern, checks the target's resource policy, delivers, retries, dead-letters."""

    def __init__(
        self,
        *,
        account: Account,
        queues: Queues,
        functions: Functions,
        faults: FaultTable,
        timeline: Timeline,
        seed: int,
    ) -> None:
        self.delivery = Delivery()
        self.emitted: list[Event] = []
        self.matched: Counter[str] = Counter()
        self.delivered: Counter[str] = Counter()
        self.dead: Counter[str] = Counter()
        self.refused: list[str] = []
        self.retry_s = 0.2
        self._account = account
        self._queues = queues
        self._functions = functions
        self._faults = faults
        self._timeline = timeline
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    def emit(self, event: Event) -> str:
        """Puts an event on the bus as its service would and returns its id. Delivery follows on the timeline.

        What the envelope lacks is filled in: version, id, account, time, region, resources.
        """
        whole = {
            "version": "0",
            "id": str(uuid.uuid4()),
            "account": self._account.id,
            "time": wire_time(utc_now()),
            "region": self._account.region,
            "resources": [],
            "detail": {},
        } | event
        with self._lock:
            self.emitted.append(whole)
            lost = self.delivery.losses > 0 and self._random.random() < self.delivery.losses
        if not lost:
            for rule, target in self._targets(whole):
                self._dispatch(rule, target, whole)
        return str(whole["id"])

    def _targets(self, event: Event) -> list[tuple[Any, dict[str, Any]]]:
        with self._account.lock:
            rules = [r for r in self.rules() if r.event_pattern.get_pattern() and r.event_pattern.matches_event(event)]
            for rule in rules:
                self.matched[rule.name] += 1
            return [(rule, dict(target)) for rule in rules for target in rule.targets]

    def rules(self) -> list[Any]:
        """moto's enabled rules of the default bus."""
        return [r for r in self._account.events.event_buses["default"].rules.values() if r.state != "DISABLED"]

    def send(self, rule: Any, event: Event) -> None:
        """Delivers `event` to every target of one rule, matched or not: a schedule's tick."""
        self.matched[rule.name] += 1
        for target in list(rule.targets):
            self._dispatch(rule, dict(target), event)

    def _dispatch(self, rule: Any, target: dict[str, Any], event: Event) -> None:
        with self._lock:
            copies = 1 + (self._random.random() < self.delivery.duplicates)
            delays = [self._random.uniform(0, self.delivery.jitter_s) for _ in range(copies)]
        for delay in delays:
            self._timeline.after(delay, lambda: self._deliver(rule, target, event, attempt=0))

    def _deliver(self, rule: Any, target: dict[str, Any], event: Event, *, attempt: int) -> None:
        failure = self._try(rule.arn, rule.name, target, event)
        if failure is None:
            return
        policy = target.get("RetryPolicy") or {}
        left = int(policy.get("MaximumRetryAttempts", 185)) - attempt
        if failure != "NO_PERMISSIONS" and left > 0:
            again = self.retry_s * 2 ** min(attempt, 5)
            self._timeline.after(again, lambda: self._deliver(rule, target, event, attempt=attempt + 1))
            return
        self._bury(rule, target, event, failure, attempt)

    def _try(self, rule_arn: str, rule_name: str, target: dict[str, Any], event: Event) -> str | None:
        """None when delivered, else the error code of a dead letter."""
        arn, payload = str(target["Arn"]), _payload(target, event)
        service, name = arn.split(":")[2], arn.rsplit(":", 1)[-1]
        operation = {"sqs": "SendMessage", "lambda": "Invoke"}.get(service)
        if operation is None:
            raise EmulationGap(f"rule {rule_name}: targets of service {service} are not played ({arn})")
        fault, _ = self._faults.meet(Call(service=service, operation=operation, params={"Target": arn}, role="events"))
        if fault is not None and fault.kind in (Kind.ERROR, Kind.DROP):
            return fault.code or "SDK_CLIENT_ERROR"
        policy = self._queues.policy(name) if service == "sqs" else self._functions.policy(name)
        action = "sqs:SendMessage" if service == "sqs" else "lambda:InvokeFunction"
        if not allows(policy, principal="events.amazonaws.com", action=action, resource=arn, source_arn=rule_arn):
            self.refused.append(f"{rule_name} -> {arn}: the target's policy does not allow it")
            return "NO_PERMISSIONS"
        if service == "sqs":
            self._queues.send(name, json.dumps(payload))
        else:
            self._functions.invoke_async(name, payload)
        self.delivered[rule_name] += 1
        return None

    def _bury(self, rule: Any, target: dict[str, Any], event: Event, code: str, attempts: int) -> None:
        self.dead[rule.name] += 1
        dlq = (target.get("DeadLetterConfig") or {}).get("Arn")
        if not dlq:
            return
        attributes = {
            "RULE_ARN": rule.arn,
            "TARGET_ARN": target["Arn"],
            "ERROR_CODE": code,
            "ERROR_MESSAGE": code,
            "RETRY_ATTEMPTS": str(attempts),
        }
        self._queues.send(str(dlq).rsplit(":", 1)[-1], json.dumps(_payload(target, event)), attributes=attributes)

    def put_events(self, call: Call) -> dict[str, Any]:
        """PutEvents of a client. Sources of AWS itself are refused, entry by entry, as AWS refuses them."""
        answers = [self._put(entry) for entry in call.params.get("Entries", [])]
        return {"FailedEntryCount": sum("ErrorCode" in a for a in answers), "Entries": answers}

    def _put(self, entry: dict[str, Any]) -> dict[str, Any]:
        source = str(entry.get("Source", ""))
        if source.startswith("aws."):
            message = f"Not authorized for the source: {source}"
            return {"ErrorCode": "NotAuthorizedForSourceException", "ErrorMessage": message}
        try:
            detail = json.loads(entry.get("Detail", ""))
        except ValueError:
            return {"ErrorCode": "MalformedDetail", "ErrorMessage": "Detail is malformed."}
        event = {"source": source, "detail-type": entry.get("DetailType", ""), "detail": detail}
        return {"EventId": self.emit(event | {"resources": entry.get("Resources", [])})}


def _payload(target: dict[str, Any], event: Event) -> Any:
    """The event as the deployed target wants it."""
    if target.get("Input"):
        return json.loads(target["Input"])
    transformer = target.get("InputTransformer")
    if not transformer:
        return event
    return EventTemplateParser.parse(
        input_template=transformer.get("InputTemplate"),
        input_paths_map=transformer.get("InputPathsMap", {}),
        event=cast(Any, event),
    )
