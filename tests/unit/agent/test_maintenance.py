"""Maintenance that the metadata announces: an extra checkpoint when it is heard of, and another when it is near."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime

from spotproof.agent.imds import Endpoint, Imds, MetadataNotice
from spotproof.agent.notices import Heard, Notices, Source
from spotproof.contract.states import NoticeKind
from tests.fakes.imds import MAINTENANCE, FakeImds, serving

AT = datetime(2026, 5, 18, 6, 0, tzinfo=UTC).timestamp()
EVENT = {
    "NotBefore": "18 May 2026 06:00:00 GMT",
    "NotAfter": "18 May 2026 08:00:00 GMT",
    "Code": "instance-reboot",
    "EventId": "instance-event-0d59937288b749b32",
    "State": "active",
}


def polled(now: float, *events: dict[str, str]) -> list[MetadataNotice]:
    with serving(FakeImds(answers={MAINTENANCE: (200, json.dumps(events))})) as url:
        endpoint = Endpoint.from_env({"AWS_EC2_METADATA_SERVICE_ENDPOINT": url})
        return Imds(endpoint=endpoint, monotonic=time.monotonic, now=lambda: now).poll()


def heard(notices: Notices, now: float) -> list[bool]:
    """Whether each notice of this poll is worth an extra checkpoint."""
    found = [
        Heard(key=one.key, source=Source.METADATA, kind=one.kind, deadline_at=one.deadline_at, leave=False)
        for one in polled(now, EVENT)
    ]
    return [news is not None and news.is_extra for news in (notices.hear(one, now=now) for one in found)]


def test_it_is_read_with_its_date_and_its_code() -> None:
    [notice] = polled(AT - 86_400, EVENT)
    assert (notice.kind, notice.deadline_at, notice.detail) == (NoticeKind.MAINTENANCE, AT, "instance-reboot")


def test_what_is_done_or_cancelled_is_nothing() -> None:
    assert polled(AT - 86_400, {**EVENT, "State": "completed"}, {**EVENT, "State": "canceled"}) == []


def test_a_node_saves_when_it_hears_of_it_and_once_more_when_it_is_near() -> None:
    notices = Notices()
    assert heard(notices, AT - 86_400) == [True]
    assert heard(notices, AT - 7200) == [False]
    assert heard(notices, AT - 600) == [True]
    assert heard(notices, AT - 300) == [False]
    assert notices.leaving is None, "nobody has told this node to leave"
