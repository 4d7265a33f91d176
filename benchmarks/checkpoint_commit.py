"""What a save costs until it is durable, beside what the wire, the disk and the memory allow and beside the other ways.

    python benchmarks/checkpoint_commit.py            every part
    python benchmarks/checkpoint_commit.py --check    exit status 1 if a bound is broken
    python benchmarks/checkpoint_commit.py --small    sizes for a minute; the numbers mean little

Parts, each in a process of its own:
  commit   save to committed, over the best bare PUT loop of the same objects (sockets and CRC64NVME, nothing else), and
           the CPU that the trainer's process spends; at a light bucket without a limit, and at one of 312 MB/s that
           answers after 20 ms and refuses one PUT of fifty. Every tensor is read back and compared bit by bit.
  local    the copy on local disk, over a raw write and fsync of the same bytes
  memory   the most host memory that trainer and uploader had more than before, over the arenas that were declared
  lora     a frozen base and small adapters: what the second checkpoint sends, over what has changed

Limits and contenders are measured in turns, sample by sample; medians of the ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.checkpoint_stall import Loop, Model
from benchmarks.checkpointing import bare, committing
from benchmarks.checkpointing.committing import CONNECTORS, RIVALS, timed
from benchmarks.checkpointing.lora import TOOLS, backed_up, bytes_of, tuned
from benchmarks.checkpointing.rivals import Absent
from benchmarks.checkpointing.sink import Wire, sinking
from spotproof.checkpoint.chunks import file_of
from spotproof.checkpoint.content import LAYOUT_FILE, Save
from spotproof.checkpoint.describing import part_of
from spotproof.checkpoint.localcopy import LocalCopies
from spotproof.contract.layout import image_name
from spotproof.contract.states import SaveKind

LIMITS = {
    "commit over bare PUTs": 1.15,
    "commit over bare PUTs, 312 MB/s": 1.15,
    "trainer CPU s per GB": 0.2,
    "local copy over write and fsync": 1.25,
    "memory over the arenas": 1.1,
    "lora bytes over changed bytes": 1.05,
}
TENSORS = 600
MB_S = 312e6
SLOW = Wire(bytes_s=MB_S, latency_s=0.02, busy_every=50)
WRITE_BYTES = 16 * 1024**2
Numbers = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much and how often."""

    mib: int
    repeats: int
    rival_repeats: int
    base_mib: int


FULL = Size(mib=600, repeats=7, rival_repeats=3, base_mib=372)
SMALL = Size(mib=60, repeats=2, rival_repeats=1, base_mib=64)


@contextmanager
def scratch(*, in_memory: bool) -> Iterator[Path]:
    """A folder; not `in_memory` it is on the disk of this checkout, where people would have their own."""
    base = Path("/dev/shm") if in_memory and os.access("/dev/shm", os.W_OK) else Path(".cache")
    base.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="spotproof-bench-", dir=base))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def commit_ours(loop: Loop, wire: Wire, size: Size) -> Numbers:
    """Seconds from the save to its commit, in turns with the bare loop."""
    ratios, cpu, committed, limits, unchecked = [], [], [], [], []
    with sinking(wire) as url, scratch(in_memory=True) as folder, committing.ours(loop, url, folder) as subject:
        subject.commit()  # warm: layout, pages, connections
        size_bytes = subject.plans[-1].layout.image_bytes
        for _ in range(size.repeats):
            loop.optimizer.step()
            seconds, used = timed(subject.commit)
            assert subject.done is not None
            assert subject.done.sent_bytes >= size_bytes * 0.99, "something was not sent again"
            subject.settle()
            wrong = subject.differing()
            assert not wrong, wrong
            limit = bare.best_s(subject.fds[subject.arena], url, chunk_bytes=committing.CHUNK_BYTES)
            unchecked.append(
                bare.best_s(subject.fds[subject.arena], url, chunk_bytes=committing.CHUNK_BYTES, crc=False, threads=[4])
            )
            committing.forget_all(url)
            ratios.append(seconds / limit)
            cpu.append(used / size_bytes * 1e9)
            committed.append(seconds)
            limits.append(limit)
    return {
        "ratio": statistics.median(ratios),
        "cpu_s_per_gb": statistics.median(cpu),
        "committed_s": statistics.median(committed),
        "bare_s": statistics.median(limits),
        "bare_without_checksum_s": statistics.median(unchecked),
        "bytes": size_bytes,
    }


def commit_rivals(loop: Loop, wire: Wire, size: Size, bare_s: float) -> dict[str, Numbers | str]:
    """The same of each rival, over the bare loop's median."""
    found: dict[str, Numbers | str] = {}
    ways: dict[str, Callable[[str, Loop, str, Path], Any]] = dict.fromkeys(CONNECTORS, committing.connector)
    ways |= dict.fromkeys(RIVALS, committing.rival)  # the last of them leaves a process group behind
    for name, make in ways.items():
        with sinking(wire) as url, scratch(in_memory=True) as folder:
            try:
                with make(name, loop, url, folder) as subject:
                    subject.commit()
                    samples = [timed(subject.commit) for _ in range(size.rival_repeats)]
                    wrong = subject.differing()
            except Absent as why:
                found[name] = str(why)
                continue
        seconds = statistics.median(seconds for seconds, _ in samples)
        used = statistics.median(cpu for _, cpu in samples)
        total = sum(value.numel() * value.element_size() for value in committing.flat(loop.state()).values())
        found[name] = {"ratio": seconds / bare_s, "cpu_s_per_gb": used / total * 1e9, "wrong": wrong}
    return found


def part_commit(wire: Wire, size: Size) -> Numbers:
    """Ours and the rivals at one bucket."""
    loop = Loop(Model(TENSORS, size.mib * 2**20))
    mine = commit_ours(loop, wire, size)
    return {"spotproof": mine, **commit_rivals(loop, wire, size, mine["bare_s"])}


def part_local(size: Size) -> Numbers:
    """LocalCopies.stage beside write + fsync, in turns, into one folder."""
    data = memoryview(os.urandom(size.mib * 2**20))
    described = file_of(image_name(0), data, chunk_bytes=committing.CHUNK_BYTES)
    layout = file_of(LAYOUT_FILE, memoryview(b"{}"), chunk_bytes=committing.CHUNK_BYTES)
    ratios, limits = [], []
    with scratch(in_memory=False) as folder:
        copies = LocalCopies(folder, "bench", keep=1)
        for step in range(1, size.repeats + 2):
            save = Save(run="bench", generation=1, step=step, kind=SaveKind.PERIODIC)
            part = part_of(save, described, layout, None)
            limit, _ = timed(lambda: write_raw(folder / "raw", data))
            (folder / "raw").unlink()
            begun = time.perf_counter()
            copies.stage(part, {image_name(0): data, LAYOUT_FILE: b"{}"})
            seconds = time.perf_counter() - begun
            if step > 1:  # the first one warms the disk's caches
                ratios.append(seconds / limit)
                limits.append(limit)
    return {"ratio": statistics.median(ratios), "raw_s": statistics.median(limits), "bytes": len(data)}


def write_raw(path: Path, data: memoryview) -> None:
    """The limit: the same bytes into one file, and fsync."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for at in range(0, len(data), WRITE_BYTES):
        os.write(handle, data[at : at + WRITE_BYTES])
    os.fsync(handle)
    os.close(handle)


def pss_bytes(pids: Sequence[int]) -> int:
    """Memory of processes together, what they share counted once."""
    total = 0
    for pid in pids:
        rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        total += next(int(row.split()[1]) for row in rows if row.startswith("Pss:")) * 1024
    return total


def part_memory(size: Size) -> Numbers:
    """The peak while training goes on and saves follow each other."""
    loop = Loop(Model(TENSORS, size.mib * 2**20))
    loop.steps(1)
    before, peak, is_over = pss_bytes([os.getpid()]), 0, threading.Event()
    with sinking(Wire()) as url, scratch(in_memory=False) as folder, committing.ours(loop, url, folder) as subject:

        def watch() -> None:
            nonlocal peak
            while not is_over.wait(0.01):
                peak = max(peak, pss_bytes([os.getpid(), subject.uploads.pid]))

        watching = threading.Thread(target=watch)
        watching.start()
        subject.commit()
        for _ in range(size.rival_repeats):
            loop.optimizer.step()
            subject.commit_all_arenas()
        subject.settle()
        is_over.set()
        watching.join()
        declared = 2 * subject.plans[-1].layout.image_bytes
    return {"ratio": (peak - before) / declared, "declared_bytes": declared, "peak_bytes": peak - before}


def part_lora(size: Size) -> Numbers:
    """Bytes and seconds of the second checkpoint; restic and borg on torch.save's file of the same states."""
    tuning = tuned(size.base_mib)
    changed = bytes_of(tuning.moving())
    sent, seconds = [], []
    with sinking(Wire()) as url, scratch(in_memory=True) as folder, committing.ours(tuning, url, folder) as subject:
        subject.commit()
        for _ in range(size.repeats):
            tuning.optimizer.step()
            took, _ = timed(subject.commit)
            assert subject.done is not None
            sent.append(subject.done.sent_bytes)
            seconds.append(took)
            assert not (wrong := subject.differing()), wrong
    beside: dict[str, Numbers | str] = {}
    for name in TOOLS:
        with scratch(in_memory=True) as folder:
            beside[name] = backed_up(name, tuning, folder, repeats=size.rival_repeats)
    return {
        "ratio": statistics.median(sent) / changed,
        "sent_bytes": statistics.median(sent),
        "changed_bytes": changed,
        "frozen_share": 1 - bytes_of(tuning.trained()) / bytes_of(tuning.model.parameters()),
        "seconds": statistics.median(seconds),
        "beside": beside,
    }


PARTS: dict[str, Callable[[Size], Numbers]] = {
    "commit": lambda size: part_commit(Wire(), size),
    "commit-312": lambda size: part_commit(SLOW, size),
    "local": part_local,
    "memory": part_memory,
    "lora": part_lora,
}


def judged(found: dict[str, Numbers]) -> dict[str, float]:
    """The numbers that have a bound."""
    numbers: dict[str, float] = {}
    if commit := found.get("commit"):
        numbers["commit over bare PUTs"] = commit["spotproof"]["ratio"]
        numbers["trainer CPU s per GB"] = commit["spotproof"]["cpu_s_per_gb"]
    if slow := found.get("commit-312"):
        numbers["commit over bare PUTs, 312 MB/s"] = slow["spotproof"]["ratio"]
    names = {
        "local": "local copy over write and fsync",
        "memory": "memory over the arenas",
        "lora": "lora bytes over changed bytes",
    }
    numbers |= {names[part]: found[part]["ratio"] for part in names if part in found}
    return {name: round(number, 3) for name, number in numbers.items()}


def told(found: dict[str, Numbers]) -> Iterator[str]:
    """The tables."""
    for part, wire in (("commit", "without a limit"), ("commit-312", "of 312 MB/s, 20 ms, 2 % busy")):
        if (table := found.get(part)) is None:
            continue
        mine = table["spotproof"]
        yield (
            f"commit, a bucket {wire}: {mine['bytes'] / 1e6:.0f} MB in {mine['committed_s']:.2f} s; bare PUTs "
            f"{mine['bare_s']:.2f} s are 1.00 (without checksums {mine['bare_without_checksum_s']:.2f} s)"
        )
        for name, row in table.items():
            if isinstance(row, str):
                yield f"  {name:<38} {row}"
            else:
                yield f"  {name:<38} {row['ratio']:6.2f}   {row['cpu_s_per_gb']:5.2f} CPU s per GB in the trainer"
                if row.get("wrong"):
                    yield f"  {name:<38} NOT the same bits: {', '.join(row['wrong'][:3])}"
    if local := found.get("local"):
        yield f"local copy: {local['ratio']:.2f} of a raw write and fsync ({local['raw_s']:.2f} s)"
    if memory := found.get("memory"):
        yield f"memory: {memory['peak_bytes'] / 1e6:.0f} MB at most, declared {memory['declared_bytes'] / 1e6:.0f} MB"
    if lora := found.get("lora"):
        yield (
            f"lora, {lora['frozen_share']:.1%} frozen: the second checkpoint sends {lora['sent_bytes'] / 1e6:.2f} MB "
            f"in {lora['seconds']:.2f} s, {lora['changed_bytes'] / 1e6:.2f} MB have changed"
        )
        for name, row in lora["beside"].items():
            line = row if isinstance(row, str) else f"{row['sent_bytes'] / 1e6:.2f} MB in {row['seconds']:.2f} s"
            yield f"  {name:<8} {line}"


def run_apart(part: str, *, is_small: bool) -> Numbers:
    """A part in a process of its own: memory and caches of one do not reach the next."""
    argv = [sys.executable, __file__, "--part", part, *(["--small"] if is_small else [])]
    printed = subprocess.run(argv, stdout=subprocess.PIPE, check=True, text=True).stdout
    numbers: Numbers = json.loads(printed.strip().splitlines()[-1])
    return numbers


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail if a bound is broken")
    parser.add_argument("--small", action="store_true", help="sizes for a minute")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--part", choices=list(PARTS), help="one part in this process, as JSON")
    asked = parser.parse_args()
    if asked.part:
        torch.set_num_threads(1)
        print(json.dumps(PARTS[asked.part](SMALL if asked.small else FULL)))
        return 0
    found = {part: run_apart(part, is_small=asked.small) for part in asked.only}
    for line in told(found):
        print(line)
    numbers = judged(found)
    broken = [name for name, number in numbers.items() if number > LIMITS[name]]
    for name in broken:
        print(f"BROKEN: {name}: {numbers[name]} is more than {LIMITS[name]}")
    print(json.dumps(numbers))
    return int(asked.check and bool(broken))


if __name__ == "__main__":
    sys.exit(main())
