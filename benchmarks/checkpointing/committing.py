"""A whole save: from the loop's call until it is durable. Ours with the product's uploader process, and the rivals'."""

from __future__ import annotations

import os
import select
import shutil
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import boto3
import torch
from botocore.config import Config
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver

from benchmarks.checkpointing import rivals
from benchmarks.checkpointing.rivals import Absent, Trained
from benchmarks.checkpointing.uploader import spawn
from spotproof.checkpoint.arena import Arena
from spotproof.checkpoint.dcp import ImagePlan, payload_views
from spotproof.checkpoint.jobs import Begin, Done, GivenUp, Staged, Upload
from spotproof.checkpoint.overlap import Copy
from spotproof.checkpoint.snapshot import Snapshotter
from spotproof.checkpoint.state import capture
from spotproof.checkpoint.uploads import Uploads
from spotproof.contract import layout, s3keys
from spotproof.contract.items import Generation
from spotproof.contract.manifest import decode_manifest
from spotproof.contract.states import ArenaState, SaveKind
from spotproof.store.digest import digest_of
from spotproof.store.local import LocalTable
from spotproof.store.members import Memberships

RUN = "bench"
BUCKET = "bench"
CHUNK_BYTES = 8 * 1024**2


class Committed(Protocol):
    """A way to make the state durable."""

    def commit(self) -> None:
        """Save, and return when it is durable."""

    def differing(self) -> list[str]:
        """Read it back: names of tensors that are not, bit by bit, the live ones."""


@dataclass(slots=True, kw_only=True)
class Ours:
    """Snapshotter here, uploader in its process, the bucket at `url`."""

    loop: Trained
    url: str
    uploads: Uploads
    snapshotter: Snapshotter
    fds: list[int] = field(default_factory=list)
    plans: list[ImagePlan] = field(default_factory=list)
    step: int = 0
    done: Done | None = None
    arena: int = 0

    def commit(self) -> None:
        """See `Committed`. The arena is free again when this returns, unless its local copy takes longer."""
        self._take()
        self.uploads.submit(self._job(self.arena, self.step))
        self._await(self.step)

    def commit_all_arenas(self) -> None:
        """Fill every arena before the first one is uploaded: as much memory as there can be."""
        taken = [self._take() for _ in self.fds]
        for arena, step in taken:
            self.uploads.submit(self._job(arena, step))
        self._await(self.step)

    def settle(self) -> None:
        """Until every arena is free."""
        while not all(self._is_free(index) for index in range(len(self.fds))):
            self._hear(0.05)

    def differing(self) -> list[str]:
        """See `Committed`."""
        key = s3keys.manifest(RUN, 1, self.step)
        manifest = decode_manifest(_get(self.url, key))
        image = bytearray()
        for chunk in manifest.parts[0].image.chunks:
            data = _get(self.url, s3keys.blob(RUN, chunk.digest))
            assert digest_of(data) == chunk.digest, chunk
            image += data
        stored = payload_views(self.plans[-1].layout, image)
        live = capture(self.loop.objects, counters={}).tensors
        return [key for key, value in live.items() if not key.startswith("rng.") and not same_bits(stored[key], value)]

    def _take(self) -> tuple[int, int]:
        """Copy the state into a free arena, waiting for one; (arena, step)."""
        self.step += 1
        while (copy := self._begun()) is None:
            self._hear(0.05)
        assert self.snapshotter.finish(copy), copy.changed
        self.arena = copy.arena
        return copy.arena, self.step

    def _begun(self) -> Copy | None:
        return self.snapshotter.begin(step=self.step, generation=1, counters={}, then=lambda _: None)

    def _job(self, arena: int, step: int) -> Upload:
        return Upload(rank=0, arena=arena, generation=1, step=step, kind=SaveKind.PERIODIC)

    def _await(self, step: int) -> None:
        while self.done is None or self.done.step < step:
            self._hear(5.0)

    def _is_free(self, index: int) -> bool:
        with Arena(self.fds[index]) as arena:
            return arena.header.state is ArenaState.FREE

    def _hear(self, timeout_s: float) -> None:
        select.select([self.uploads.fileno()], [], [], timeout_s)
        for report in self.uploads.reports():
            match report:
                case GivenUp():
                    raise RuntimeError(report.reason)
                case Done():
                    assert report.is_committed
                    self.done = report
                case Staged(problem=problem) if problem:
                    raise RuntimeError(problem)
                case _:
                    pass


@contextmanager
def ours(loop: Trained, url: str, folder: Path) -> Iterator[Ours]:
    """With two arenas."""
    folder.mkdir(parents=True, exist_ok=True)
    begin = Begin(
        run=RUN, scratch_dir=str(folder), bucket=BUCKET, table_file=str(folder / "table"), chunk_bytes=CHUNK_BYTES
    )
    fds: list[int] = []
    plans: list[ImagePlan] = []
    generation = Generation(run=RUN, generation=1, members=("0:1:i-bench",), sealed_at=0)
    Memberships(LocalTable(folder / "table")).seal(generation, pointer=None)
    with credentials(url), Uploads(begin, spawn=spawn) as uploads:

        def provide(plan: ImagePlan) -> Sequence[int]:
            plans.append(plan)
            fds[:] = uploads.make_arenas(
                count=2,
                image_bytes=plan.layout.image_bytes,
                layout=layout.encode(plan.layout),
                metadata=plan.metadata,
            )
            return [os.dup(fd) for fd in fds]

        with Snapshotter(loop.objects, provide=provide) as snapshotter:
            made = Ours(loop=loop, url=url, uploads=uploads, snapshotter=snapshotter, fds=fds, plans=plans)
            yield made
            made.settle()


@dataclass(slots=True, kw_only=True)
class Rival:
    """A save to memory by one of the rivals, then boto3 for what it wrote."""

    loop: Trained
    save: rivals.Save
    folder: Path
    url: str
    load: Callable[[Path, Mapping[str, Any]], Mapping[str, Any]] | None

    def commit(self) -> None:
        """See `Committed`."""
        for old in self.folder.iterdir():
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        self.save()()
        client = _client(self.url)
        for file in self._files():
            client.upload_file(str(file), BUCKET, f"rival/{file.relative_to(self.folder)}")

    def differing(self) -> list[str]:
        """See `Committed`; `?` where the rival's files are its own affair."""
        if self.load is None:
            return []
        client, back = _client(self.url), self.folder / "back"
        for file in self._files():
            target = back / file.relative_to(self.folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            client.download_file(BUCKET, f"rival/{file.relative_to(self.folder)}", str(target))
        live = flat(self.loop.state())
        found = flat(self.load(back, self.loop.state()))
        return [key for key, value in live.items() if not same_bits(found[key], value)]

    def _files(self) -> list[Path]:
        return [path for path in sorted(self.folder.rglob("*")) if path.is_file() and "back" not in path.parts]


def _load_torch(folder: Path, _: Mapping[str, Any]) -> Mapping[str, Any]:
    loaded: Mapping[str, Any] = torch.load(next(folder.glob("*.pt")), weights_only=True)
    return loaded


def _load_dcp(folder: Path, live: Mapping[str, Any]) -> Mapping[str, Any]:
    state: dict[str, Any] = _emptied(live)
    state_dict_loader.load(state, checkpoint_id=next(folder.iterdir()), no_dist=True)
    return state


RIVALS: dict[str, tuple[Callable[[Trained, Path], Any], Any]] = {
    "torch.save + boto3": (rivals.torch_save, _load_torch),
    "dcp.save + boto3": (rivals.dcp_save, _load_dcp),
    "dcp.async_save, thread + boto3": (rivals.dcp_async, _load_dcp),
    "dcp.async_save, kept stager + boto3": (rivals.dcp_async_stager, _load_dcp),
    "torch_checkpointing + boto3": (rivals.torch_checkpointing, None),
    "dcp.async_save, process + boto3": (rivals.dcp_async_process, _load_dcp),
}


@contextmanager
def rival(name: str, loop: Trained, url: str, folder: Path) -> Iterator[Rival]:
    """One of RIVALS. Raises Absent where it is not installed."""
    make, load = RIVALS[name]
    folder.mkdir(parents=True, exist_ok=True)
    with credentials(url), make(loop, folder) as save:
        yield Rival(loop=loop, save=save, folder=folder, url=url, load=load)


@dataclass(slots=True, kw_only=True)
class Connector:
    """s3torchconnector's DCP writer, straight to the bucket."""

    loop: Trained
    is_async: bool
    writer: Callable[[], Any]
    reader: Callable[[], Any]

    def commit(self) -> None:
        """See `Committed`."""
        if self.is_async:
            future: Any = state_dict_saver.async_save(self.loop.state(), storage_writer=self.writer(), no_dist=True)
            future.result()
        else:
            state_dict_saver.save(self.loop.state(), storage_writer=self.writer(), no_dist=True)

    def differing(self) -> list[str]:
        """See `Committed`."""
        state = _emptied(self.loop.state())
        state_dict_loader.load(state, storage_reader=self.reader(), no_dist=True)
        live, found = flat(self.loop.state()), flat(state)
        return [key for key, value in live.items() if not same_bits(found[key], value)]


CONNECTORS = {"s3torchconnector": False, "s3torchconnector, async": True}


@contextmanager
def connector(name: str, loop: Trained, url: str, _: Path) -> Iterator[Connector]:
    """Raises Absent where it is not installed."""
    try:
        import s3torchconnector.dcp as library  # type: ignore[import-not-found,unused-ignore]
        from s3torchconnector import S3ClientConfig  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise Absent(f"not installed here ({error}); pip install 's3torchconnector[dcp]' brings it") from error
    place: dict[str, Any] = {
        "region": "us-east-1",
        "path": f"s3://{BUCKET}/connector/",
        "s3client_config": S3ClientConfig(force_path_style=True),
    }
    with credentials(url):
        yield Connector(
            loop=loop,
            is_async=CONNECTORS[name],
            writer=lambda: library.S3StorageWriter(**place, overwrite=True),
            reader=lambda: library.S3StorageReader(**place),
        )


@contextmanager
def credentials(url: str) -> Iterator[None]:
    """The environment of whoever speaks to the sink."""
    values = {
        "AWS_ENDPOINT_URL": url,
        "AWS_ENDPOINT_URL_S3": url,
        "AWS_ACCESS_KEY_ID": "bench",
        "AWS_SECRET_ACCESS_KEY": "bench",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def timed(act: Callable[[], None]) -> tuple[float, float]:
    """(seconds, CPU seconds of this process)."""
    begun, used = time.perf_counter(), time.process_time()
    act()
    return time.perf_counter() - begun, time.process_time() - used


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Same shape, dtype and bytes."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    mine, theirs = (value.detach().contiguous().reshape(-1).view(torch.uint8) for value in (one, other))
    return bool(torch.equal(mine, theirs))


def flat(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """Every tensor of a state by its path."""
    found: dict[str, Tensor] = {}
    waiting: list[tuple[str, Any]] = [("", state)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, Tensor):
            found[path] = value
        elif isinstance(value, Mapping):
            waiting += [(f"{path}.{key}", item) for key, item in value.items()]
    return found


def forget_all(url: str) -> None:
    """Empty the sink: two cores' memory is not for old objects."""
    urllib.request.urlopen(urllib.request.Request(f"{url}/", method="DELETE"), timeout=60).close()  # noqa: S310


def _emptied(state: Any) -> Any:  # Any: a tree of dicts
    if isinstance(state, Tensor):
        return torch.zeros_like(state)
    if isinstance(state, Mapping):
        return {key: _emptied(value) for key, value in state.items()}
    return state


def _get(url: str, key: str) -> bytes:
    with urllib.request.urlopen(f"{url}/{BUCKET}/{key}", timeout=60) as answer:  # noqa: S310
        data: bytes = answer.read()
        return data


def _client(url: str) -> Any:
    config = Config(
        s3={"addressing_style": "path"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    return boto3.client("s3", endpoint_url=url, config=config)
