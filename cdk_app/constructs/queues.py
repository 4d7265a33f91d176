"""Queues between what speaks and what acts, each with a dead-letter queue, and one for what was never delivered."""

from __future__ import annotations

from typing import Final

from aws_cdk import Duration, Fn
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from cdk_app.acknowledge import SERVERLESS, acknowledge
from spotproof.contract import names
from spotproof.contract.events import Queue

KEPT: Final = Duration.days(14)
WAITING: Final = Duration.days(1)


class Queues(Construct):
    """`by_name` are the queues that functions read, `dead` their dead letters; `undelivered` is what EventBridge, the
    schedule or an asynchronous call could not hand over. A message in one of the last two rings an alarm."""

    def __init__(self, scope: Construct, construct_id: str) -> None:
        super().__init__(scope, construct_id)
        self.undelivered = self._letters("Undelivered")
        self.dead = {queue: self._letters(f"{queue.value.title()}Dead") for queue in Queue}
        self.by_name = {row.queue: self._queue(row.queue, row) for row in names.FUNCTIONS if row.queue is not None}

    def letters(self) -> dict[str, sqs.Queue]:
        """Every queue that must stay empty, by what it is."""
        dead = {f"{queue.value} dead letters": letters for queue, letters in self.dead.items()}
        return {**dead, "undelivered events": self.undelivered}

    def listed(self) -> str:
        """`name=url,...` of every queue, as the output tells it to operators: see contract.names."""
        urls = {queue.value: one.queue_url for queue, one in self.by_name.items()}
        urls |= {names.dead_letters_of(queue): one.queue_url for queue, one in self.dead.items()}
        urls |= {names.UNDELIVERED: self.undelivered.queue_url}
        return Fn.join(",", [Fn.join("=", [name, url]) for name, url in urls.items()])

    def _queue(self, queue: Queue, row: names.FunctionRow) -> sqs.Queue:
        return sqs.Queue(
            self,
            queue.value.title(),
            enforce_ssl=True,
            encryption=sqs.QueueEncryption.SQS_MANAGED,
            retention_period=WAITING,
            visibility_timeout=Duration.seconds(names.VISIBILITY_FACTOR * row.timeout_s),
            dead_letter_queue=sqs.DeadLetterQueue(queue=self.dead[queue], max_receive_count=names.MAX_RECEIVES),
        )

    def _letters(self, name: str) -> sqs.Queue:
        queue = sqs.Queue(
            self,
            name,
            enforce_ssl=True,
            encryption=sqs.QueueEncryption.SQS_MANAGED,
            retention_period=KEPT,
        )
        itself = "This is the dead-letter queue itself; an alarm watches its depth."
        acknowledge(queue, "SQS3", itself)
        acknowledge(queue, "SQSRedrivePolicy", itself, pack=SERVERLESS)
        return queue
