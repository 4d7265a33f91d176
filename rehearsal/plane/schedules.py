"""Schedules: EventBridge Scheduler's and scheduled rules'. They fire when the rehearsal says so."""

from __future__ import annotations

import json
import re
import uuid
from collections import Counter
from typing import Any

from rehearsal.plane.account import Account, utc_now, wire_time
from rehearsal.plane.bus import Bus
from rehearsal.plane.failures import EmulationGap
from rehearsal.plane.functions import Functions
from rehearsal.plane.queues import Queues

# Context attributes of EventBridge Scheduler that a deployed Input may hold.
CONTEXT = re.compile(r"<aws\.scheduler\.([a-z-]+)>")


RATE = re.compile(r"rate\((\d+) (minute|hour|day)s?\)")
MINUTES = {"minute": 1, "hour": 60, "day": 1440}


class Schedules:
    """`tick()` is a minute: it fires the enabled schedules and scheduled rules whose period begins with it.

    The first tick begins every period, as a deployment does on AWS.
    """

    def __init__(self, *, account: Account, bus: Bus, queues: Queues, functions: Functions) -> None:
        self.ticks: Counter[str] = Counter()
        self._account = account
        self._bus = bus
        self._queues = queues
        self._functions = functions
        self._minutes = 0

    def names(self) -> list[str]:
        """Everything that `tick` fires."""
        return [s.name for s in self._schedules()] + [rule.name for rule in self._rules()]

    def tick(self, *names: str) -> list[str]:
        """Fires the schedules whose name contains one of `names`, or, with none given, what is due; returns which."""
        fired = []
        minute = self._minutes
        self._minutes += not names
        for schedule in self._schedules():
            is_due = minute % _period(schedule.schedule_expression) == 0
            if is_due if not names else any(name in schedule.name for name in names):
                self._fire(schedule)
                fired.append(str(schedule.name))
        for rule in self._rules():
            if not names or any(name in rule.name for name in names):
                event = {"detail-type": "Scheduled Event", "source": "aws.events", "resources": [rule.arn]}
                self._bus.send(rule, self._envelope(event))
                self.ticks[rule.name] += 1
                fired.append(str(rule.name))
        return fired

    def _schedules(self) -> list[Any]:
        with self._account.lock:
            groups = self._account.backend("scheduler").schedule_groups.values()
            return [s for group in groups for s in group.schedules.values() if s.state != "DISABLED"]

    def _rules(self) -> list[Any]:
        with self._account.lock:
            return [rule for rule in self._bus.rules() if rule.scheduled_expression]

    def _envelope(self, event: dict[str, Any]) -> dict[str, Any]:
        return {
            "version": "0",
            "id": str(uuid.uuid4()),
            "account": self._account.id,
            "time": wire_time(utc_now()),
            "region": self._account.region,
            "detail": {},
        } | event

    def _fire(self, schedule: Any) -> None:
        """Scheduler calls its target with the target's own role: the role must exist and be trusted."""
        target = schedule.target
        self._account.assume(target["RoleArn"], "scheduler")
        arn, name = str(target["Arn"]), str(target["Arn"]).rsplit(":", 1)[-1]
        text = CONTEXT.sub(lambda found: self._context(found.group(1), schedule), str(target.get("Input") or "{}"))
        if ":sqs:" in arn:
            self._queues.send(name, text)
        elif ":lambda:" in arn:
            self._functions.invoke_async(name, json.loads(text))
        else:
            raise EmulationGap(f"schedule {schedule.name}: the target {arn} is not played")
        self.ticks[schedule.name] += 1

    def _context(self, attribute: str, schedule: Any) -> str:
        values = {
            "schedule-arn": schedule.arn,
            "scheduled-time": wire_time(utc_now()),
            "execution-id": str(uuid.uuid4()),
            "attempt-number": "1",
        }
        return str(values[attribute])


def _period(expression: str) -> int:
    """Minutes between two ticks of a rate; what is no rate fires at each tick of the rehearsal."""
    found = RATE.fullmatch(expression)
    return int(found[1]) * MINUTES[found[2]] if found else 1
