"""The dashboard's widget: CloudWatch calls it as whoever looks at the dashboard, and shows the HTML that it returns.

`run` among the widget's parameters: that run's story. Without it: the live runs, each a click away. It reads the table
and nothing else, and a failure is a sentence: what a person sees is never a stack trace.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from spotproof.contract import ids
from spotproof.contract.settings import ControlSettings
from spotproof.errors import SpotproofError
from spotproof.report.model import Story
from spotproof.report.widget import RunLine, list_fragment, story_fragment, word_fragment
from spotproof.store.clients import Clients
from spotproof.store.dynamo import DynamoTable
from spotproof.store.head import Heads
from spotproof.store.live import LiveIndex
from spotproof.store.pointer import Pointers
from spotproof.store.stories import story_from
from spotproof.store.table import Table

LOOKED_UP_AT_MOST: Final = 100  # runs of the list, two reads each
ENTRIES_AT_MOST: Final = 8_000  # of a timeline, read and drawn within seconds
MARKDOWN: Final = """## spotproof: a run's story

The nodes of a run, what took them away, the stages of each recovery, and what it cost.

### Widget parameters
Param | Description
---|---
**run** | The run. Without it: the list of live runs.

### Example parameters
``` yaml
run: mini-gpt
```"""


def handler(event: Any, context: Any) -> str:
    """Lambda's entry."""
    table, now = _table(), time.time()
    return answer(event if isinstance(event, dict) else {}, table, function=context.invoked_function_arn, now=now)


def answer(event: Mapping[str, Any], table: Table, *, function: str, now: float) -> str:
    """What CloudWatch shows: the markdown that describes the widget, a list, a story, or a sentence."""
    if event.get("describe"):
        return MARKDOWN
    theme, run = _theme(event), event.get("run")
    try:
        if run in (None, ""):
            return list_fragment(_live(table), theme=theme, function=function)
        if not isinstance(run, str) or not ids.is_run_id(run):
            return word_fragment("The parameter `run` is not a run id.", theme=theme)
        return _told(table, run, theme=theme, function=function, now=now)
    except SpotproofError as error:
        return word_fragment(f"The table could not be read: {error}", theme=theme)


def _theme(event: Mapping[str, Any]) -> str:
    context = event.get("widgetContext")
    return str(context.get("theme", "")) if isinstance(context, dict) else ""


def _live(table: Table) -> list[RunLine]:
    runs = sorted(entry.run for entry in LiveIndex(table).due(now=2**40))
    looked = [_line(table, run) for run in runs[:LOOKED_UP_AT_MOST]]
    return [*looked, *(RunLine(run=run, status="", slots=0) for run in runs[LOOKED_UP_AT_MOST:])]


def _line(table: Table, run: str) -> RunLine:
    head, pointer = Heads(table).read(run), Pointers(table).read(run)
    if head is None:
        return RunLine(run=run, status="unknown", slots=0)
    says = "" if head.cause is None else f"{head.cause.value}: {head.reason}"
    step = None if pointer is None else pointer.step
    return RunLine(run=run, status=head.status.value, slots=head.slots, step=step, says=says)


def _told(table: Table, run: str, *, theme: str, function: str, now: float) -> str:
    head = Heads(table).read(run)
    told: Story = story_from(table, run, now=now, entries_at_most=ENTRIES_AT_MOST)
    if head is None and not told.nodes:
        return word_fragment(f"There is no run {run} in this stack.", theme=theme)
    status = "" if head is None else head.status.value
    because = "" if head is None or head.cause is None else f" ({head.cause.value}: {head.reason})"
    return story_fragment(told, theme=theme, note=f"{status}{because}", back=function)


@cache
def _table() -> Table:
    settings = ControlSettings.from_env(os.environ)
    return DynamoTable(Clients(region=settings.region).dynamodb, settings.table)
