"""The tables and buckets on which one test body runs.

Tests share a table or bucket per session and keep apart by the run id that each test gets.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spotproof.store import clients
from spotproof.store.clients import Clients
from spotproof.store.connections import Pace
from spotproof.store.dynamo import DynamoTable
from spotproof.store.folder import FolderObjects
from spotproof.store.local import IN_MEMORY, LocalTable
from spotproof.store.objects import Objects
from spotproof.store.s3 import S3Objects
from spotproof.store.sender import Sender, address_of
from spotproof.store.table import Table
from tests.fakes.dict_table import DictTable
from tests.fakes.seaweedfs import NotHere, seaweedfs

TABLE_NAME = "spotproof-conformance"
BUCKET = "spotproof-conformance"
ANSWER_WITHIN_S = 120.0
_numbers = itertools.count(1)

MEMORY, DICT, FILE, MOTO, DYNAMODB_LOCAL = "memory", "dict", "file", "moto", "dynamodb-local"
FOLDER, SEAWEEDFS = "folder", "seaweedfs"
LOCAL_TABLES = [MEMORY, DICT, FILE]
EMULATED_TABLES = [
    pytest.param(MOTO, marks=pytest.mark.emulator),
    pytest.param(DYNAMODB_LOCAL, marks=pytest.mark.emulator),
]
BUCKETS = [
    FOLDER,
    pytest.param(MOTO, marks=pytest.mark.emulator),
    pytest.param(SEAWEEDFS, marks=pytest.mark.emulator),
    pytest.param(f"{MOTO}-sender", marks=pytest.mark.emulator),
    pytest.param(f"{SEAWEEDFS}-sender", marks=pytest.mark.emulator),
]


def client_for(service: str, url: str) -> Any:
    """A client of ours that talks to an emulator, told so as a deployment would be: by the environment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(f"AWS_ENDPOINT_URL_{service.upper()}", url)
        # What answers mean is judged here, not how fast an emulator is on a busy machine: after a time-out nobody
        # knows whether a write was done, and a history would not be a function of its seed any more.
        patch.setitem(clients._SETTINGS, service, replace(clients._SETTINGS[service], read_s=ANSWER_WITHIN_S))
        return Clients(region="us-east-1").get(service)


def create_table(client: Any) -> None:
    client.create_table(
        TableName=TABLE_NAME,
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
        AttributeDefinitions=[
            {"AttributeName": "pk", "AttributeType": "S"},
            {"AttributeName": "sk", "AttributeType": "S"},
        ],
        BillingMode="PAY_PER_REQUEST",
    )


@pytest.fixture(scope="session")
def emulated_table(request: pytest.FixtureRequest) -> Callable[[str], Table]:
    """The DynamoTable of an emulator; the emulator starts when a test first asks for it."""
    made: dict[str, Table] = {}

    def make(name: str) -> Table:
        if name not in made:
            url = request.getfixturevalue("moto_url" if name == MOTO else "dynamodb_local_url")
            client = client_for("dynamodb", url)
            create_table(client)
            made[name] = DynamoTable(client, TABLE_NAME)
        return made[name]

    return make


@pytest.fixture(scope="session")
def seaweedfs_url() -> Iterator[str]:
    """The endpoint of one SeaweedFS for the session, or a skip that says why there is none here."""
    try:
        with seaweedfs() as url:
            yield url
    except NotHere as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def emulated_bucket(request: pytest.FixtureRequest) -> Callable[[str], tuple[Any, Objects]]:
    """The raw client and the S3Objects of an emulator."""
    made: dict[str, tuple[Any, Objects]] = {}

    def make(name: str) -> tuple[Any, Objects]:
        if name not in made:
            url = request.getfixturevalue("moto_url" if name == MOTO else "seaweedfs_url")
            client = client_for("s3", url)
            client.create_bucket(Bucket=BUCKET)
            made[name] = client, S3Objects(client, BUCKET)
        return made[name]

    return make


@pytest.fixture(params=[*LOCAL_TABLES, *EMULATED_TABLES])
def table_name(request: pytest.FixtureRequest) -> str:
    """Which table it is this time."""
    name: str = request.param
    return name


@pytest.fixture
def table(table_name: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Table]:
    """Each table in turn."""
    with ExitStack() as stack:
        match table_name:
            case "memory":
                yield stack.enter_context(LocalTable(IN_MEMORY))
            case "dict":
                yield DictTable()
            case "file":
                yield stack.enter_context(LocalTable(tmp_path / "table.sqlite"))
            case name:
                yield request.getfixturevalue("emulated_table")(name)


@pytest.fixture(params=BUCKETS)
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Objects]:
    """Each bucket in turn; where a sender puts, as in an uploader, too."""
    if request.param == FOLDER:
        yield FolderObjects(tmp_path / "bucket")
        return
    name, _, how = request.param.partition("-")
    client, found = request.getfixturevalue("emulated_bucket")(name)
    if not how:
        yield found
        return
    sender = Sender(
        address=lambda: address_of(client, BUCKET),
        region="us-east-1",
        find_credentials=Clients(region="us-east-1").credentials,
        pace=Pace(answer_s=ANSWER_WITHIN_S, stall_s=ANSWER_WITHIN_S),
    )
    yield S3Objects(client, BUCKET, sender=sender)
    sender.close()


@pytest.fixture
def run() -> str:
    """A run id of this test's own."""
    return f"run-{next(_numbers)}"
