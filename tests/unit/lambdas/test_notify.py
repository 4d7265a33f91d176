"""What people are told: one message for each run and decision, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest
from botocore.exceptions import ClientError

from lambdas.effects.notify import Notices, Word
from spotproof.contract.keys import Key
from spotproof.contract.metrics import Metric
from spotproof.contract.runspec import Budgets
from spotproof.errors import Unavailable
from spotproof.store.table import BulkTable, Item
from tests.fakes.control import World, notice, state
from tests.fakes.ec2 import FakeSns


class Sns:
    """Keeps what is published."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def publish(self, **message: Any) -> None:
        self.sent.append(message)


class Refusing(FakeSns):
    """A topic that nobody may publish to."""

    def publish(self, **request: str) -> dict[str, str]:
        raise ClientError({"Error": {"Code": "AuthorizationError", "Message": str(request)}}, "Publish")


def said(*words: Word) -> list[tuple[str, str]]:
    sns = Sns()
    notices = Notices(sns, "arn:topic", stack="prod")
    for word in words:
        notices.say(word)
    assert notices.flush() == []
    return [(one["Subject"], one["Message"]) for one in sns.sent]


def lost(number: int, run: str = "mini") -> Word:
    return Word(
        subject=f"run {run} lost a node",
        many=f"run {run} lost {{count}} nodes",
        text=f"Slot {number} lost i-{number}.",
        run=run,
    )


def test_a_message_says_what_happened_what_to_do_and_where_to_look() -> None:
    word = Word(subject="run mini is blocked", text="Run mini is blocked (quota).", do="Raise the quota.", run="mini")
    assert said(word) == [
        (
            "run mini is blocked",
            "Run mini is blocked (quota).\n\nRaise the quota.\nTo see it: spotproof status mini --stack prod",
        )
    ]


def test_where_nothing_is_to_be_done_that_is_said() -> None:
    [(_, text)] = said(Word(subject="a storm", text="Many nodes are at risk."))
    assert text == "Many nodes are at risk.\n\nNothing to do."


def test_a_burst_is_one_message_for_each_run() -> None:
    words = [*(lost(number) for number in range(300)), lost(7, run="other")]
    [(subject, text), (other, _)] = said(*words)
    assert (subject, other) == ("run mini lost 300 nodes", "run other lost a node")
    assert "Slot 19 lost i-19.\n... and 280 more." in text
    assert text.count("Nothing to do.") == 1


def test_the_same_word_twice_is_one() -> None:
    [(subject, text)] = said(lost(1), lost(1))
    assert (subject, text.count("Slot 1")) == ("run mini lost a node", 1)


@pytest.mark.parametrize("subject", ["s" * 300, "two\nlines", "naïve\x1b[31m", "tab\t"])
def test_a_subject_is_one_that_sns_takes(subject: str) -> None:
    [(sent, _)] = said(Word(subject=subject, text="text"))
    assert len(sent) <= 100
    assert sent.isascii()
    assert sent.isprintable()


def test_a_burst_of_silent_deaths_is_one_notification() -> None:
    world = World()
    nodes = world.started(slots=12)
    world.beat_all()
    world.deliver(*(state(node, world.clock(), "terminated") for node in nodes[:9]))
    messages = [one for one in world.sns.said if "without notice" in one["Subject"]]
    assert [one["Subject"] for one in messages] == ["spotproof: run mini lost 9 nodes without notice"]
    assert "spotproof status mini --stack prod" in messages[0]["Message"]


def test_an_interruption_that_is_answered_tells_nobody_anything() -> None:
    world = World()
    [node] = world.started()
    world.deliver(notice(node, world.clock()))
    assert world.sns.said == []


def test_a_spent_budget_says_what_to_do_once() -> None:
    world = World()
    world.started(budgets=Budgets(recoveries=1))
    for _ in range(3):
        holder = world.slot().successor_instance or world.slot().holder_instance
        world.deliver(state(str(holder), world.clock(), "terminated"))
        world.boot()
        world.tick()
    paused = [one for one in world.sns.said if "is paused" in one["Subject"]]
    assert len(paused) == 1
    assert "What to do: " in paused[0]["Message"]
    assert world.meter.total(Metric.RUNS_PAUSED) == 1


def test_a_notification_that_is_lost_is_counted() -> None:
    world = World(sns=Refusing())
    [node] = world.started()
    assert world.deliver(state(node, world.clock(), "terminated")) == {}
    assert world.meter.total(Metric.NOTIFICATIONS_LOST) == 1


class Mute:
    """A table that takes everything but notes of many items at once."""

    def __init__(self, inner: BulkTable) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def put_many(self, items: Mapping[Key, Item]) -> None:
        raise Unavailable(f"no answer: {len(items)} items")


def test_entries_of_a_timeline_that_could_not_be_written_are_counted() -> None:
    world = World()
    [node] = world.started()
    before = len(world.told())
    control = world.make_control(cast("BulkTable", Mute(world.table)), world.ec2, world.ssm, world.sqs)
    assert world.deliver(notice(node, world.clock()), control=control) == {}
    assert len(world.told()) == before
    assert world.meter.total(Metric.NOTES_LOST) > 3
    assert world.slot().successor_instance is not None
