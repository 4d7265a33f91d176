"""SQS as the rest of the plane uses it: send, receive with the deployed visibility, delete, count."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from rehearsal.plane.account import Account


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """One message in flight; `record` is what a function sees of it."""

    message_id: str
    receipt: str
    record: dict[str, Any]


class Queues:
    """`time_scale` shortens the visibility timeout of what failed: a retry need not wait six function timeouts."""

    def __init__(self, account: Account, *, time_scale: float = 1.0) -> None:
        self.time_scale = time_scale
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self.arrived = threading.Condition()
        self._account = account

    def policy(self, name: str) -> dict[str, Any]:
        """The queue's deployed policy; empty when it has none."""
        with self._account.lock:
            text = self._account.queues.get_queue(name).policy
        return json.loads(text) if text else {}

    def send(self, name: str, body: str, *, attributes: dict[str, str] | None = None) -> None:
        """A message of a service. Permission is the caller's to check (`policies.allows`)."""
        with self._account.lock:
            self._account.queues.send_message(
                queue_name=name,
                message_body=body,
                message_attributes={k: {"DataType": "String", "StringValue": v} for k, v in (attributes or {}).items()},
            )
        self.sent[name] += 1
        with self.arrived:
            self.arrived.notify_all()

    def receive(self, arn: str, count: int) -> list[Received]:
        """Up to `count` visible messages. Those over maxReceiveCount go to the dead-letter queue instead."""
        name = arn.rsplit(":", 1)[-1]
        with self._account.lock:
            queue = self._account.queues.get_queue(name)
            messages = self._account.queues.receive_message(name, count, 0, queue.visibility_timeout, ["All"])
            self.received[name] += len(messages)
            return [self._received(message, arn) for message in messages]

    def _received(self, message: Any, arn: str) -> Received:
        record = {
            "messageId": message.id,
            "receiptHandle": message.receipt_handle,
            "body": message.body,
            "attributes": {
                "ApproximateReceiveCount": str(message.approximate_receive_count),
                "SentTimestamp": str(message.sent_timestamp),
                "SenderId": message.sender_id,
                "ApproximateFirstReceiveTimestamp": str(message.approximate_first_receive_timestamp),
            },
            "messageAttributes": {
                name: {"stringValue": value.get("StringValue"), "dataType": value["DataType"]}
                for name, value in message.message_attributes.items()
            },
            "md5OfBody": message.body_md5,
            "eventSource": "aws:sqs",
            "eventSourceARN": arn,
            "awsRegion": self._account.region,
        }
        return Received(message_id=message.id, receipt=message.receipt_handle, record=record)

    def release(self, arn: str, failed: set[str]) -> None:
        """Messages that a function did not finish: visible again when their shortened visibility timeout is over.

        While a function works on them they stay invisible as long as deployed, so that a slow machine does not make
        duplicates that AWS would not make.
        """
        with self._account.lock:
            queue = self._account.queues.get_queue(arn.rsplit(":", 1)[-1])
            for message in queue._messages:
                if message.id in failed:
                    message.visible_at = (time.time() + queue.visibility_timeout * self.time_scale) * 1000

    def delete(self, arn: str, received: list[Received]) -> None:
        with self._account.lock:
            for message in received:
                self._account.queues.delete_message(arn.rsplit(":", 1)[-1], message.receipt)

    def waiting(self, name: str) -> int:
        """Messages in the queue, in flight or not."""
        with self._account.lock:
            return len(self._account.queues.get_queue(name)._messages)

    def bodies(self, name: str) -> list[str]:
        """Bodies of everything in the queue, oldest first, without receiving any: to look into a dead-letter queue."""
        with self._account.lock:
            return [str(message.body) for message in self._account.queues.get_queue(name)._messages]

    def sent_at(self, name: str) -> list[float]:
        """When (Unix seconds) each message that is in the queue was put there."""
        with self._account.lock:
            return [float(message.sent_timestamp) / 1000 for message in self._account.queues.get_queue(name)._messages]

    def names(self) -> list[str]:
        with self._account.lock:
            return list(self._account.queues.queues)
