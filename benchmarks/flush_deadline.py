"""What the last seconds before a deadline are used for, behind a wire that carries 5 to 200 % of what a flush needs.

    python benchmarks/flush_deadline.py [--check] [--small]

1. notice to commit: the real decision and the real uploader process, behind a token bucket. Where the flush fits, its
   time stands beside bytes / rate; where it does not, what the decision promised is read back, every byte.
2. usable bytes at SIGKILL over what the wire could carry: whole chunk objects, beside a naive multipart upload.
3. several ranks behind one wire that carries three quarters: one set after the other, beside all at once.

Each wire is a bucket in a process of its own on loopback. `--check` exits with 1 when a bound is broken; the last line
is a JSON object. `--small` is for the test suite: so short that fixed costs count, so its shares have bounds of their
own.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.checkpointing.sink import Wire, sinking
from benchmarks.checkpointing.uploader import stores
from benchmarks.checkpointing.wired import BUCKET, RUN, Node, Size, begin_of, node, seal, surroundings
from spotproof.agent.decide import Choice, Moment, decide
from spotproof.checkpoint.commit import Committer
from spotproof.checkpoint.content import Content, Save
from spotproof.checkpoint.describing import Describing
from spotproof.contract import s3keys
from spotproof.contract.manifest import decode_part
from spotproof.contract.states import SaveKind
from spotproof.errors import SpotproofError
from spotproof.store.checkpoints import Checkpoints
from spotproof.store.local import LocalTable
from spotproof.store.pointer import Pointers

MIB: Final = 1024 * 1024
KILLED_CHUNK_BYTES: Final = 16 * 1024
FITS_FACTOR, FITS_EXTRA_S, CHOICE_S = 1.2, 2.0, 1.0
_NAIVE: Final = """
import boto3, sys
from boto3.s3.transfer import TransferConfig
boto3.client("s3").upload_file(sys.argv[1], "bucket", "naive", Config=TransferConfig(multipart_threshold=1))
"""


FULL: Final = Size(
    image_bytes=120 * MIB,
    chunk_bytes=MIB // 4,
    left_s=4.0,
    shares=(0.05, 0.25, 0.5, 0.8, 1.25, 1.6, 2.0),
    kill_s=8.0,
    ranks=8,
    usable_at_least=0.98,
)
SMALL: Final = Size(
    image_bytes=4 * MIB,
    chunk_bytes=64 * 1024,
    left_s=3.0,
    shares=(0.6, 2.0),
    kill_s=4.0,
    ranks=4,
    usable_at_least=0.7,
)


# ---------------------------------------------------------------------------------------------------- 1: the deadline
def at_share(size: Size, share: float) -> dict[str, Any]:
    """A notice behind a wire that carries `share` of what a flush needs."""
    print(f"a wire of {share:.0%} of the need ..", file=sys.stderr, flush=True)
    rate = share * size.image_bytes / size.budget_s
    with node(size, rate) as one:
        one.fill(1)
        one.submit(1)
        assert one.hear(until=time.monotonic() + 60 * size.left_s), "the first save is not durable"
        noticed = time.monotonic()
        deadline_at = time.time() + size.left_s
        decision = decide(moment(one, deadline_at))
        chose_s = time.monotonic() - noticed
        flush_s = None
        if decision.choice is Choice.FLUSH:
            one.fill(2)
            one.submit(2, kind=SaveKind.FLUSH, until_at=deadline_at)
            if one.hear(until=noticed + size.left_s) and one.committed_step == 2:
                flush_s = time.monotonic() - noticed
        one.kill()
        promised = 2 if decision.choice is Choice.FLUSH else 1
        return {
            "share": share,
            "choice": decision.choice.value,
            "why": decision.reason,
            "choice_s": round(chose_s, 4),
            "notice_to_commit_s": None if flush_s is None else round(flush_s, 2),
            "bytes_over_rate_s": round(size.image_bytes / rate, 2),
            "is_whole": newest_step(one) == promised,
        }


def moment(one: Node, deadline_at: float) -> Moment:
    """What the agent would know: sizes and rates as its own uploads have shown them."""
    return Moment(
        now=time.time(),
        deadline_at=deadline_at,
        has_trainer=True,
        step=2,
        committed_step=one.committed_step,
        uploading_step=one.uploads.pending[-1].step if one.uploads.pending else -1,
        uploading_bytes_left=one.uploads.bytes_left,
        image_bytes=one.uploads.image_bytes,
        lacking_bytes=one.uploads.lacking_bytes,
        step_s=0.0,
        rate_bytes_s=one.uploads.rate_bytes_s,
    )


def newest_step(one: Node) -> int:
    """The step that a successor loads, every byte of it read and verified."""
    fetched = one.fetcher().ahead(0)
    if fetched is None:
        return -1
    os.close(fetched.image_fd)
    return fetched.order[1]


def under_way(size: Size) -> dict[str, Any]:
    """A notice while an upload is half through, and what is left fits but a flush behind it does not."""
    rate = size.image_bytes / size.budget_s
    with node(size, rate) as one:
        one.fill(1)
        one.submit(1)
        assert one.hear(until=time.monotonic() + 60 * size.left_s), "the first save is not durable"
        one.fill(2)
        one.submit(2)
        one.hear(until=time.monotonic() + size.left_s, is_enough=lambda: one.uploads.bytes_left < size.image_bytes / 2)
        noticed, deadline_at = time.monotonic(), time.time() + size.left_s
        decision = decide(moment(one, deadline_at))
        is_done = one.hear(until=noticed + size.left_s) and one.committed_step == 2
        one.kill()
        return {"choice": decision.choice.value, "why": decision.reason, "is_whole": is_done and newest_step(one) == 2}


# ------------------------------------------------------------------------------------------- 2: usable bytes at a kill
def usable(size: Size) -> dict[str, float]:
    """Bytes in whole chunk objects at SIGKILL, over what the wire carried until then; naive multipart beside.

    Chunks are a five-hundredth of it: the product's are a four-thousandth (8 MiB of what 2.5 Gb/s carry in 110 s).
    """
    size = dataclasses.replace(size, chunk_bytes=max(KILLED_CHUNK_BYTES, size.image_bytes // 1024 // 4096 * 4096))
    rate = size.image_bytes / size.kill_s / 2
    with node(size, rate) as one:
        one.fill(1)
        while one.uploads.pending or not is_ready(one):
            time.sleep(0.01)
        began = time.monotonic()
        one.submit(1, kind=SaveKind.FLUSH)
        time.sleep(max(0.0, began + size.kill_s - time.monotonic()))
        stored = sum(key.startswith(f"/{BUCKET}/{s3keys.run_prefix(RUN)}blobs/") for key in keys(one.url))
        took_s = time.monotonic() - began  # on a busy machine the bucket's answer takes its time, and the wire goes on
        one.kill()
    multipart = naive(size, rate) / (rate * size.kill_s)
    return {"ours": stored * size.chunk_bytes / (rate * took_s), "multipart": multipart}


def is_ready(one: Node) -> bool:
    """Whether the uploader process has come up: its scratch folder's parent is made when it has taken Begin."""
    return bool(one.uploads.pid) and Path(f"/proc/{one.uploads.pid}/wchan").exists() and ready_fds(one.uploads.pid)


def ready_fds(pid: int) -> bool:
    """Whether it has opened its table, which it does after everything is imported."""
    links = (os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir())
    return any(link.endswith("/table") for link in links)


def naive(size: Size, rate: float) -> int:
    """Bytes that a reader can have of a multipart upload that was killed."""
    with (
        sinking(Wire(bytes_s=rate)) as url,
        surroundings(url),
        tempfile.NamedTemporaryFile(prefix="deadline-") as file,
    ):
        file.write(random.Random(1).randbytes(size.image_bytes))
        file.flush()
        process = subprocess.Popen([sys.executable, "-c", _NAIVE, file.name])
        while not keys(url, "puts") and process.poll() is None:
            time.sleep(0.01)
        time.sleep(size.kill_s)
        process.kill()
        process.wait()
        return size.image_bytes if f"/{BUCKET}/naive" in keys(url) else 0


def keys(url: str, what: str = "keys") -> Any:
    """What the bucket holds."""
    with urllib.request.urlopen(f"{url}/", timeout=60) as answer:  # noqa: S310 -- loopback
        return json.load(answer)[what]


# --------------------------------------------------------------------------------------------------- 3: several ranks
def sets(size: Size, *, staggered: bool) -> float:
    """Share of the ranks whose part is whole when the wire has carried three quarters of all."""
    rank_bytes = size.image_bytes // size.ranks
    rate = size.image_bytes / size.kill_s
    with (
        sinking(Wire(bytes_s=rate)) as url,
        surroundings(url),
        tempfile.TemporaryDirectory(prefix="deadline-") as name,
        LocalTable(Path(name) / "table") as table,
    ):
        seal(table)
        objects, _ = stores(begin_of(Path(name), size))
        images = [random.Random(rank).randbytes(rank_bytes) for rank in range(size.ranks)]
        until = time.monotonic() + 0.75 * size.kill_s

        def commit(ranks: Sequence[int]) -> None:
            committer = Committer(
                objects=objects,
                checkpoints=Checkpoints(table),
                pointers=Pointers(table),
                clock=time.time,
                threads=4 if staggered else 1,
            )
            for rank in ranks:
                content = Content(
                    image=memoryview(images[rank]), layout=b"{}", metadata=b"", chunk_bytes=size.chunk_bytes
                )
                save = Save(run=RUN, generation=1, step=1, kind=SaveKind.FLUSH, rank=rank, world=size.ranks)
                try:
                    with Describing(save, content, image_name=f"__{rank}_0.distcp") as source:
                        committer.commit_from(source, until=until)
                except SpotproofError:
                    return

        groups = [list(range(size.ranks))] if staggered else [[rank] for rank in range(size.ranks)]
        threads = [threading.Thread(target=commit, args=(group,)) for group in groups]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = set(keys(url))
        return sum(is_whole(url, found, rank) for rank in range(size.ranks)) / size.ranks


def is_whole(url: str, found: set[str], rank: int) -> bool:
    """Whether the rank's part is there, and every chunk that it names."""
    key = f"/{BUCKET}/{s3keys.part(RUN, 1, 1, rank)}"
    if key not in found:
        return False
    with urllib.request.urlopen(f"{url}{key}", timeout=60) as answer:  # noqa: S310 -- loopback
        part = decode_part(answer.read())
    return all(f"/{BUCKET}/{s3keys.blob(RUN, chunk.digest)}" in found for chunk in part.image.chunks)


# ------------------------------------------------------------------------------------------------------------ judging
def judged(size: Size) -> tuple[dict[str, Any], list[str]]:
    """(numbers, bounds that are broken)."""
    rows = [at_share(size, share) for share in size.shares]
    finishing = under_way(size)
    carried = usable(size)
    shares = {"staggered": sets(size, staggered=True), "all_at_once": sets(size, staggered=False)}
    broken = [problem for row in rows for problem in problems(row)]
    if finishing["choice"] != Choice.FINISH_UPLOAD or not finishing["is_whole"]:
        broken.append(f"an upload that is half through: {finishing}")
    if carried["ours"] < size.usable_at_least:
        broken.append(f"usable bytes {carried['ours']:.3f} of what the wire carried, bound {size.usable_at_least}")
    if shares["staggered"] <= shares["all_at_once"]:
        broken.append(f"one set after the other is no better than all at once: {shares}")
    return {"deadline": rows, "under_way": finishing, "usable": carried, "complete_sets": shares}, broken


def problems(row: dict[str, Any]) -> list[str]:
    """What is wrong with one notice."""
    found = []
    who = f"{row['share']:.0%} of the need"
    if row["choice_s"] > CHOICE_S:
        found.append(f"{who}: the choice took {row['choice_s']:.1f} s")
    if not row["is_whole"]:
        found.append(f"{who}: {row['choice']} was chosen, and what it promised is not whole")
    most_s = FITS_FACTOR * row["bytes_over_rate_s"] + FITS_EXTRA_S
    if row["choice"] == Choice.FLUSH and (row["notice_to_commit_s"] or 1e9) > most_s:
        found.append(f"{who}: committed after {row['notice_to_commit_s']} s, bound {most_s:.1f} s")
    if row["share"] >= 1.5 and row["choice"] != Choice.FLUSH:
        found.append(f"{who}: {row['choice']} although a flush fits ({row['why']})")
    if row["share"] <= 0.9 and row["choice"] == Choice.FLUSH:
        found.append(f"{who}: a flush was begun that cannot fit ({row['why']})")
    return found


def say(numbers: dict[str, Any]) -> None:
    """For people."""
    print(f"{'of the need':>12} {'choice':>14} {'commit s':>9} {'bytes/b s':>9}  promised is whole")
    for row in numbers["deadline"]:
        committed = "-" if row["notice_to_commit_s"] is None else f"{row['notice_to_commit_s']:.2f}"
        print(
            f"{row['share']:>12.0%} {row['choice']:>14} {committed:>9} {row['bytes_over_rate_s']:>9.2f}  "
            f"{'yes' if row['is_whole'] else 'NO'}"
        )
    half, carried, shares = numbers["under_way"], numbers["usable"], numbers["complete_sets"]
    print(f"a notice while an upload is half through: {half['choice']}, whole: {'yes' if half['is_whole'] else 'NO'}")
    print(f"usable bytes at SIGKILL over capacity: ours {carried['ours']:.3f}, multipart {carried['multipart']:.3f}")
    print(f"complete sets: staggered {shares['staggered']:.0%}, all at once {shares['all_at_once']:.0%}")


def main(argv: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--small", action="store_true")
    asked = parser.parse_args(argv)
    numbers, broken = judged(SMALL if asked.small else FULL)
    say(numbers)
    for problem in broken:
        print(f"BROKEN: {problem}")
    print(json.dumps({**numbers, "broken": broken}))
    return 1 if asked.check and broken else 0


if __name__ == "__main__":
    sys.exit(main())
