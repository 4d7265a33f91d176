"""Clients are made late, once, and with the time-outs of their place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders
from botocore.exceptions import NoCredentialsError

from spotproof.errors import BadSettings
from spotproof.store.clients import Clients

ROOT = Path(__file__).resolve().parents[3]


def test_importing_the_store_loads_no_aws_library() -> None:
    modules = sorted(
        f"spotproof.store.{path.stem}"
        for path in (ROOT / "spotproof" / "store").glob("*.py")
        if path.stem != "__init__"
    )
    program = "import sys\n" + "".join(f"import {name}\n" for name in modules)
    program += "print([name for name in ('boto3', 'botocore', 'torch', 'awscrt', 'blake3') if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_a_client_is_made_once() -> None:
    clients = Clients(region="us-east-1")
    assert clients.dynamodb is clients.dynamodb
    assert clients.get("s3") is clients.s3


@pytest.mark.parametrize(
    ("service", "tries"), [("dynamodb", 1), ("s3", 1), ("ec2", 2), ("ssm", 1), ("sns", 3), ("sqs", 3), ("sts", 3)]
)
def test_time_outs_and_tries_are_of_the_services_place(service: str, tries: int) -> None:
    config = Clients(region="us-east-1").get(service).meta.config
    assert config.connect_timeout == (1 if service == "ssm" else 2)
    assert config.read_timeout <= 30
    assert config.retries["total_max_attempts"] == tries


def test_endpoints_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1111")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:2222")
    clients = Clients(region="us-east-1")
    assert clients.dynamodb.meta.endpoint_url == "http://127.0.0.1:1111"
    assert clients.s3.meta.endpoint_url == "http://127.0.0.1:2222"


def test_the_region_may_be_named_as_lambda_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert Clients().sqs.meta.region_name == "eu-west-1"


def test_no_region_and_no_such_profile_say_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(BadSettings, match="AWS_REGION"):
        Clients().get("sqs")
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(BadSettings, match=r"nobody.*AWS_PROFILE"):
        Clients(region="us-east-1").get("sqs")


def test_a_client_that_was_made_without_credentials_finds_them_later(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    client = Clients(region="us-east-1").dynamodb
    sent: list[str] = []

    def answer(request: Any, **_: Any) -> AWSResponse:
        sent.append(request.headers["Authorization"].decode())
        return AWSResponse(request.url, 200, HTTPHeaders(), Raw())

    client.meta.events.register("before-send.dynamodb.ListTables", answer)
    with pytest.raises(NoCredentialsError):
        client.list_tables()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIALATER")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "late")
    client.list_tables()
    assert ["AKIALATER" in one for one in sent] == [True]


class Raw:
    """The body of an answer."""

    def stream(self) -> list[bytes]:
        return [b'{"TableNames": []}']


def test_a_service_without_chosen_time_outs_is_refused() -> None:
    with pytest.raises(KeyError):
        Clients(region="us-east-1").get("route53")
