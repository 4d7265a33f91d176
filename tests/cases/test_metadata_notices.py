"""EV cases of the case book on the node: what the instance metadata says, and what the agent makes of it."""

from __future__ import annotations

import logging
import selectors
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from spotproof.agent.decide import budget_s
from spotproof.agent.imds import Endpoint, Imds, MetadataNotice
from spotproof.agent.leaving import Leaving
from spotproof.agent.notices import Heard, Source
from spotproof.agent.server import Server
from spotproof.agent.situation import Situation
from spotproof.checkpoint.channel import connect
from spotproof.contract.limits import IMDS_POLL_S, IMDS_START_LIMIT_S, NOTICE_S
from spotproof.contract.messages import Interruption
from spotproof.contract.parse import parse, unix_seconds
from spotproof.contract.protocol import FlushDone, Hello, Notice, Role
from spotproof.contract.states import FlushOutcome, InterruptionAction, NoticeKind
from tests.fakes.imds import ACTION, FakeImds, closed_port, serving, silent

TERMINATE = '{"action":"terminate","time":"2026-05-04T10:02:00Z"}'
NOON = float(unix_seconds("2026-05-04T10:00:10Z"))


class Clock:
    """A clock that only moves when it is told to."""

    def __init__(self, at: float) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at


def client(url: str, *, clock: Clock | None = None, request_s: float = 2.0) -> Imds:
    clock = clock or Clock(NOON)
    return Imds(
        endpoint=Endpoint.from_env({"AWS_EC2_METADATA_SERVICE_ENDPOINT": url}),
        monotonic=clock,
        now=clock,
        request_s=request_s,
    )


@pytest.fixture
def imds() -> Iterator[tuple[FakeImds, str]]:
    fake = FakeImds()
    with serving(fake) as url:
        yield fake, url


class Node:
    """An agent's leaving side with one trainer that only listens."""

    def __init__(self, folder: Path, stack: ExitStack, *, now: Clock) -> None:
        selector = stack.enter_context(selectors.DefaultSelector())
        self.server = stack.enter_context(Server(folder, selector))
        self.situation = Situation(
            runtime_dir=folder, now=now, log=lambda line: None, server=self.server, is_local=True, generation=1
        )
        self.leaving = Leaving(situation=self.situation)
        self.trainer = connect(folder)
        stack.callback(self.trainer.close)
        self.trainer.send(Hello(role=Role.TRAINER, pid=1))
        peer = self.server.accept()
        assert peer is not None
        list(self.server.hear(peer))

    def hear(self, notice: MetadataNotice) -> None:
        self.leaving.hear(
            Heard(
                key=notice.key,
                source=Source.METADATA,
                kind=notice.kind,
                deadline_at=notice.deadline_at,
                leave=notice.kind is NoticeKind.INTERRUPTION,
                action=notice.action,
            )
        )

    def told(self) -> list[Notice]:
        """Notices that the trainer has got since the last look."""
        frames = [received.frame for received in self.trainer.waiting()]
        return [frame for frame in frames if isinstance(frame, Notice)]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_ev_02_a_stop_is_flushed_until_its_own_time_and_keeps_its_action(
    imds: tuple[FakeImds, str], tmp_path: Path, stack: ExitStack
) -> None:
    fake, url = imds
    fake.answers[ACTION] = 200, '{"action":"stop","time":"2026-05-04T10:01:30Z"}'
    clock = Clock(NOON)
    node = Node(tmp_path, stack, now=clock)
    [notice] = client(url, clock=clock).poll()
    node.hear(notice)
    [told] = node.told()
    assert (told.leave, told.save, told.deadline_at) == (True, True, unix_seconds("2026-05-04T10:01:30Z"))
    assert node.situation.notices.leaving is not None
    assert node.situation.notices.leaving.action is InterruptionAction.STOP
    assert '"action": "stop"' in (tmp_path / "notice").read_text()


def test_ev_03_both_spellings_are_read_and_a_body_without_them_is_a_notice_too(
    imds: tuple[FakeImds, str], tmp_path: Path
) -> None:
    fake, url = imds
    actions, flushes = [], 0
    for number, body in enumerate((TERMINATE, '{"instance-action":"terminate"}', '{"unheard":"of"}', "not JSON")):
        fake.answers[ACTION] = 200, body
        clock = Clock(NOON)
        with ExitStack() as stack:
            node = Node(tmp_path / str(number), stack, now=clock)
            [notice] = client(url, clock=clock).poll()
            node.hear(notice)
            actions.append((notice.action, notice.deadline_at))
            flushes += len(node.told())
    unknown = (InterruptionAction.UNKNOWN, NOON + NOTICE_S)
    in_time = (InterruptionAction.TERMINATE, float(unix_seconds("2026-05-04T10:02:00Z")))
    assert actions == [in_time, unknown, unknown, unknown]
    assert flushes == 4
    event = {
        "id": "e",
        "source": "aws.ec2",
        "detail-type": "EC2 Spot Instance Interruption Warning",
        "time": "2026-05-04T10:00:00Z",
        "detail": {"instance-id": "i-0a1b2c3d4e5f60718", "instance-action": "terminate"},
    }
    parsed = parse(event, received_at=0)
    assert isinstance(parsed, Interruption)
    assert parsed.action is InterruptionAction.TERMINATE


def test_ev_04_not_found_is_the_normal_answer_and_makes_no_noise(
    imds: tuple[FakeImds, str], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    fake, url = imds
    fake.fault = lambda method, path, number: (200, TERMINATE) if number > 1000 and ACTION in path else None
    caplog.set_level(logging.DEBUG)
    service = client(url)
    polls = 1
    while not (found := service.poll()):
        polls += 1
    assert polls == 335  # three paths each: the first poll that begins behind request 1,000 begins with 1,003
    assert [one.kind for one in found] == [NoticeKind.INTERRUPTION]
    assert (service.failed_polls, service.degraded) == (0, "")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert capfd.readouterr() == ("", "")
    assert IMDS_POLL_S <= 5


def test_ev_05_a_token_that_has_lapsed_is_renewed_in_the_same_poll(imds: tuple[FakeImds, str]) -> None:
    fake, url = imds
    service = client(url)
    assert service.poll() == []
    before = len(fake.gets)
    fake.valid.clear()
    fake.answers[ACTION] = 200, TERMINATE
    assert [one.kind for one in service.poll()] == [NoticeKind.INTERRUPTION]
    assert fake.puts == 2
    assert fake.gets[before : before + 2] == [ACTION, ACTION]


def test_ev_05_the_token_is_renewed_before_it_expires(imds: tuple[FakeImds, str]) -> None:
    fake, url = imds
    clock = Clock(NOON)
    service = client(url, clock=clock)
    service.poll()
    clock.at += 3600 - 16
    service.poll()
    assert fake.puts == 1
    clock.at += 2
    service.poll()
    assert fake.puts == 2


def test_ev_06_a_token_that_never_comes_is_named_within_five_seconds_and_tried_again() -> None:
    with silent() as url:
        service = Imds(
            endpoint=Endpoint.from_env({"AWS_EC2_METADATA_SERVICE_ENDPOINT": url}),
            monotonic=time.monotonic,
            now=time.time,
        )
        began = time.monotonic()
        assert service.poll() == []
        assert time.monotonic() - began < IMDS_START_LIMIT_S
        assert "cannot get a metadata token" in service.degraded
        assert "HttpPutResponseHopLimit" in service.degraded
        assert service.failed_polls == 1
        assert service.poll() == []  # the next poll tries again
        assert service.failed_polls == 2


def test_ev_07_refused_and_overloaded_polls_are_counted_and_survived(imds: tuple[FakeImds, str]) -> None:
    fake, url = imds
    service = client(url)
    fake.fault = lambda method, path, number: (503, "slow down") if method == "GET" else None
    for _ in range(3):
        assert service.poll() == []
    service.endpoint = Endpoint.from_env({"AWS_EC2_METADATA_SERVICE_ENDPOINT": closed_port()})
    for _ in range(2):
        assert service.poll() == []
    service.endpoint = Endpoint.from_env({"AWS_EC2_METADATA_SERVICE_ENDPOINT": url})
    fake.fault = lambda method, path, number: None
    fake.answers[ACTION] = 200, TERMINATE
    assert [one.kind for one in service.poll()] == [NoticeKind.INTERRUPTION]
    assert service.failed_polls == 5
    assert service.degraded == ""


def test_ev_08_a_notice_that_stands_for_24_polls_is_one_flush(
    imds: tuple[FakeImds, str], tmp_path: Path, stack: ExitStack
) -> None:
    fake, url = imds
    fake.answers[ACTION] = 200, TERMINATE
    clock = Clock(NOON)
    node = Node(tmp_path, stack, now=clock)
    service = client(url, clock=clock)
    for _ in range(24):
        for notice in service.poll():
            node.hear(notice)
        clock.at += IMDS_POLL_S
    assert len(node.told()) == 1
    assert node.leaving.interruptions == 1


def test_ev_08_a_body_without_a_time_keeps_the_deadline_of_its_first_sight(imds: tuple[FakeImds, str]) -> None:
    fake, url = imds
    fake.answers[ACTION] = 200, "{}"
    clock = Clock(NOON)
    service = client(url, clock=clock)
    first = service.poll()
    clock.at += 30
    assert service.poll() == first


def test_ev_09_the_budget_is_what_the_notice_leaves_and_nothing_ends_before_it(
    tmp_path: Path, stack: ExitStack
) -> None:
    clock = Clock(float(unix_seconds("2026-02-11T16:32:36Z")))
    deadline = float(unix_seconds("2026-02-11T16:34:24Z"))
    assert deadline - clock.at == 108
    assert budget_s(now=clock.at, deadline_at=deadline) == 98  # ten seconds before the end, not 120 minus something
    node = Node(tmp_path, stack, now=clock)
    node.hear(MetadataNotice(key="n", kind=NoticeKind.INTERRUPTION, deadline_at=deadline))
    frames: list[object] = [received.frame for received in node.trainer.waiting()]
    for second in range(0, 108, 2):  # a flush of 60 s, or of 107 s, is allowed to end
        clock.at = deadline - 108 + second
        node.leaving.check()
    frames += [received.frame for received in node.trainer.waiting()]
    assert not [frame for frame in frames if isinstance(frame, FlushDone)]
    assert node.situation.outcome is FlushOutcome.PENDING
    clock.at = deadline
    node.leaving.check()
    assert [received.frame for received in node.trainer.waiting()] == [FlushDone(outcome=FlushOutcome.FAILED, step=-1)]


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_ev_17_a_proxy_is_never_asked(
    imds: tuple[FakeImds, str], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    fake, url = imds
    monkeypatch.setenv(variable, closed_port())
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    fake.answers[ACTION] = 200, TERMINATE
    assert [one.kind for one in client(url).poll()] == [NoticeKind.INTERRUPTION]
    assert fake.proxied == 0
