"""A restore beside a raw parallel GET of the same objects, and a start beside `import torch` and that GET.

    python benchmarks/restore.py [--small] [--check]

Restore: manifest, every chunk read and verified, and every tensor of a model and its AdamW filled, as agent and
trainer do it; beside it the bare read of the same chunks into memory by as many kept connections, unsigned and
unverified, and what most scripts do (one object, downloaded, torch.load, load_state_dict). Start: from starting the
processes to the end of the first step, the agent reading while the trainer imports torch and makes its model; beside it
a process that only imports torch, and the bare read. Sample by sample in one run; only ratios are judged.

Wires: as fast as the bucket can (where two processes share this machine's cores with it), and 312 MB/s with 20 ms, a
network of 2.5 Gb/s. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import io
import json
import mmap
import os
import queue
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

BUCKET = "bucket"
RUN = "bench"
STEP = 7
CHUNK_BYTES = 8 * 1024 * 1024  # the layout's for 2.5 Gb/s
THREADS = 8
RESTORE_LIMIT = 1.2
START_LIMIT = 1.3
SMALL_MB, LARGE_MB = 120, 1174
ROOT = Path(__file__).resolve().parents[1]


# ------------------------------------------------------------------------------------------------ what is restored
def training(megabytes: int) -> tuple[Any, Any]:
    """A model and its AdamW of so many MB together, in 600 tensors as a GPT's are: large, and small ones."""
    import torch
    from torch import nn

    numbers, layers = megabytes * 1_000_000 // 12, 50
    side = int((numbers / layers / 3) ** 0.5)
    blocks = [
        nn.Sequential(nn.Linear(side, 2 * side), nn.GELU(), nn.Linear(2 * side, side // 2)) for _ in range(layers)
    ]
    model = nn.ModuleList(blocks)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)


def one_step(model: Any, optimizer: Any) -> None:
    """Every parameter gets a gradient, and the optimizer its state."""
    for parameter in model.parameters():
        parameter.grad = parameter.detach().clone()
    optimizer.step()
    optimizer.zero_grad()


# ------------------------------------------------------------------------------------------------ the bucket
@dataclass(frozen=True)
class Bucket:
    """Where a whole checkpoint is."""

    url: str
    table: Path

    def objects(self) -> Any:
        """As an agent has them, made when it boots."""
        from spotproof.store.clients import Clients
        from spotproof.store.s3 import S3Objects

        os.environ |= {"AWS_ENDPOINT_URL": self.url, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
        return S3Objects(Clients(region="us-east-1").s3, BUCKET)

    def fetch(self, objects: Any) -> Any:
        """What the agent does: the pointer's checkpoint, verified, in a memfd."""
        from spotproof.checkpoint.fetch import Fetcher
        from spotproof.store.checkpoints import Checkpoints
        from spotproof.store.local import LocalTable
        from spotproof.store.members import Memberships
        from spotproof.store.pointer import Pointers
        from spotproof.store.starts import Stores

        with LocalTable(self.table) as table:
            stores = Stores(
                objects=objects,
                checkpoints=Checkpoints(table),
                pointers=Pointers(table),
                memberships=Memberships(table),
            )
            return Fetcher(stores=stores, run=RUN, clock=time.time, threads=THREADS).exact((1, STEP), 0)


def filled(bucket: Bucket, megabytes: int) -> list[str]:
    """Commit a trained state, and store the same state as one torch.save; the paths of the image's chunks."""
    import torch

    from spotproof.checkpoint.commit import Committer, Content, Save, make_part
    from spotproof.contract import layout, s3keys
    from spotproof.contract.items import Generation
    from spotproof.contract.layout import image_name
    from spotproof.contract.states import SaveKind
    from spotproof.store.checkpoints import Checkpoints
    from spotproof.store.digest import digest_of
    from spotproof.store.local import LocalTable
    from spotproof.store.members import Memberships
    from spotproof.store.pointer import Pointers
    from tests.fakes.training import snapshots

    model, optimizer = training(megabytes)
    one_step(model, optimizer)
    with (
        snapshots({"model": model, "optimizer": optimizer}) as (snapshotter, memory),
        LocalTable(bucket.table) as table,
    ):
        snapshotter.save(step=STEP, generation=1, counters={})
        plan, objects, pointers = memory.plans[-1], bucket.objects(), Pointers(table)
        sealed = Generation(run=RUN, generation=1, members=("0:1:i-1",), sealed_at=0)
        Memberships(table).seal(sealed, pointer=None)
        content = Content(
            image=memoryview(memory.image()),
            layout=layout.encode(plan.layout),
            metadata=plan.metadata,
            chunk_bytes=CHUNK_BYTES,
        )
        save = Save(run=RUN, generation=1, step=STEP, kind=SaveKind.PERIODIC)
        part = make_part(save, content, image_name=image_name(0))
        Committer(objects=objects, checkpoints=Checkpoints(table), pointers=pointers, clock=time.time).commit(
            part, content, kind=SaveKind.PERIODIC
        )
    blob = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, blob)
    objects.put("torch.pt", blob.getbuffer(), digest=digest_of(blob.getbuffer()))
    return [f"/{BUCKET}/{s3keys.blob(RUN, chunk.digest)}" for chunk in part.image.chunks]


# ------------------------------------------------------------------------------------------------ the contenders
def raw_read(url: str, paths: Sequence[str], sizes: Sequence[int]) -> float:
    """Seconds of the bare read of these objects into one fresh piece of memory."""
    at, work = urlsplit(url), queue.SimpleQueue[tuple[str, int, int]]()
    offset = 0
    for path, size in zip(paths, sizes, strict=True):
        work.put((path, offset, size))
        offset += size
    began = time.perf_counter()
    memory = memoryview(mmap.mmap(-1, offset))

    def read() -> None:
        connection = HTTPConnection(at.hostname or "", at.port)
        while True:
            try:
                path, place, size = work.get_nowait()
            except queue.Empty:
                connection.close()
                return
            connection.request("GET", path)
            rest, answer = memory[place : place + size], connection.getresponse()
            while rest:
                rest = rest[answer.readinto(rest) :]
            answer.read()

    threads = [threading.Thread(target=read) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


def ours(bucket: Bucket, objects: Any, model: Any, optimizer: Any) -> float:
    """Seconds from nothing to filled tensors."""
    from spotproof.checkpoint.restore import restore
    from spotproof.contract import layout

    began = time.perf_counter()
    fetched = bucket.fetch(objects)
    with mmap.mmap(fetched.image_fd, fetched.part.image.bytes, access=mmap.ACCESS_COPY) as image:
        restore({"model": model, "optimizer": optimizer}, image, layout.decode(fetched.layout), step=STEP)
        seconds = time.perf_counter() - began
    os.close(fetched.image_fd)
    return seconds


def torch_load(objects: Any, model: Any, optimizer: Any) -> float:
    """Download and load, as scripts do."""
    import torch

    began = time.perf_counter()
    state = torch.load(io.BytesIO(objects.read("torch.pt")), weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return time.perf_counter() - began


def start(bucket: Bucket, megabytes: int) -> float:
    """Seconds from starting agent and trainer to the end of the trainer's first step."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        began = time.perf_counter()
        agent = _self("agent", bucket.url, str(bucket.table), str(here.fileno()), fd=here.fileno())
        trainer = _self("trainer", str(megabytes), str(there.fileno()), fd=there.fileno())
        codes = trainer.wait(), agent.wait()
        seconds = time.perf_counter() - began
    if codes != (0, 0):
        raise SystemExit(f"trainer and agent ended with {codes}")
    return seconds


def import_torch() -> float:
    """Seconds of a process that only imports torch."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - began


def _self(*words: str, fd: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, *words], pass_fds=[fd], cwd=ROOT)


def agent_process(url: str, table: str, fd: int) -> int:
    """Reads and hands over."""
    bucket = Bucket(url, Path(table))
    fetched = bucket.fetch(bucket.objects())
    described = json.dumps({"bytes": fetched.part.image.bytes, "layout": len(fetched.layout)}).encode()
    layout_fd = os.memfd_create("layout")
    os.write(layout_fd, fetched.layout)
    with socket.socket(fileno=fd) as sock:
        socket.send_fds(sock, [described], [fetched.image_fd, layout_fd])
    return 0


def trainer_process(megabytes: int, fd: int) -> int:
    """Imports, makes its model, takes the image when it is there, and steps."""
    from spotproof.checkpoint.restore import restore
    from spotproof.contract import layout

    model, optimizer = training(megabytes)
    with socket.socket(fileno=fd) as sock:
        data, fds, _, _ = socket.recv_fds(sock, 4096, 2)
    told = json.loads(data)
    described = layout.decode(os.pread(fds[1], told["layout"], 0))
    with mmap.mmap(fds[0], told["bytes"], access=mmap.ACCESS_COPY) as image:
        restore({"model": model, "optimizer": optimizer}, image, described, step=STEP)
        one_step(model, optimizer)
    return 0


# ------------------------------------------------------------------------------------------------ the run
def measured(bucket: Bucket, paths: Sequence[str], megabytes: int, samples: int) -> dict[str, float]:
    """Medians of ratios to the limits of the same sample."""
    import torch

    objects = bucket.objects()
    fetched = bucket.fetch(objects)
    sizes = [chunk.bytes for chunk in fetched.part.image.chunks]
    os.close(fetched.image_fd)
    found: dict[str, list[float]] = {name: [] for name in ("raw_s", "restore", "torch_load", "start", "import_s")}
    torch.set_num_threads(os.cpu_count() or 1)  # as in a training script; the fakes make it one
    model, optimizer = training(megabytes)
    one_step(model, optimizer)
    contenders: dict[str, Callable[[], float]] = {
        "restore": lambda: ours(bucket, objects, model, optimizer),
        "torch_load": lambda: torch_load(objects, model, optimizer),
    }
    for sample in range(samples + 1):
        raw = min(raw_read(bucket.url, paths, sizes) for _ in range(2))
        seconds = {name: contender() for name, contender in contenders.items()}
        raw = min(raw, raw_read(bucket.url, paths, sizes))
        imported, started = import_torch(), start(bucket, megabytes)
        if sample == 0:
            continue  # warms up: page cache, connections, byte code
        found["raw_s"].append(raw)
        found["import_s"].append(imported)
        found["start"].append(started / (imported + raw))
        for name, took in seconds.items():
            found[name].append(took / raw)
    return {name: round(statistics.median(values), 3) for name, values in found.items()}


def main() -> int:
    """Measure and print; with --check 1 if a bound is broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--small", action="store_true", help=f"{SMALL_MB} MB of state instead of {LARGE_MB}")
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    from benchmarks.checkpointing.sink import Wire, sinking
    from tests.simulation.kill import folder

    megabytes = SMALL_MB if asked.small else LARGE_MB
    result: dict[str, Any] = {"megabytes": megabytes}
    for name, wire in (("unlimited", Wire()), ("312 MB/s", Wire(bytes_s=312e6, latency_s=0.02))):
        with sinking(wire) as url, folder() as where:
            bucket = Bucket(url, where / "table.sqlite")
            result[name] = measured(bucket, filled(bucket, megabytes), megabytes, asked.samples)
        print(name + ": " + ", ".join(f"{key} {value}" for key, value in result[name].items()), flush=True)
    slow = result["312 MB/s"]
    result["holds"] = slow["restore"] <= RESTORE_LIMIT and slow["start"] <= START_LIMIT
    result["holds"] = result["holds"] and result["unlimited"]["restore"] <= RESTORE_LIMIT
    print(json.dumps(result))
    return 1 if asked.check and not result["holds"] else 0


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["agent", url, table, fd]:
            raise SystemExit(agent_process(url, table, int(fd)))
        case ["trainer", megabytes, fd]:
            raise SystemExit(trainer_process(int(megabytes), int(fd)))
        case _:
            raise SystemExit(main())
