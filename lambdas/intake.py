"""A message's body to a value: the edge of the pipeline. Nothing foreign and nothing malformed passes."""

from __future__ import annotations

import json
from typing import Final

from spotproof.contract.messages import Ignored, Message, Repair
from spotproof.contract.parse import parse
from spotproof.contract.settings import ControlSettings
from spotproof.errors import MalformedEvent

FOREIGN: Final = "of another account or region"


def parsed(body: str, settings: ControlSettings, *, now: int) -> Message | Ignored:
    """Return the message, or Ignored with its reason. Raises MalformedEvent for what cannot be one of ours."""
    try:
        envelope = json.loads(body)
    except ValueError as error:
        raise MalformedEvent(f"not JSON: {error}", event_id="") from error
    if not isinstance(envelope, dict):
        raise MalformedEvent("not a JSON object", event_id="")
    message = parse(envelope, received_at=now)
    if isinstance(message, Ignored | Repair):
        return message
    if (message.account, message.region) != (settings.account, settings.region):
        return Ignored(reason=FOREIGN, event_id=message.event_id)
    return message
