"""What a bucket does when S3 answers with the failures that S3 has."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from botocore.exceptions import ConnectionClosedError

from spotproof.errors import Damaged, Denied, Unavailable
from spotproof.store.digest import digest_of
from spotproof.store.objects import PutOutcome
from spotproof.store.retry import Patience
from spotproof.store.s3 import S3Objects
from tests.unit.store.wire import Answer, Wire, s3_error

ROOT = Path(__file__).resolve().parents[3]
KEY, DATA = "runs/r/blobs/x", b"payload"
DIGEST = digest_of(DATA)
QUICK = Patience(total_s=5, first_s=0.0, longest_s=0.0)
OURS = Answer(headers={"x-amz-meta-blake3": DIGEST})
OTHERS = Answer(headers={"x-amz-meta-blake3": digest_of(b"other")})


def bucket(wire: Wire, patience: Patience = QUICK) -> S3Objects:
    return S3Objects(wire.client("s3"), "bucket", patience=patience)


def put(wire: Wire) -> PutOutcome:
    return bucket(wire).put_if_absent(KEY, DATA, digest=DIGEST)


def test_a_put_carries_the_condition_the_checksum_and_the_digest() -> None:
    wire = Wire(Answer())
    assert put(wire) is PutOutcome.CREATED
    [sent] = wire.sent
    assert sent.headers["If-None-Match"] == b"*"
    assert sent.headers["x-amz-meta-blake3"] == DIGEST.encode()
    assert "x-amz-checksum-crc64nvme" in {name.lower() for name in sent.headers}
    assert sent.headers["Content-Length"] == str(len(DATA))


def test_a_412_with_our_digest_is_an_earlier_try_of_ours() -> None:
    assert put(Wire(s3_error("PreconditionFailed", 412), OURS)) is PutOutcome.SAME


def test_a_412_with_another_digest_is_somebody_elses() -> None:
    assert put(Wire(s3_error("PreconditionFailed", 412), OTHERS)) is PutOutcome.DIFFERENT


def test_a_409_is_sent_again() -> None:
    wire = Wire(s3_error("ConditionalRequestConflict", 409), s3_error("ConditionalRequestConflict", 409), Answer())
    assert put(wire) is PutOutcome.CREATED
    assert len(wire.sent) == 3


def test_a_lost_answer_is_found_out_by_the_digest() -> None:
    """The first try was stored, its answer lost; the second one meets it."""
    lost = ConnectionClosedError(endpoint_url="http://x")
    assert put(Wire(lost, s3_error("PreconditionFailed", 412), OURS)) is PutOutcome.SAME


def test_an_object_that_vanishes_between_412_and_head_is_put_again() -> None:
    assert put(Wire(s3_error("PreconditionFailed", 412), s3_error("404", 404), Answer())) is PutOutcome.CREATED


def test_slow_down_is_tried_again_until_the_time_is_over() -> None:
    wire = Wire(*[s3_error("SlowDown", 503)] * 3, Answer())
    bucket(wire).put(KEY, DATA, digest=DIGEST)
    assert len(wire.sent) == 4
    never = Wire(*[s3_error("SlowDown", 503)] * 2)
    with pytest.raises(Unavailable, match="SlowDown"):
        bucket(never, Patience(total_s=0.02, first_s=0.02, chance=lambda: 0.6)).put(KEY, DATA, digest=DIGEST)


def test_a_deadline_of_the_caller_ends_the_tries() -> None:
    wire = Wire(s3_error("SlowDown", 503))
    with pytest.raises(Unavailable):
        bucket(wire).put(KEY, DATA, digest=DIGEST, until=time.monotonic())
    assert len(wire.sent) == 1


def test_cw_08_a_request_signed_too_long_ago_is_signed_again() -> None:
    wire = Wire(s3_error("RequestTimeTooSkewed", 403), Answer())
    bucket(wire).put(KEY, DATA, digest=DIGEST)
    assert len(wire.sent) == 2
    assert wire.sent[0] is not wire.sent[1]


def test_denied_is_said_at_once() -> None:
    with pytest.raises(Denied, match="bucket/runs/r/blobs/x"):
        put(Wire(s3_error("AccessDenied", 403)))


def test_a_body_that_breaks_in_the_middle_is_read_again() -> None:
    size = {"Content-Length": str(len(DATA))}
    wire = Wire(Answer(body=DATA, headers=size, breaks_after=3), Answer(body=DATA, headers=size))
    assert bucket(wire).get(KEY, digest=DIGEST) == DATA


def test_a_short_body_is_read_again_and_a_wrong_one_is_damaged() -> None:
    size = {"Content-Length": str(len(DATA))}
    short, wrong = Answer(body=DATA[:3], headers=size), Answer(body=b"pAyload", headers=size)
    assert bucket(Wire(short, Answer(body=DATA, headers=size))).get(KEY, digest=DIGEST) == DATA
    with pytest.raises(Damaged):
        bucket(Wire(wrong)).get(KEY, digest=DIGEST)


def test_a_body_that_arrived_damaged_is_sent_again() -> None:
    assert put(Wire(s3_error("BadDigest", 400), Answer())) is PutOutcome.CREATED


def test_a_body_whose_checksum_is_wrong_is_read_again_and_is_damaged_if_it_stays_so() -> None:
    wrong = Answer(body=DATA, headers={"x-amz-checksum-crc32": "AAAAAA=="})
    right = Answer(body=DATA)
    assert bucket(Wire(wrong, right)).get(KEY, digest=DIGEST) == DATA
    wire = Wire(wrong, wrong, wrong)
    with pytest.raises(Damaged):
        bucket(wire).get(KEY, digest=DIGEST)
    assert len(wire.sent) == 2


def test_a_function_without_awscrt_and_blake3_reads_and_writes_what_nodes_do() -> None:
    """A Lambda's package is pure Python: it sends CRC32 and checks the digest where it cannot check CRC64NVME."""
    program = """
import sys
for name in ("awscrt", "blake3"):
    sys.modules[name] = None
from spotproof.store.digest import digest_of
from spotproof.store.s3 import Checksum, S3Objects
from tests.unit.store.wire import Answer, Wire

data = b"payload" * 300
by_a_node = {"x-amz-checksum-crc64nvme": "AAAAAAAAAAA=", "x-amz-meta-blake3": digest_of(data), "Content-Length": "2100"}
wire = Wire(Answer(), Answer(body=data, headers=by_a_node))
objects = S3Objects(wire.client("s3"), "bucket", checksum=Checksum.CRC32)
objects.put("runs/r/a", data, digest=digest_of(data))
assert "x-amz-checksum-crc32" in {name.lower() for name in wire.sent[0].headers}
assert objects.read("runs/r/a") == data
print("read", end="")
"""
    found = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (found.stdout, found.stderr) == ("read", "")
