"""Ids and how they are checked. An id that fails here never reaches a key, a tag or a request."""

from __future__ import annotations

import re
from typing import Final

from spotproof.errors import ContractError

RUN_ID_PATTERN: Final = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
STACK_NAME_PATTERN: Final = r"[a-z]([a-z0-9-]{0,30}[a-z0-9])?"
INSTANCE_ID_PATTERN: Final = r"i-([0-9a-f]{8}|[0-9a-f]{17})"
DIGEST_PATTERN: Final = r"[0-9a-f]{64}"

_RUN_ID = re.compile(RUN_ID_PATTERN)
_STACK = re.compile(STACK_NAME_PATTERN)
_INSTANCE_ID = re.compile(INSTANCE_ID_PATTERN)
_DIGEST = re.compile(DIGEST_PATTERN)


def run_id(text: str) -> str:
    """`text` if it is a run id.

    Raises:
        ContractError: it is not; the message says what a run id is.
    """
    if not _RUN_ID.fullmatch(text):
        raise ContractError(
            f"{text!r} is not a run id",
            next_step="use 1 to 63 lower-case letters, digits and '-', beginning and ending with a letter or digit",
        )
    return text


def stack_name(text: str) -> str:
    """`text` if it is a stack name (1-32 characters). Raises ContractError otherwise."""
    if not _STACK.fullmatch(text):
        raise ContractError(
            f"{text!r} is not a stack name",
            next_step="use 1 to 32 lower-case letters, digits and '-', beginning with a letter",
        )
    return text


def is_run_id(text: str) -> bool:
    """Whether `text` is a run id."""
    return _RUN_ID.fullmatch(text) is not None


def is_instance_id(text: str) -> bool:
    """Whether `text` has the form of an EC2 instance id."""
    return _INSTANCE_ID.fullmatch(text) is not None


def is_digest(text: str) -> bool:
    """Whether `text` is a blake3 digest in hex."""
    return _DIGEST.fullmatch(text) is not None
