"""What every test gets: no way to a real account, and the emulators that a test asks for."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.fakes.dynamodb_local import NotHere, dynamodb_local
from tests.fakes.moto_server import moto_server
from tests.synth.synthesis import assemble
from tests.synth.template import Assembly

SAFE_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    # An operator's proxy would take loopback calls away from the emulators.
    "NO_PROXY": "127.0.0.1,localhost",
}
FORGET = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_ENDPOINT_URL")


def pytest_configure() -> None:
    """Ctrl-C is heard, however the suite was started: a shell's background jobs ignore it, and so do their children."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def no_real_account() -> Iterator[None]:
    """No test can reach an account, whatever the developer's shell is logged in to."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SAFE_ENVIRONMENT.items():
            patch.setenv(name, value)
        for name in list(os.environ):
            if name in FORGET or name.startswith("SPOTPROOF_"):
                patch.delenv(name)
        yield


@pytest.fixture(scope="session")
def moto_url() -> Iterator[str]:
    """The endpoint of one moto for the session; tests make their own tables, buckets and queues."""
    with moto_server() as url:
        yield url


@pytest.fixture(scope="session")
def dynamodb_local_url() -> Iterator[str]:
    """The endpoint of one DynamoDB Local for the session, or a skip that says why there is none here."""
    try:
        with dynamodb_local() as url:
            yield url
    except NotHere as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def assembly(tmp_path_factory: pytest.TempPathFactory) -> Assembly:
    """The stack of the settings file that this repository ships."""
    return assemble(tmp_path_factory, "")
