"""Dead letters: messages that nobody could work on, read without losing any.

Order of the calls: `look` hides the letters for a while; then, for each, `send` to where it belongs and only then
`remove`; at the end `release` what is left. Whoever is cut off in between leaves a letter that is hidden for the rest
of that while, or one that was sent and is sent again: handlers take any message twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from spotproof.store.awserrors import aws_failures, error_for

__all__ = ["HOLD_S", "DeadLetters", "Letter"]

BATCH: Final = 10  # the API's limit
HOLD_S: Final = 120  # a person's look at a queue; what is not released comes back by itself
WAIT_S: Final = 1  # asks all of SQS's servers; without waiting it asks a sample and misses letters
_STRING: Final = "String"


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """One message. `attributes` are those that its sender gave it, as texts."""

    id: str
    receipt: str
    body: str
    sent_at: int
    attributes: Mapping[str, str]


class DeadLetters:
    """One queue of dead letters."""

    def __init__(self, client: Any, url: str) -> None:
        self._client = client
        self._url = url

    def count(self) -> int:
        """About how many letters there are, hidden ones included."""
        kinds = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
        try:
            answer = self._client.get_queue_attributes(QueueUrl=self._url, AttributeNames=list(kinds))
        except aws_failures() as failure:
            raise error_for(failure, doing=f"count {self._url}") from failure
        return sum(int(answer["Attributes"][kind]) for kind in kinds)

    def look(self, *, limit: int) -> tuple[Letter, ...]:
        """Up to `limit` letters, each once, hidden from others for HOLD_S."""
        found: dict[str, Letter] = {}
        while len(found) < limit:
            page = self._page(min(BATCH, limit - len(found)))
            fresh = {letter.id: letter for letter in page}
            if not fresh.keys() - found.keys():
                break
            found.update(fresh)
        return tuple(sorted(found.values(), key=lambda letter: (letter.sent_at, letter.id)))

    def _page(self, count: int) -> list[Letter]:
        try:
            answer = self._client.receive_message(
                QueueUrl=self._url,
                MaxNumberOfMessages=count,
                VisibilityTimeout=HOLD_S,
                WaitTimeSeconds=WAIT_S,
                MessageSystemAttributeNames=["All"],
                MessageAttributeNames=["All"],
            )
        except aws_failures() as failure:
            raise error_for(failure, doing=f"read {self._url}") from failure
        return [_letter(message) for message in answer.get("Messages", ())]

    def send(self, letter: Letter, *, to: str, attributes: Mapping[str, str]) -> None:
        """Send the letter's body to the queue at the URL `to`, with these attributes and no others."""
        given = {name: {"DataType": _STRING, "StringValue": value} for name, value in attributes.items()}
        try:
            self._client.send_message(QueueUrl=to, MessageBody=letter.body, MessageAttributes=given)
        except aws_failures() as failure:
            raise error_for(failure, doing=f"send letter {letter.id} to {to}") from failure

    def remove(self, letter: Letter) -> None:
        """Delete the letter for good; one that is gone is success."""
        try:
            self._client.delete_message(QueueUrl=self._url, ReceiptHandle=letter.receipt)
        except aws_failures() as failure:
            raise error_for(failure, doing=f"delete letter {letter.id}") from failure

    def release(self, letters: Iterable[Letter]) -> None:
        """Let others see the letters at once. What cannot be released now is seen when its time is over."""
        left = list(letters)
        for first in range(0, len(left), BATCH):
            entries = [
                {"Id": str(number), "ReceiptHandle": letter.receipt, "VisibilityTimeout": 0}
                for number, letter in enumerate(left[first : first + BATCH])
            ]
            try:
                self._client.change_message_visibility_batch(QueueUrl=self._url, Entries=entries)
            except aws_failures():
                return  # they come back within HOLD_S


def _letter(message: Mapping[str, Any]) -> Letter:
    given = message.get("MessageAttributes", {})
    return Letter(
        id=message["MessageId"],
        receipt=message["ReceiptHandle"],
        body=message["Body"],
        sent_at=int(message.get("Attributes", {}).get("SentTimestamp", 0)) // 1000,
        attributes={name: str(value.get("StringValue", "")) for name, value in given.items()},
    )
