"""SQS: the repair queue that the sweep fills."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from spotproof.contract.parse import repair_body
from spotproof.store.awserrors import aws_failures, code_of, error_for

BATCH: Final = 10  # the API's limit
LONGEST_DELAY_S: Final = 900  # likewise


class RepairQueue:
    """Runs that are due, now or in some seconds."""

    def __init__(self, client: Any, url: str) -> None:
        self._client = client
        self._url = url

    def put(self, runs: Sequence[str]) -> int:
        """Enqueue the runs and return how many were accepted; the others are due again at the next sweep."""
        accepted = 0
        for first in range(0, len(runs), BATCH):
            entries = [
                {"Id": str(number), "MessageBody": json.dumps(repair_body(run))}
                for number, run in enumerate(runs[first : first + BATCH])
            ]
            try:
                answer = self._client.send_message_batch(QueueUrl=self._url, Entries=entries)
            except aws_failures() as failure:
                raise error_for(failure, doing="enqueue due runs") from failure
            accepted += len(answer.get("Successful", ()))
        return accepted

    def come_back(self, run: str, *, after_s: int, only_fills: bool) -> str:
        """Enqueue the run for a look in `after_s`; '' when it was, else the error code: then the sweep comes."""
        try:
            self._client.send_message(
                QueueUrl=self._url,
                MessageBody=json.dumps(repair_body(run, only_fills=only_fills)),
                DelaySeconds=min(after_s, LONGEST_DELAY_S),
            )
        except aws_failures() as failure:
            return code_of(failure)
        return ""
