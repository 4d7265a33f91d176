"""Errors of the emulated account, as AWS words them."""

from __future__ import annotations


class AwsFailure(Exception):
    """An API answers with this error. `code` is AWS's own, `status` the HTTP status it travels with."""

    def __init__(self, code: str, message: str, *, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status


class ConnectionLost(Exception):
    """The connection ends without an answer; the caller cannot know whether the call took effect."""


class EmulationGap(Exception):
    """The deployed stack uses something that the plane does not emulate. Never hidden: the rehearsal fails with it."""
