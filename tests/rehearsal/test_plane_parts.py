"""Parts of the plane that need no region."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from rehearsal.nodes.stubs import aws, curl, docker, dockerfile
from rehearsal.plane import moto_edges
from rehearsal.plane.failures import AwsFailure
from rehearsal.plane.market import Market
from rehearsal.plane.object_faults import ObjectFault, ObjectKind
from rehearsal.plane.object_server import free_ports, lifecycle_rule
from rehearsal.plane.policies import allows
from rehearsal.plane.public_parameters import wanted
from rehearsal.plane.tokens import Tokens
from rehearsal.timeline import Timeline

ARN, RULE = "arn:aws:sqs:us-east-1:111122223333:q", "arn:aws:events:us-east-1:111122223333:rule/r"


# ------------------------------------------------------------------------------------------------ moto
def test_every_part_of_moto_that_the_plane_uses_is_there() -> None:
    assert moto_edges.missing() == []


def test_a_part_of_moto_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moto_edges, "SYMBOLS", (("moto.sqs.models", "SQSBackend.receive_message_v2"),))
    assert moto_edges.missing() == ["moto.sqs.models.SQSBackend.receive_message_v2 is gone"]
    with pytest.raises(RuntimeError, match="adapt rehearsal/plane"):
        moto_edges.require()


# ------------------------------------------------------------------------------------------------ market, tokens
def test_a_pool_that_is_not_listed_has_no_capacity() -> None:
    assert Market().take("g5.xlarge", "us-east-1a", "spot") == "InsufficientInstanceCapacity"


def test_a_launch_takes_a_slot_and_its_end_gives_it_back() -> None:
    market = Market()
    market.set({("g5.xlarge", "us-east-1a"): 1})
    assert market.take("g5.xlarge", "us-east-1a", "spot") == ""
    assert market.take("g5.xlarge", "us-east-1a", "spot") == "InsufficientInstanceCapacity"
    market.give_back("g5.xlarge", "us-east-1a", "spot")
    assert market.take("g5.xlarge", "us-east-1a", "on-demand") == ""
    assert [a.refusal for a in market.attempts] == ["", "InsufficientInstanceCapacity", ""]


def test_the_markets_of_a_pool_can_differ() -> None:
    market = Market()
    market.set({("g5.xlarge", "us-east-1a", "spot"): "MaxSpotInstanceCountExceeded", ("g5.xlarge", "us-east-1a"): 1})
    assert market.take("g5.xlarge", "us-east-1a", "spot") == "MaxSpotInstanceCountExceeded"
    assert market.take("g5.xlarge", "us-east-1a", "on-demand") == ""


def test_a_failed_call_leaves_its_token_free() -> None:
    tokens = Tokens()
    with pytest.raises(ZeroDivisionError):
        tokens.once({"ClientToken": "t", "a": 1}, lambda: 1 // 0)
    assert tokens.once({"ClientToken": "t", "a": 1}, lambda: "made") == "made"
    assert tokens.once({"ClientToken": "t", "a": 1}, lambda: "again") == "made"
    with pytest.raises(AwsFailure, match="IdempotentParameterMismatch"):
        tokens.once({"ClientToken": "t", "a": 2}, lambda: "other")


# ------------------------------------------------------------------------------------------------ policies
def statement(**changes: Any) -> dict[str, Any]:
    allow: dict[str, Any] = {
        "Effect": "Allow",
        "Principal": {"Service": "events.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": ARN,
        "Condition": {"ArnEquals": {"aws:SourceArn": RULE}},
    }
    return allow | changes


TLS_ONLY = {
    "Effect": "Deny",
    "Principal": {"AWS": "*"},
    "Action": "sqs:*",
    "Resource": ARN,
    "Condition": {"Bool": {"aws:SecureTransport": "false"}},
}


@pytest.mark.parametrize(
    ("statements", "allowed"),
    [
        ([], False),
        ([statement()], True),
        ([statement(), TLS_ONLY], True),
        ([statement(Condition={})], True),
        ([statement(Action="sqs:*")], True),
        ([statement(Action="sqs:ReceiveMessage")], False),
        ([statement(Resource=ARN + "-other")], False),
        ([statement(Principal={"Service": "sns.amazonaws.com"})], False),
        ([statement(Condition={"ArnEquals": {"aws:SourceArn": RULE + "-other"}})], False),
        ([statement(Condition={"ArnLike": {"aws:SourceArn": "arn:aws:events:*:111122223333:rule/*"}})], True),
        ([statement(Condition={"StringEquals": {"aws:SourceAccount": "999999999999"}})], False),
        ([statement(Condition={"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}})], False),
        ([statement(), statement(Effect="Deny", Condition={})], False),
    ],
)
def test_a_target_opens_to_the_rule_that_its_policy_names(statements: list[dict[str, Any]], allowed: bool) -> None:
    policy = {"Statement": statements}
    answer = allows(policy, principal="events.amazonaws.com", action="sqs:SendMessage", resource=ARN, source_arn=RULE)
    assert answer is allowed


# ------------------------------------------------------------------------------------------------ timeline, ports
def test_the_timeline_keeps_its_order_and_survives_a_failure() -> None:
    timeline, seen, done = Timeline(), list[str](), threading.Event()
    timeline.start()
    timeline.after(0.05, lambda: seen.append("second"))
    timeline.after(0.0, lambda: seen.append("first"))
    timeline.after(0.02, lambda: 1 // 0)
    timeline.after(0.1, done.set)
    assert done.wait(5)
    timeline.stop()
    assert seen == ["first", "second"]
    assert len(timeline.problems) == 1
    assert "ZeroDivisionError" in timeline.problems[0]


def test_what_was_planned_after_the_end_does_not_happen() -> None:
    timeline, happened = Timeline(), threading.Event()
    timeline.start()
    timeline.after(0.05, happened.set)
    timeline.stop()
    time.sleep(0.1)
    assert not happened.is_set()


def test_free_ports_differ() -> None:
    assert len(set(free_ports(20))) == 20


# ------------------------------------------------------------------------------------------------ object faults
def test_a_fault_meets_its_method_and_key_after_those_it_spares() -> None:
    fault = ObjectFault(kind=ObjectKind.ERROR, method="PUT", key="manifest", skip=1, times=2)
    asked = [("GET", "manifest"), ("PUT", "blob"), ("PUT", "manifest"), ("PUT", "manifest"), ("PUT", "manifest")]
    assert [fault.meets(*one) for one in asked] == [False, False, False, True, True]
    assert not fault.meets("PUT", "manifest")


def test_a_lifecycle_rule_is_spelled_as_the_api_spells_it() -> None:
    rule = {
        "Id": "old",
        "Status": "Enabled",
        "Prefix": "runs/",
        "NoncurrentVersionExpiration": {"NoncurrentDays": 1},
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1},
    }
    assert lifecycle_rule(rule) == {
        "ID": "old",
        "Status": "Enabled",
        "Filter": {"Prefix": "runs/"},
        "NoncurrentVersionExpiration": {"NoncurrentDays": 1},
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1},
    }


def test_public_parameters_are_read_from_the_templates(tmp_path: Path) -> None:
    (tmp_path / "one.template.json").write_text(
        '{"Parameters": {"Image": {"Type": "AWS::SSM::Parameter::Value<String>", "Default": "/aws/service/x/ami"},'
        ' "Mine": {"Type": "AWS::SSM::Parameter::Value<String>", "Default": "/cdk-bootstrap/v"}}}'
    )
    assert wanted(tmp_path) == ["/aws/service/x/ami"]


# ------------------------------------------------------------------------------------------------ curl
def test_curl_reads_joined_and_long_options() -> None:
    asked = curl.read(["-sfX", "PUT", "--header=a: b", "-H", "c: d", "--max-time", "3", "http://127.0.0.1/x"])
    assert asked.fail
    assert asked.headers == ["a: b", "c: d"]
    assert asked.values == {"method": "PUT", "max_time": "3"}


def test_curl_refuses_an_option_that_it_does_not_play(capsys: pytest.CaptureFixture[str]) -> None:
    assert curl.main(["--http3", "http://127.0.0.1/x"]) == 64
    assert "--http3" in capsys.readouterr().err


def test_curl_reaches_nothing_beyond_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert curl.main(["-s", "http://169.254.169.254/latest/"]) == 28


# ------------------------------------------------------------------------------------------------ aws
@pytest.mark.parametrize(
    ("value", "output", "text"),
    [
        (None, "text", "None"),
        ("image", "text", "image"),
        (["a", "b"], "text", "a\tb"),
        ({"b": 1, "a": 2}, "text", "2\t1"),
        ({"a": 1}, "json", '{\n    "a": 1\n}'),
    ],
)
def test_the_command_line_prints_as_the_real_one(value: object, output: str, text: str) -> None:
    assert aws.printed(value, output) == text


def test_the_command_line_without_a_region_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.delenv("AWS_REGION", raising=False)
    assert aws.main(["sts", "get-caller-identity"]) == 252
    assert "region" in capsys.readouterr().err


def test_an_option_that_the_operation_does_not_have_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert aws.main(["sts", "get-caller-identity", "--region", "us-east-1", "--shout"]) == 252
    assert "--shout" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------ docker
DOCKERFILE = """
FROM python:3.12-slim AS build
COPY other /nowhere
FROM python:3.12-slim
ENV A=1 B="two words"
WORKDIR /opt/pkg
COPY pyproject.toml README.md ./
COPY spotproof spotproof
RUN pip install .
WORKDIR /opt/train
COPY trainer_image/train.py trainer_image/
ENTRYPOINT ["/bin/sh", "-c", "exec \\"$@\\"", "trainer"]
CMD ["python", "trainer_image/train.py"]
"""


def test_an_image_is_what_the_last_stage_of_its_file_says() -> None:
    image = dockerfile.read(DOCKERFILE, Path("/repo"))
    assert image.env == {"A": "1", "B": "two words"}
    assert image.workdir == "/opt/train"
    assert image.command == ["python", "trainer_image/train.py"]
    assert image.entrypoint[-1] == "trainer"
    assert image.locate("/opt/train/trainer_image/train.py") == Path("/repo/trainer_image/train.py")
    assert image.locate("/opt/pkg/spotproof/agent/x.py") == Path("/repo/spotproof/agent/x.py")
    assert image.locate("/opt/pkg/README.md") == Path("/repo/README.md")
    assert image.locate("/nowhere") is None


def test_a_run_is_split_at_its_image() -> None:
    run = docker.read_run(["-d", "--name=a", "-v", "/x:/y", "-e", "K=V", "--gpus=all", "image", "-v", "spotproof"])
    assert (run.image, run.argv) == ("image", ["-v", "spotproof"])
    assert run.single == {"--name": "a", "--gpus": "all"}
    assert run.multiple == {"-v": ["/x:/y"], "-e": ["K=V"]}


def test_an_option_that_docker_does_not_play_is_refused() -> None:
    with pytest.raises(docker.Refused, match="--checkpoint"):
        docker.read_run(["--checkpoint", "x", "image"])


def test_paths_of_the_container_become_paths_of_the_node() -> None:
    places = {"/run/spotproof": Path("/node/run"), "/run": Path("/node/other")}
    assert docker.moved("/run/spotproof/agent.sock", places) == "/node/run/agent.sock"
    assert docker.moved("/run", places) == "/node/other"
    assert docker.moved("/runner", places) == "/runner"
    assert docker.moved("--flag", places) == "--flag"


@pytest.mark.parametrize(
    ("words", "argv"),
    [
        (["image"], ["/bin/sh", "-c", 'exec "$@"', "trainer", "python", "trainer_image/train.py"]),
        (["image", "spotproof", "agent"], ["/bin/sh", "-c", 'exec "$@"', "trainer", "spotproof", "agent"]),
        (["--entrypoint=spotproof", "image", "agent"], ["spotproof", "agent"]),
    ],
)
def test_entrypoint_and_arguments_join_as_docker_joins_them(words: list[str], argv: list[str]) -> None:
    run = docker.read_run(words)
    assert docker.command(run, dockerfile.read(DOCKERFILE, Path("/repo")), {}) == argv
