"""Actions that change nothing: entries of the timeline, words to people, metrics."""

from __future__ import annotations

from spotproof.contract.frozen import dataclass
from spotproof.contract.history import HistoryKind
from spotproof.contract.items import Head
from spotproof.contract.metrics import Metric
from spotproof.contract.states import Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Tell:
    """An entry of the timeline. `at` is set where the time is the event's own: then a duplicate is one entry.

    `entry` tells entries of one kind and moment apart where slot, incarnation and instance do not.
    """

    run: str
    what: HistoryKind
    slot: int | None = None
    incarnation: int | None = None
    instance: str | None = None
    cause: Cause | None = None
    step: int | None = None
    detail: str = ""
    at: float | None = None
    entry: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notify:
    """Tell people what happened (`text`) and what, if anything, to do (`do`).

    One invocation says the same of a run once: texts of one run and one `many` go out together, under `many` with
    their count for `{count}`, so that a burst is one message.
    """

    subject: str
    text: str
    do: str = ""
    run: str = ""
    many: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A metric of contract.metrics. `pool` (type#zone#market) gives family and zone where its row has them."""

    metric: Metric
    value: float = 1
    cause: str = ""
    pool: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteMeasured:
    """Recoveries that ended up to `upto` are measured. Lost: somebody else measures them."""

    seen: Head
    upto: int
