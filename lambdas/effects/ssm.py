"""Run Command: the flush order, once per run, by the tags of the stack and the run."""

from __future__ import annotations

from typing import Any, Final

from spotproof.contract import tags
from spotproof.contract.limits import SSM_DELIVERY_S
from spotproof.contract.orders import DOCUMENT_PARAMETER, FlushOrder, request_line
from spotproof.errors import StoreError
from spotproof.store.awserrors import aws_failures, code_of
from spotproof.store.retry import Patience

ONE_TRY: Final = Patience(total_s=0)
PATIENCE: Final = Patience(total_s=12, first_s=0.2)
"""A backup path: what SSM does not take in this time, the nodes have heard from IMDS and HEAD long before (SSM-08)."""

EVERYBODY: Final = "100%"  # the default MaxErrors of 0 stops at the first dead node


class Commands:
    """Sends the stack's own document, at its pinned version."""

    def __init__(self, client: Any, *, stack: str, document: str, version: str, patience: Patience = ONE_TRY) -> None:
        self._client = client
        self._patience = patience
        self._stack = stack
        self._document = document
        self._version = version

    def flush(self, run: str, order: FlushOrder) -> str:
        """Send the order to every node of the run; '' when it was sent, else the error code.

        A throttled call is tried again within the patience given. No failure here is fatal: the node hears of its
        notice from IMDS, and the order stands in HEAD. By tags and not by ids, because one dead id would fail the whole
        call (SSM-01).
        """
        request = {
            "DocumentName": self._document,
            "DocumentVersion": self._version,
            "Targets": [
                {"Key": f"tag:{tags.STACK}", "Values": [self._stack]},
                {"Key": f"tag:{tags.RUN}", "Values": [run]},
            ],
            "Parameters": {DOCUMENT_PARAMETER: [request_line(order)]},
            "TimeoutSeconds": SSM_DELIVERY_S,
            "MaxConcurrency": EVERYBODY,
            "MaxErrors": EVERYBODY,
            "Comment": f"spotproof flush {order.order}"[:100],
        }
        last = ""

        def attempt() -> None:
            nonlocal last
            try:
                self._client.send_command(**request)
            except aws_failures() as failure:
                last = code_of(failure)
                raise

        try:
            self._patience.call(attempt, doing=f"send the flush order of {run}")
        except StoreError:
            return last
        return ""
