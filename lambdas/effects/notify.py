"""SNS: what people are told."""

from __future__ import annotations

from typing import Any, Final

from spotproof.store.awserrors import aws_failures, code_of

SUBJECT_CHARACTERS: Final = 100


class Notices:
    """Messages to the stack's topic."""

    def __init__(self, client: Any, topic: str) -> None:
        self._client = client
        self._topic = topic

    def say(self, subject: str, text: str) -> str:
        """Publish; '' when it was, else the error code: a message that does not go out stops no recovery."""
        try:
            self._client.publish(TopicArn=self._topic, Subject=subject[:SUBJECT_CHARACTERS], Message=text)
        except aws_failures() as failure:
            return code_of(failure)
        return ""
