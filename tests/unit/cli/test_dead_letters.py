"""Dead letters on an emulated SQS: what they say, where a replay sends them, and that being cut off loses none."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from spotproof.cli import dlq
from spotproof.cli.letters import Fate, diagnose
from spotproof.contract import names
from spotproof.contract.events import Queue
from spotproof.contract.parse import repair_body
from spotproof.errors import BadSettings
from spotproof.store.clients import Clients
from spotproof.store.letters import DeadLetters, Letter
from tests.architecture.tree import ROOT
from tests.unit.cli.test_stack_outputs import OUTPUTS

NOTICE = (ROOT / "tests" / "events" / "spot-interruption-terminate.json").read_text()
MALFORMED = json.dumps({"id": "e-9", "source": "aws.ec2", "detail-type": "EC2 Spot Instance Interruption Warning"})
TICK = json.dumps({"requestContext": {"condition": "RetriesExhausted"}, "requestPayload": {}})
REPAIR = json.dumps(repair_body("demo"))


class Stack:
    """Seven empty queues, and the file of outputs that names them."""

    def __init__(self, client: Any, folder: Path) -> None:
        self.client = client
        wanted = [queue.value for queue in Queue]
        wanted += [names.dead_letters_of(queue) for queue in Queue]
        wanted += [names.UNDELIVERED]
        own = uuid.uuid4().hex[:8]
        self.urls = {name: client.create_queue(QueueName=f"{own}-{name}")["QueueUrl"] for name in wanted}
        self.file = folder / "outputs.json"
        listed = ",".join(f"{name}={url}" for name, url in self.urls.items())
        self.file.write_text(json.dumps({**OUTPUTS, names.OUTPUT_QUEUES: listed}))

    def put(self, queue: str, body: str, **attributes: str) -> None:
        given = {name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()}
        self.client.send_message(QueueUrl=self.urls[queue], MessageBody=body, MessageAttributes=given)

    def take(self, queue: str) -> list[dict[str, Any]]:
        """Everything visible, without taking it away."""
        answer = self.client.receive_message(
            QueueUrl=self.urls[queue], MaxNumberOfMessages=10, VisibilityTimeout=0, MessageAttributeNames=["All"]
        )
        return list(answer.get("Messages", []))

    def bodies(self, queue: str) -> list[str]:
        return sorted(message["Body"] for message in self.take(queue))

    def says(self, *words: str) -> dict[str, Any]:
        """The command's JSON."""
        done = CliRunner().invoke(dlq.command, [*words, "--outputs", str(self.file), "--json"], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        document: dict[str, Any] = json.loads(done.output)
        return document


@pytest.fixture
def stack(moto_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stack:
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_url)
    monkeypatch.setattr("spotproof.store.letters.WAIT_S", 0)
    return Stack(Clients(region="us-east-1").sqs, tmp_path)


def letter(body: str, **attributes: str) -> Letter:
    return Letter(id="m-1", receipt="r", body=body, sent_at=1_790_000_000, attributes=attributes)


URLS: Mapping[str, str] = {"urgent": "https://sqs/1/Urgent9", "signals": "https://sqs/1/Signals9"}
ARN = "arn:aws:sqs:us-east-1:111122223333:"
DIAGNOSES = [
    ("urgent-dead", letter(NOTICE), Fate.REPLAY, "urgent", "failed 5 times"),
    ("urgent-dead", letter(MALFORMED), Fate.POISON, "urgent", "malformed: "),
    ("urgent-dead", letter("not json"), Fate.POISON, "urgent", "not JSON"),
    ("urgent-dead", letter("[1]"), Fate.POISON, "urgent", "not a JSON object"),
    ("urgent-dead", letter('{"source": "x", "detail-type": "y"}'), Fate.POINTLESS, "urgent", "unknown event x/y"),
    ("urgent-dead", letter(NOTICE, **{names.REPLAYS: "1"}), Fate.REPLAY, "urgent", "failed 5 times"),
    ("urgent-dead", letter(NOTICE, **{names.REPLAYS: "2"}), Fate.POISON, "urgent", "came back from 2 replays"),
    ("urgent-dead", letter(NOTICE, **{names.REPLAYS: "many"}), Fate.REPLAY, "urgent", "failed 5 times"),
    ("repair-dead", letter(REPAIR), Fate.REPLAY, "repair", "failed 5 times"),
    (
        "undelivered",
        letter(NOTICE, RULE_ARN=f"{ARN}rule/Spot", TARGET_ARN=f"{ARN}Urgent9", ERROR_CODE="NO_PERMISSIONS"),
        Fate.REPLAY,
        "urgent",
        "rule Spot could not deliver it: NO_PERMISSIONS",
    ),
    ("undelivered", letter(NOTICE, TARGET_ARN=f"{ARN}Foreign"), Fate.POISON, "", "belongs to no queue"),
    ("undelivered", letter(NOTICE), Fate.POISON, "", "belongs to no queue"),
    ("undelivered", letter(TICK), Fate.POINTLESS, "", "tick was lost"),
    ("undelivered", letter("{}", SCHEDULE_ARN="arn"), Fate.POINTLESS, "", "tick was lost"),
]


@pytest.mark.parametrize(("queue", "found", "fate", "target", "reason"), DIAGNOSES)
def test_every_letter_has_a_reason_and_a_fate(queue: str, found: Letter, fate: Fate, target: str, reason: str) -> None:
    said = diagnose(queue, found, URLS)
    assert (said.fate, said.target) == (fate, target)
    assert reason in said.reason


def test_the_list_counts_by_reason_and_hides_nothing(stack: Stack) -> None:
    for body in (NOTICE, NOTICE, MALFORMED):
        stack.put("urgent-dead", body)
    for _ in range(2):  # a look leaves the letters as they were
        said = stack.says("list")["queues"]
        assert said["urgent"]["letters"] == 3
        assert sorted(said["urgent"]["reasons"].values()) == [1, 2]
        assert said["urgent"]["fates"] == {"replay": 2, "poison": 1}
        assert said["signals"] == {"letters": 0, "reasons": {}, "fates": {}}
    assert len(stack.take("urgent-dead")) == 3


def test_show_tells_each_letter_with_its_body(stack: Stack) -> None:
    stack.put("repair-dead", REPAIR)
    (told,) = stack.says("show", "repair")["letters"]
    assert (told["body"], told["what"], told["fate"]) == (REPAIR, "repair of run demo", "replay")


def test_a_replay_sends_each_letter_to_its_queue_once_and_leaves_poison(stack: Stack) -> None:
    for body in (NOTICE, MALFORMED):
        stack.put("urgent-dead", body)
    said = stack.says("replay", "urgent")
    assert [one["fate"] for one in said["replayed"]] == ["replay"]
    assert [one["fate"] for one in said["left"]] == ["poison"]
    assert stack.bodies("urgent") == [NOTICE]
    assert stack.bodies("urgent-dead") == [MALFORMED]
    assert stack.says("replay", "urgent")["replayed"] == []
    assert stack.bodies("urgent") == [NOTICE]


def test_a_dry_run_says_the_same_and_changes_nothing(stack: Stack) -> None:
    stack.put("urgent-dead", NOTICE)
    said = stack.says("replay", "urgent", "--dry-run")
    assert (said["dry_run"], len(said["replayed"])) == (True, 1)
    assert (stack.bodies("urgent"), stack.bodies("urgent-dead")) == ([], [NOTICE])
    assert stack.says("drop", "urgent", "--all", "--dry-run")["dropped"]
    assert stack.bodies("urgent-dead") == [NOTICE]


def test_an_undelivered_event_goes_to_the_queue_that_its_rule_meant(stack: Stack) -> None:
    name = stack.urls["signals"].rsplit("/", 1)[-1]
    stack.put("undelivered", NOTICE, TARGET_ARN=f"{ARN}{name}", RULE_ARN="r", ERROR_CODE="X")
    stack.put("undelivered", TICK)
    said = stack.says("replay", "undelivered")
    assert [one["target"] for one in said["replayed"]] == ["signals"]
    assert stack.bodies("signals") == [NOTICE]
    assert stack.bodies("undelivered") == [TICK]
    assert len(stack.says("drop", "undelivered")["dropped"]) == 1
    assert stack.bodies("undelivered") == []


def test_a_letter_that_comes_back_twice_is_poison_until_somebody_insists(stack: Stack) -> None:
    stack.put("urgent-dead", NOTICE)
    for replay in ("1", "2"):
        assert len(stack.says("replay", "urgent")["replayed"]) == 1
        (back,) = stack.take("urgent")
        assert back["MessageAttributes"][names.REPLAYS]["StringValue"] == replay
        stack.client.delete_message(QueueUrl=stack.urls["urgent"], ReceiptHandle=back["ReceiptHandle"])
        stack.put("urgent-dead", back["Body"], **{names.REPLAYS: replay})  # as SQS moves it: with its attributes
    assert stack.says("replay", "urgent")["replayed"] == []
    assert len(stack.says("replay", "urgent", "--poison")["replayed"]) == 1


def test_only_the_letters_that_were_named(stack: Stack) -> None:
    for _ in range(3):
        stack.put("urgent-dead", NOTICE)
    first = stack.says("show", "urgent")["letters"][0]["id"]
    assert [one["id"] for one in stack.says("replay", "urgent", "--id", first)["replayed"]] == [first]
    assert len(stack.bodies("urgent-dead")) == 2


@pytest.mark.parametrize("cut", ["before sending", "before deleting"])
def test_a_replay_that_is_cut_off_loses_nothing_and_goes_on(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, cut: str
) -> None:
    for number in range(3):
        stack.put("repair-dead", json.dumps(repair_body(f"run-{number}")))
    real: Any = {"before sending": DeadLetters.send, "before deleting": DeadLetters.remove}[cut]
    used: list[int] = []

    def cut_off(*arguments: Any, **options: Any) -> None:
        used.append(1)
        if len(used) == 2:
            raise KeyboardInterrupt
        real(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(DeadLetters, real.__name__, cut_off)
        done = CliRunner().invoke(dlq.command, ["replay", "repair", "--outputs", str(stack.file)])
        assert done.exit_code != 0
        assert "1 replayed" in done.output
    everything = {json.dumps(repair_body(f"run-{number}")) for number in range(3)}
    assert set(stack.bodies("repair")) | set(stack.bodies("repair-dead")) == everything
    stack.says("replay", "repair")
    assert set(stack.bodies("repair")) == everything
    assert stack.bodies("repair-dead") == []


def test_more_letters_than_one_page_are_each_seen_once(stack: Stack) -> None:
    for number in range(25):
        stack.put("repair-dead", json.dumps(repair_body(f"run-{number}")))
    assert len(stack.says("show", "repair")["letters"]) == 25
    assert len(stack.says("show", "repair", "--limit", "7")["letters"]) == 7


def test_people_are_told_the_next_step(stack: Stack) -> None:
    stack.put("urgent-dead", NOTICE)
    done = CliRunner().invoke(dlq.command, ["list", "--outputs", str(stack.file)])
    assert "urgent: 1 letter\n" in done.output
    assert "spotproof dlq show QUEUE" in done.output


def test_a_stack_from_before_the_queues_were_told_is_named(tmp_path: Path) -> None:
    file = tmp_path / "outputs.json"
    file.write_text(json.dumps(OUTPUTS))
    with pytest.raises(BadSettings, match="deploy it with this version"):
        dlq.post_of(None, file)
