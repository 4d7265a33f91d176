"""When a node was ready, joined, had its state and made its first step: what only the node knows, told in its beat.

One short text, because a beat has 200 bytes: hexadecimal milliseconds since 1970 for the first moment, then the
milliseconds from each moment to the next. All four come from one clock, so their differences need no other.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

MOST = 2**44  # milliseconds: the year 2527; a larger number is nonsense


class Moment(IntEnum):
    """The moments of a node's start, in their order."""

    PARKED = 0  # prepared: nothing but its turn is missing
    JOINED = 1  # the membership with it is sealed
    RESTORED = 2  # the verified state is handed to the trainer
    FIRST_STEP = 3  # the trainer told of its first optimizer step


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The moments that have been, in Unix milliseconds: none is left out and none is earlier than the one before."""

    at_ms: tuple[int, ...] = ()

    def of(self, moment: Moment) -> int | None:
        """When `moment` was, or None."""
        return self.at_ms[moment] if moment < len(self.at_ms) else None

    def passed(self, moment: Moment, at_ms: int) -> Times:
        """With `moment` added. Unchanged if it has been, or if the one before it has not.

        So an agent that was started again in the middle tells nothing, where it would tell half a start as a whole one.
        """
        if moment != len(self.at_ms):
            return self
        return Times(at_ms=(*self.at_ms, max(at_ms, self.at_ms[-1] if self.at_ms else 0)))

    @property
    def is_whole(self) -> bool:
        """Whether the first step has been made."""
        return len(self.at_ms) == len(Moment)

    def text(self) -> str:
        """For the beat; '' before the first moment."""
        before = (0, *self.at_ms)
        return "+".join(f"{at - since:x}" for since, at in zip(before, self.at_ms, strict=False))


def times_of(text: str) -> Times:
    """`text` of a beat. What is no such text gives no times: a node's word is a hint."""
    try:
        steps = [int(word, 16) for word in text.split("+")] if text else []
    except ValueError:
        return Times()
    if len(steps) > len(Moment) or any(not 0 <= step < MOST for step in steps):
        return Times()
    return Times(at_ms=tuple(sum(steps[: index + 1]) for index in range(len(steps))))
