"""A sender against a bucket that is slow, busy, deaf, wrong or dishonest."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from spotproof.errors import Denied, Unavailable
from spotproof.store.clients import Clients
from spotproof.store.connections import Address, Pace
from spotproof.store.digest import digest_of
from spotproof.store.objects import PutOutcome
from spotproof.store.retry import Patience
from spotproof.store.s3 import S3Objects
from spotproof.store.sender import Sender, address_of
from tests.fakes.bucket_server import BucketServer, Fault, Request, TokenBucket

KEY, DATA = "runs/r/blobs/ab", bytes(range(256)) * 256
BIG = bytes(8 * 1024 * 1024)
QUICK = Patience(total_s=20, first_s=0.01, longest_s=0.05)
HASTY = Pace(connect_s=2, stall_s=0.3, answer_s=0.3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    access_key: str = "a"
    secret_key: str = "b"
    token: str | None = None


@dataclass(slots=True, kw_only=True)
class Wallet:
    """Credentials that are replaced by new ones when they are looked up anew."""

    asked: list[bool] = field(default_factory=list)

    def __call__(self, anew: bool) -> Found:
        self.asked.append(anew)
        return Found(token="new" if any(self.asked) else "old")


@contextmanager
def sending(server: BucketServer, **more: Any) -> Iterator[Sender]:
    address = Address(scheme="http", host="127.0.0.1", port=server.port, path="/bucket/")
    wanted: dict[str, Any] = {"find_credentials": lambda _: Found(), "pace": HASTY, **more}
    sender = Sender(address=lambda: address, region="us-east-1", **wanted)
    try:
        yield sender
    finally:
        sender.close()


def first(fault: Fault, times: int = 1) -> Any:
    return lambda request: fault if request.number <= times else None


def bucket(sender: Sender, patience: Patience = QUICK) -> S3Objects:
    return S3Objects(None, "bucket", sender=sender, patience=patience)


def test_what_is_sent_arrives_with_checksum_digest_and_one_request() -> None:
    with BucketServer().serving() as server, sending(server) as sender:
        bucket(sender).put(KEY, memoryview(DATA), digest=digest_of(DATA))
        [request] = server.requests
    assert server.stored == {KEY: DATA}
    assert server.digests[KEY] == digest_of(DATA)
    assert "x-amz-checksum-crc64nvme" in request.headers
    assert request.headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
    assert "x-amz-checksum-crc64nvme" in request.headers["authorization"]


def test_connections_are_kept_and_shared_by_threads() -> None:
    with BucketServer().serving() as server, sending(server) as sender:
        for number in range(5):
            bucket(sender).put(f"{KEY}{number}", DATA, digest="d")
        assert len(server._open) == 1


@pytest.mark.parametrize("fault", list(set(Fault) - {Fault.LOST}))
def test_each_fault_is_survived_by_a_second_try(fault: Fault) -> None:
    with BucketServer(fault=first(fault), small_buffers=True).serving() as server, sending(server) as sender:
        bucket(sender).put(KEY, BIG, digest="d")
        assert server.stored == {KEY: BIG}
        assert [request.number for request in server.puts] == [1, 2]


def test_a_server_that_says_slow_down_gets_time() -> None:
    waits: list[float] = []
    patience = Patience(total_s=60, first_s=0.1, longest_s=5, sleep=waits.append, chance=lambda: 1.0)
    with BucketServer(fault=first(Fault.SLOW_DOWN, 4)).serving() as server, sending(server) as sender:
        bucket(sender, patience).put(KEY, DATA, digest="d")
    assert waits == [0.1, 0.2, 0.4, 0.8]


def test_a_deaf_server_costs_no_more_than_the_deadline() -> None:
    with BucketServer(fault=first(Fault.DEAF, 99), small_buffers=True).serving() as server:
        began = time.monotonic()
        with sending(server, pace=Pace()) as sender, pytest.raises(Unavailable):
            bucket(sender).put(KEY, BIG, digest="d", until=began + 0.5)
        assert time.monotonic() - began < 2


def test_a_slow_server_is_no_stalled_one() -> None:
    """8 MiB at 8 MiB/s take three times as long as a standstill may."""
    tokens = TokenBucket(8 * 1024 * 1024)
    with BucketServer(tokens=tokens, small_buffers=True).serving() as server, sending(server) as sender:
        bucket(sender).put(KEY, BIG, digest="d")
        assert len(server.puts) == 1
        assert server.stored == {KEY: BIG}


@pytest.mark.parametrize("off_s", [-3600.0, 3600.0])
def test_cw_08_a_wrong_clock_is_corrected_by_the_servers(off_s: float) -> None:
    with BucketServer().serving() as server, sending(server, clock=lambda: time.time() + off_s) as sender:
        for number in range(3):
            bucket(sender).put(f"{KEY}{number}", DATA, digest="d")
        assert len(server.puts) == 4  # only the first one has to learn it
        assert len(server.stored) == 3


def test_a_clock_that_jumps_in_mid_upload_is_corrected_again() -> None:
    off = {"s": 0.0}
    with BucketServer().serving() as server, sending(server, clock=lambda: time.time() + off["s"]) as sender:
        for number, seconds in enumerate((0.0, 3600.0, 3600.0, 0.0)):
            off["s"] = seconds
            bucket(sender).put(f"{KEY}{number}", DATA, digest="d")
        assert len(server.stored) == 4
        assert len(server.puts) == 6


def test_expired_credentials_are_looked_up_anew_in_mid_upload() -> None:
    def refuses_old(request: Request) -> Fault | None:
        is_old = request.headers.get("x-amz-security-token") == "old"
        return Fault.EXPIRED if is_old and request.number > 2 else None

    wallet = Wallet()
    with BucketServer(fault=refuses_old).serving() as server, sending(server, find_credentials=wallet) as sender:
        for number in range(4):
            bucket(sender).put(f"{KEY}{number}", DATA, digest="d")
        assert len(server.stored) == 4
        assert wallet.asked.count(True) == 1


def test_credentials_that_stay_expired_are_said_at_once() -> None:
    with BucketServer(fault=lambda _: Fault.EXPIRED).serving() as server, sending(server) as sender:
        with pytest.raises(Denied, match="ExpiredToken"):
            bucket(sender).put(KEY, DATA, digest="d")
        assert len(server.puts) == 2


def test_a_conditional_put_is_one_through_a_sender_too() -> None:
    with BucketServer().serving() as server, sending(server) as sender:
        client = client_of(server)
        objects = S3Objects(client, "bucket", sender=sender, patience=QUICK)
        assert objects.put_if_absent(KEY, DATA, digest=digest_of(DATA)) is PutOutcome.CREATED
        assert objects.put_if_absent(KEY, DATA, digest=digest_of(DATA)) is PutOutcome.SAME
        assert objects.put_if_absent(KEY, b"other", digest=digest_of(b"other")) is PutOutcome.DIFFERENT
        assert server.stored == {KEY: DATA}


def test_many_threads_send_at_once() -> None:
    with BucketServer().serving() as server, sending(server, pace=Pace()) as sender:
        objects = bucket(sender)
        threads = [
            threading.Thread(target=objects.put, args=(f"{KEY}{n}", DATA), kwargs={"digest": "d"}) for n in range(16)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(server.stored) == 16
        assert set(server.stored.values()) == {DATA}


def test_the_address_is_the_clients_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    on_aws = address_of(Clients(region="eu-west-1").s3, "some-bucket")
    assert on_aws.scheme == "https"
    assert (on_aws.host.split(".")[0], on_aws.path, on_aws.port) == ("some-bucket", "/", None)
    assert "eu-west-1" in on_aws.host
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:81")
    here = address_of(Clients(region="eu-west-1").s3, "some-bucket")
    assert (here.scheme, here.host, here.port, here.path) == ("http", "127.0.0.1", 81, "/some-bucket/")


def test_over_tls_a_session_ticket_is_not_taken_for_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl to make a certificate with")
    cert = tmp_path / "cert.pem"
    command = f"{openssl} req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run(
        [*command.split(), *names, "-keyout", str(cert), "-out", str(tmp_path / "c")], check=True, capture_output=True
    )
    cert.write_text(cert.read_text() + (tmp_path / "c").read_text())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(cert))
    with BucketServer(tls=context).serving() as server:
        address = Address(scheme="https", host="127.0.0.1", port=server.port, path="/bucket/")
        sender = Sender(address=lambda: address, region="us-east-1", find_credentials=lambda _: Found())
        for number in range(3):
            bucket(sender, replace(QUICK, total_s=1)).put(f"{KEY}{number}", BIG, digest="d")
        sender.close()
        assert len(server.puts) == 3
        assert set(server.stored.values()) == {BIG}


def client_of(server: BucketServer) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL_S3", server.url)
        return Clients(region="us-east-1").s3
