"""SQS batches: partial responses through Powertools Batch, so that one bad record never holds the other nine back."""

from __future__ import annotations

import time
from typing import Any

from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord

from lambdas import wiring


def respond(event: dict[str, Any], context: Any) -> Any:
    """Decide the batch as a whole, then answer for each record: failed ones come again and end in the queue's DLQ."""
    until = time.time() + context.get_remaining_time_in_millis() / 1000
    bodies = {record["messageId"]: record["body"] for record in event["Records"]}
    failures = wiring.control().handle(bodies, until=until)

    def answer(record: SQSRecord) -> None:
        failure = failures.get(record.message_id)
        if failure is not None:
            raise failure

    processor = BatchProcessor(event_type=EventType.SQS, raise_on_entire_batch_failure=False)
    return process_partial_response(event=event, record_handler=answer, processor=processor, context=context)
