"""The data path on each bucket: the real uploader process commits, damage is found, and nothing torn is taken."""

from __future__ import annotations

import dataclasses
import select
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spotproof.checkpoint.arena import Arena
from spotproof.checkpoint.commit import Committer, make_part
from spotproof.checkpoint.fetch import Fetcher
from spotproof.checkpoint.jobs import Begin, Done, GivenUp, Report, Upload
from spotproof.checkpoint.uploads import Uploads
from spotproof.contract import s3keys
from spotproof.contract.items import Generation
from spotproof.contract.layout import image_name
from spotproof.contract.states import ArenaState, SaveKind
from spotproof.store.checkpoints import Checkpoints
from spotproof.store.local import LocalTable
from spotproof.store.members import Memberships
from spotproof.store.objects import Objects
from spotproof.store.pointer import Pointers
from spotproof.store.starts import Stores
from spotproof.store.table import Table
from tests.conformance.conftest import BUCKET, MOTO, SEAWEEDFS, TABLE_NAME
from tests.fakes.checkpoints import bytes_of, content_of, image_of, layout_of, save_of

PATIENCE_S = 60.0
Bucket = tuple[Any, Objects]


def stores_of(objects: Objects, table: Table, run: str) -> Stores:
    stores = Stores(
        objects=objects, checkpoints=Checkpoints(table), pointers=Pointers(table), memberships=Memberships(table)
    )
    stores.memberships.seal(Generation(run=run, generation=1, members=("0:1:i-1",), sealed_at=0), pointer=None)
    return stores


def commit(stores: Stores, run: str, step: int) -> None:
    committer = Committer(
        objects=stores.objects, checkpoints=stores.checkpoints, pointers=stores.pointers, clock=lambda: 1.0
    )
    content = content_of(image_of(step))
    part = make_part(dataclasses.replace(save_of(step), run=run), content, image_name=image_name(0))
    committer.commit(part, content, kind=SaveKind.PERIODIC)


@pytest.fixture
def stores(objects: Objects, tmp_path: Path, run: str) -> Iterator[Stores]:
    with LocalTable(tmp_path / "table.sqlite") as table:
        yield stores_of(objects, table, run)


def test_the_newest_whole_checkpoint_comes_back(stores: Stores, run: str) -> None:
    fetcher = Fetcher(stores=stores, run=run, clock=lambda: 2.0)
    assert fetcher.newest() is None
    commit(stores, run, 9)
    commit(stores, run, 10)
    fetched = fetcher.newest()
    assert fetched is not None
    assert fetched.order == (1, 10)
    assert bytes_of(fetched) == image_of(10)


def test_a_chunk_that_was_overwritten_is_found_and_walked_back_over(stores: Stores, run: str) -> None:
    commit(stores, run, 9)
    commit(stores, run, 10)
    chunk = make_part(save_of(10), content_of(image_of(10)), image_name=image_name(0)).image.chunks[1]
    stores.objects.put(s3keys.blob(run, chunk.digest), b"x" * chunk.bytes, digest=chunk.digest)
    fetched = Fetcher(stores=stores, run=run, clock=lambda: 2.0).newest()
    assert fetched is not None
    assert fetched.order == (1, 9)
    assert bytes_of(fetched) == image_of(9)
    assert chunk.digest[:16] in fetched.skipped[0]


@pytest.fixture(params=[MOTO, SEAWEEDFS])
def emulated(
    request: pytest.FixtureRequest, emulated_bucket: Callable[[str], Bucket], emulated_table: Callable[[str], Table]
) -> Iterator[tuple[Objects, Table]]:
    """A bucket and a table that a child process finds by its environment."""
    client, objects = emulated_bucket(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL_S3", client.meta.endpoint_url)
        patch.setenv("AWS_ENDPOINT_URL_DYNAMODB", request.getfixturevalue("moto_url"))
        yield objects, emulated_table(MOTO)


@pytest.mark.emulator
def test_the_uploader_process_finds_its_stores_and_commits(
    emulated: tuple[Objects, Table], run: str, tmp_path: Path
) -> None:
    stores = stores_of(*emulated, run)
    begin = Begin(
        run=run,
        scratch_dir=str(tmp_path / "scratch"),
        bucket=BUCKET,
        table=TABLE_NAME,
        region="us-east-1",
        chunk_bytes=1000,
    )
    image = image_of(7)
    with Uploads(begin) as uploads:
        [fd] = uploads.make_arenas(count=1, image_bytes=len(image), layout=layout_of(image), metadata=b"m")
        with Arena(fd) as arena:
            arena.move(ArenaState.FILLING, generation=1, step=7)
            with arena.image() as view:
                view[:] = image
            arena.move(ArenaState.COMPLETE)
            uploads.submit(Upload(rank=0, arena=0, generation=1, step=7, kind=SaveKind.PERIODIC))
            report = last_report(uploads)
    assert isinstance(report, Done), report
    assert report.is_pointed
    fetched = Fetcher(stores=stores, run=run, clock=lambda: 2.0).newest()
    assert fetched is not None
    assert bytes_of(fetched) == image


def last_report(uploads: Uploads) -> Report:
    while True:
        ready, _, _ = select.select([uploads], [], [], PATIENCE_S)
        assert ready, "the uploader says nothing"
        for report in uploads.reports():
            if isinstance(report, Done | GivenUp):
                return report
