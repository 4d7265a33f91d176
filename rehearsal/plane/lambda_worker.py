"""One warm execution environment of a function: run as a script, with what the Lambda runtime would offer it.

    python -I -S lambda_worker.py REQUEST_FD ANSWER_FD RUNTIME_SITE

It imports the deployed handler from LAMBDA_TASK_ROOT, then answers one invocation per line. Packages other than the
zip's come from RUNTIME_SITE, which holds boto3 and what boto3 needs, as the real runtime does. Standard library only.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

Handler = Callable[[Any, "Context"], Any]


class Context:
    """What Lambda hands to a handler beside the event."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.function_name = os.environ["AWS_LAMBDA_FUNCTION_NAME"]
        self.function_version = "$LATEST"
        self.memory_limit_in_mb = os.environ["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"]
        self.log_group_name = os.environ["AWS_LAMBDA_LOG_GROUP_NAME"]
        self.log_stream_name = os.environ["AWS_LAMBDA_LOG_STREAM_NAME"]
        self.invoked_function_arn = request["arn"]
        self.aws_request_id = request["request_id"]
        self.client_context = None
        self.identity = None
        self._deadline = time.monotonic() + request["timeout_s"]

    def get_remaining_time_in_millis(self) -> int:
        return max(0, int((self._deadline - time.monotonic()) * 1000))


def load_handler() -> Handler:
    module, _, name = os.environ["_HANDLER"].rpartition(".")
    handler: Handler = getattr(importlib.import_module(module.replace("/", ".")), name)
    return handler


def failure(error: BaseException) -> dict[str, Any]:
    return {
        "errorType": type(error).__name__,
        "errorMessage": str(error),
        "stackTrace": traceback.format_exception(error),
    }


def serve(request_fd: int, answer_fd: int) -> None:
    handler: Handler | None = None
    with os.fdopen(request_fd, encoding="utf-8") as requests, os.fdopen(answer_fd, "w", encoding="utf-8") as answers:
        for line in requests:
            request = json.loads(line)
            print(f"START RequestId: {request['request_id']}", flush=True)
            try:
                handler = handler or load_handler()
                answer = {"result": json.loads(json.dumps(handler(request["event"], Context(request))))}
            except BaseException as error:  # noqa: BLE001  the edge of the runtime: any error is an answer
                answer = {"error": failure(error)}
                traceback.print_exc()
            sys.stdout.flush()
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


def main(argv: list[str]) -> None:
    sabotage = os.environ.pop("REHEARSAL_SITECUSTOMIZE", "")
    sys.path[:0] = [path for path in (sabotage, os.environ["LAMBDA_TASK_ROOT"]) if path]
    sys.path.append(argv[3])
    if sabotage:
        importlib.import_module("sitecustomize")
    serve(int(argv[1]), int(argv[2]))


if __name__ == "__main__":
    main(sys.argv)
