"""Why a message is among the dead letters, and what would become of it: pure, by the parser that functions use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from spotproof.contract import names
from spotproof.contract.messages import Ignored, Repair
from spotproof.contract.names import UNDELIVERED
from spotproof.contract.parse import parse
from spotproof.errors import MalformedEvent
from spotproof.store.letters import Letter

RETURNS: Final = 2  # a letter that came back from so many replays is poison
# What EventBridge and its scheduler write on a letter ("Dead-letter queues" in their user guides).
RULE: Final = "RULE_ARN"
TARGET: Final = "TARGET_ARN"
CODE: Final = "ERROR_CODE"
SAYS: Final = "ERROR_MESSAGE"


class Fate(StrEnum):
    """What a replay does with a letter."""

    REPLAY = "replay"
    POISON = "poison"  # it would come back
    POINTLESS = "pointless"  # nobody would do anything for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """`what` it says, `reason` it is here, the queue that it belongs to ('' for none), how often it was replayed."""

    what: str
    reason: str
    fate: Fate
    target: str
    replays: int


def diagnose(queue: str, letter: Letter, queues: Mapping[str, str]) -> Diagnosis:
    """Of a letter in `queue`, in a stack with these queues (URL by name)."""
    target = _target(queue, letter, queues)
    replays = _number(letter.attributes.get(names.REPLAYS, ""))
    what, problem, fate = _content(letter)
    reason = problem or _why(queue, letter)
    if fate is Fate.REPLAY and not target:
        fate, reason = Fate.POISON, f"{reason}; it belongs to no queue of this stack"
    if fate is Fate.REPLAY and replays >= RETURNS:
        fate, reason = Fate.POISON, f"{reason}; it came back from {replays} replays"
    return Diagnosis(what=what, reason=reason, fate=fate, target=target, replays=replays)


def _target(queue: str, letter: Letter, queues: Mapping[str, str]) -> str:
    if queue != UNDELIVERED:
        return queue.removesuffix(names.DEAD)
    wanted = letter.attributes.get(TARGET, "").rsplit(":", 1)[-1]
    return next((name for name, url in queues.items() if wanted and url.rsplit("/", 1)[-1] == wanted), "")


def _content(letter: Letter) -> tuple[str, str, Fate]:
    """What the letter says, what is wrong with it ('' for nothing), and what may be done with it."""
    try:
        document: Any = json.loads(letter.body)
    except ValueError as error:
        return "no event", f"not JSON: {error}", Fate.POISON
    if not isinstance(document, dict):
        return "no event", "not a JSON object", Fate.POISON
    if _is_tick(document, letter):
        return "a tick of a schedule", "the tick was lost; the next one has done its work", Fate.POINTLESS
    event = str(document.get("id") or "without id")
    kind = str(document.get("detail-type") or "message")
    try:
        message = parse(document, received_at=letter.sent_at)
    except MalformedEvent as error:
        return f"{kind} {event}", f"malformed: {error.what}", Fate.POISON
    if isinstance(message, Ignored):
        return f"{kind} {event}", f"this version ignores it: {message.reason}", Fate.POINTLESS
    if isinstance(message, Repair):
        return f"repair of run {message.run}", "", Fate.REPLAY
    return f"{kind} {event} of {_subject(document)}", "", Fate.REPLAY


def _is_tick(document: Mapping[str, Any], letter: Letter) -> bool:
    """What Lambda reports of a failed asynchronous call, or the scheduler of a call that it could not make."""
    return "requestPayload" in document or "SCHEDULE_ARN" in letter.attributes or not document


def _subject(document: Mapping[str, Any]) -> str:
    detail = document.get("detail")
    return str(detail.get("instance-id") or "several things") if isinstance(detail, dict) else "nothing"


def _why(queue: str, letter: Letter) -> str:
    if queue == UNDELIVERED:
        code, says = letter.attributes.get(CODE, "unknown error"), letter.attributes.get(SAYS, "")
        more = f": {says}" if says and says != code else ""
        return f"{_rule(letter)} could not deliver it: {code}{more}"
    return f"its function failed {names.MAX_RECEIVES} times; that function's log says why"


def _rule(letter: Letter) -> str:
    name = letter.attributes.get(RULE, "").rsplit("/", 1)[-1]
    return f"rule {name}" if name else "EventBridge"


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
