"""Part, manifest and layout: the same checkpoint has the same bytes; what is not whole is refused, by name."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from spotproof.contract import arena, layout, manifest
from spotproof.contract.arena import ArenaHeader
from spotproof.contract.layout import Layout, TensorEntry
from spotproof.contract.manifest import Chunk, File, Manifest, Part, Pointer, Receipt
from spotproof.contract.states import ARENA_MOVES, ArenaState
from spotproof.errors import BadManifest, ProtocolError

ONE, TWO, THREE, FOUR = (f"{number:02x}" * 32 for number in (1, 2, 3, 4))


def part(rank: int = 0, world: int = 1) -> Part:
    return Part(
        run="night",
        generation=2,
        step=40,
        rank=rank,
        world=world,
        image=File(name=f"__{rank}_0.distcp", chunks=(Chunk(digest=ONE, bytes=8), Chunk(digest=TWO, bytes=3))),
        layout=File(name=f"layout-{rank}.json", chunks=(Chunk(digest=THREE, bytes=5),)),
        metadata=File(name=".metadata", chunks=(Chunk(digest=FOUR, bytes=7),)) if rank == 0 else None,
        receipt=Receipt(rank=rank, step=40, samples=320, sample_chain="c0ffee", state_digest=ONE),
    )


def whole(world: int = 2) -> Manifest:
    parts = tuple(part(rank, world) for rank in range(world))
    return Manifest(run="night", generation=2, step=40, world=world, parts=parts)


def test_a_part_reads_back_equal() -> None:
    assert manifest.decode_part(manifest.encode(part())) == part()
    assert manifest.decode_part(manifest.encode(part(1, 2))).metadata is None


def test_a_manifest_reads_back_equal() -> None:
    assert manifest.decode_manifest(manifest.encode(whole())) == whole()


def test_two_writers_of_one_checkpoint_write_the_same_bytes() -> None:
    assert manifest.encode(whole()) == manifest.encode(manifest.decode_manifest(manifest.encode(whole())))
    assert b" " not in manifest.encode(whole())
    names = list(json.loads(manifest.encode(whole())))
    assert names == sorted(names)


def test_another_checkpoint_has_other_bytes() -> None:
    other = dataclasses.replace(part(), receipt=dataclasses.replace(part().receipt, samples=321))
    assert manifest.encode(other) != manifest.encode(part())


def test_sizes_and_chunks_are_added_up() -> None:
    assert part().image.bytes == 11
    assert whole().bytes == 22
    assert whole().order == (2, 40)
    assert Pointer(generation=2, step=40, manifest_key="k", manifest_digest=ONE).order == (2, 40)


def test_a_chunk_that_two_files_share_is_named_once_in_file_order() -> None:
    assert [chunk.digest for chunk in whole().chunks()] == [ONE, TWO, THREE, FOUR]


def changed(change: Callable[[dict[str, Any]], None]) -> bytes:
    body = json.loads(manifest.encode(whole()))
    change(body)
    return json.dumps(body).encode()


def setter(*path: Any, to: object) -> Callable[[dict[str, Any]], None]:
    def change(body: Any) -> None:
        for step in path[:-1]:
            body = body[step]
        body[path[-1]] = to

    return change


def remover(*path: Any) -> Callable[[dict[str, Any]], None]:
    def change(body: Any) -> None:
        for step in path[:-1]:
            body = body[step]
        del body[path[-1]]

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (setter("format", to=2), "format"),
        (remover("format"), "format"),
        (remover("run"), "run"),
        (remover("parts"), "parts"),
        (setter("parts", to="ab"), "part"),
        (setter("parts", to=None), "manifest"),
        (setter("parts", 0, to=None), "part"),
        (setter("step", to=-1), "-1"),
        (setter("step", to=True), "True"),
        (setter("step", to=40.0), "40.0"),
        (setter("step", to="40"), "40"),
        (setter("step", to=41), "another checkpoint"),
        (setter("generation", to=3), "another checkpoint"),
        (setter("run", to="day"), "another checkpoint"),
        (setter("parts", 1, "world", to=3), "another checkpoint"),
        (setter("world", to=1), "ranks"),
        (setter("world", to=3), "ranks"),
        (setter("parts", 1, "rank", to=0), "ranks"),
        (setter("parts", to=[]), "ranks"),
        (setter("parts", 0, "image", "chunks", 0, "digest", to=ONE.upper().replace("0", "A")), "digest"),
        (setter("parts", 0, "image", "chunks", 0, "digest", to="../../etc/passwd"), "digest"),
        (setter("parts", 0, "image", "chunks", 0, "digest", to=7), "digest"),
        (setter("parts", 0, "image", "chunks", 0, "bytes", to=-8), "-8"),
        (remover("parts", 0, "image", "chunks", 0, "bytes"), "bytes"),
        (remover("parts", 0, "layout"), "layout"),
        (remover("parts", 0, "metadata"), "metadata"),
        (remover("parts", 0, "receipt", "samples"), "samples"),
        (setter("parts", 0, "receipt", to=None), "part"),
        (setter("parts", 0, "image", "name", to="../evil"), "name of a file"),
        (setter("parts", 0, "image", "name", to="/evil"), "name of a file"),
        (setter("parts", 0, "image", "name", to=".."), "name of a file"),
        (setter("parts", 0, "image", "name", to=""), "name of a file"),
        (setter("parts", 0, "image", "name", to=None), "name of a file"),
    ],
)
def test_a_manifest_that_is_not_whole_is_refused_by_name(change: Callable[[dict[str, Any]], None], says: str) -> None:
    with pytest.raises(BadManifest, match=says):
        manifest.decode_manifest(changed(change))


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"7", manifest.encode(whole())[:-1]])
def test_what_is_not_json_is_no_manifest_and_no_part(data: bytes) -> None:
    for decode in (manifest.decode_manifest, manifest.decode_part):
        with pytest.raises(BadManifest):
            decode(data)


def test_a_field_that_the_next_version_adds_is_no_fault() -> None:
    assert manifest.decode_manifest(changed(setter("made_by", to="0.2"))) == whole()


# --- layout -----------------------------------------------------------------------------------------------------------
LAYOUT = Layout(
    image_bytes=1000,
    tensors=(
        TensorEntry(key="model.w", dtype="float32", shape=(2, 3), offset=64, bytes=24),
        TensorEntry(key="model.scalar", dtype="int64", shape=(), offset=128, bytes=8),
        TensorEntry(key="model.empty", dtype="float32", shape=(0,), offset=200, bytes=0),
    ),
    aliases=(("model.tied", "model.w"),),
)


def test_a_layout_reads_back_equal_and_has_one_form() -> None:
    assert layout.decode(layout.encode(LAYOUT)) == LAYOUT
    assert layout.encode(layout.decode(layout.encode(LAYOUT))) == layout.encode(LAYOUT)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (setter("format", to=2), "format 2"),
        (remover("tensors"), "tensors"),
        (remover("aliases"), "aliases"),
        (setter("tensors", 0, "offset", to=990), "leaves the image"),
        (setter("tensors", 0, "offset", to=-8), "leaves the image"),
        (setter("tensors", 0, "bytes", to=-1), "leaves the image"),
        (setter("image_bytes", to=100), "leaves the image"),
        (setter("tensors", 0, "shape", to=None), "parse"),
        (setter("tensors", 0, "offset", to="x"), "parse"),
        (setter("tensors", to=7), "parse"),
    ],
)
def test_a_layout_that_would_read_outside_the_image_is_refused(
    change: Callable[[dict[str, Any]], None], says: str
) -> None:
    body = json.loads(layout.encode(LAYOUT))
    change(body)
    with pytest.raises(BadManifest, match=says):
        layout.decode(json.dumps(body).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"{}", b"\xff", b"7"])
def test_what_is_no_layout_is_refused(data: bytes) -> None:
    with pytest.raises(BadManifest):
        layout.decode(data)


# --- arena ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("state", ArenaState)
def test_an_arenas_header_reads_back_equal(state: ArenaState) -> None:
    header = ArenaHeader(state=state, generation=2**40, step=2**50, image_bytes=2**45)
    page = arena.pack(header).ljust(arena.HEADER_BYTES, b"\0")
    assert len(arena.pack(header)) <= arena.HEADER_BYTES
    assert arena.unpack(page) == header
    assert arena.unpack(memoryview(page)) == header


@pytest.mark.parametrize(
    "page",
    [
        bytes(arena.HEADER_BYTES),
        b"SPARENA2" + bytes(arena.HEADER_BYTES - 8),
        arena.MAGIC + (2).to_bytes(4, "little") + bytes(arena.HEADER_BYTES - 12),
        arena.MAGIC + (1).to_bytes(4, "little") + (9).to_bytes(4, "little") + bytes(arena.HEADER_BYTES - 16),
    ],
    ids=["empty", "other magic", "other version", "unknown state"],
)
def test_other_memory_is_no_arena(page: bytes) -> None:
    with pytest.raises(ProtocolError):
        arena.unpack(page)


def test_an_arena_goes_round_and_never_back() -> None:
    assert set(ARENA_MOVES) == set(ArenaState)
    assert ArenaState.COMPLETE not in ARENA_MOVES[ArenaState.FREE], "complete without filling"
    assert ArenaState.FILLING not in ARENA_MOVES[ArenaState.UPLOADING], "filled while it is being read"
    assert ArenaState.FILLING not in ARENA_MOVES[ArenaState.COMPLETE], "filled before somebody let it go"
