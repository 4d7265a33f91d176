from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotproof.checkpoint.arena import Arena, MemoryLimit, check_memory, create, memory_limits, sealed_memory
from spotproof.contract.arena import HEADER_BYTES
from spotproof.contract.states import ArenaState
from spotproof.errors import ArenaRefused, ProtocolError

GIB = 1024**3


@pytest.fixture
def fd() -> Iterator[int]:
    made = create(1000, name="test")
    yield made
    os.close(made)


def test_two_mappings_see_the_same_header_and_image(fd: int) -> None:
    with Arena(fd) as trainer, Arena(fd) as uploader:
        assert uploader.header.state is ArenaState.FREE
        trainer.move(ArenaState.FILLING, generation=3, step=500)
        with trainer.image() as image:
            image[:5] = b"hello"
        trainer.move(ArenaState.COMPLETE)
        header = uploader.header
        assert (header.state, header.generation, header.step) == (ArenaState.COMPLETE, 3, 500)
        with uploader.image() as image:
            assert len(image) == 1000
            assert bytes(image[:5]) == b"hello"


def test_an_illegal_move_says_that_two_believe_it_theirs(fd: int) -> None:
    with Arena(fd) as arena:
        with pytest.raises(ProtocolError, match="from free to uploading"):
            arena.move(ArenaState.UPLOADING)
        assert arena.header.state is ArenaState.FREE


def test_the_size_of_an_arena_is_fixed(fd: int) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 10)


def test_other_memory_is_no_arena() -> None:
    fd = sealed_memory(HEADER_BYTES + 10, name="other")
    try:
        with pytest.raises(ProtocolError, match="not an arena"):
            Arena(fd)
    finally:
        os.close(fd)


def machine(folder: Path, cgroup_lines: str, *, available_gib: int = 64) -> tuple[Path, Path]:
    proc, cgroup = folder / "proc", folder / "cgroup"
    (proc / "77").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal: {128 * 1024**2} kB\nMemAvailable: {available_gib * 1024**2} kB\n")
    (proc / "77" / "cgroup").write_text(cgroup_lines)
    cgroup.mkdir()
    return proc, cgroup


def group(path: Path, **files: str) -> None:
    path.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (path / name.replace("memory_", "memory.", 1)).write_text(content)


def test_a_v2_limit_of_a_parent_group_counts_and_cache_does_not(tmp_path: Path) -> None:
    proc, cgroup = machine(tmp_path, "0::/system.slice/docker-1.scope\n")
    group(cgroup / "system.slice" / "docker-1.scope", memory_max="max\n", memory_current="1\n")
    group(
        cgroup / "system.slice",
        memory_max=f"{8 * GIB}\n",
        memory_current=f"{6 * GIB}\n",
        memory_stat=f"anon 1\ninactive_file {3 * GIB}\n",
    )
    tightest = min(memory_limits("77", proc=proc, cgroup=cgroup), key=lambda limit: limit.free_bytes)
    assert tightest.name.endswith("system.slice/memory.max")
    assert (tightest.limit_bytes, tightest.free_bytes) == (8 * GIB, 5 * GIB)


def test_inside_a_container_the_root_of_the_view_is_the_own_group(tmp_path: Path) -> None:
    proc, cgroup = machine(tmp_path, "0::/\n")
    group(cgroup, memory_max=f"{2 * GIB}", memory_current=f"{GIB}")
    assert min(limit.free_bytes for limit in memory_limits("77", proc=proc, cgroup=cgroup)) == GIB


def test_a_v1_limit_is_read_and_its_none_is_none(tmp_path: Path) -> None:
    proc, cgroup = machine(tmp_path, "5:cpu,cpuacct:/x\n4:memory:/docker/1\n0::/x\n")
    group(
        cgroup / "memory" / "docker" / "1",
        memory_limit_in_bytes=str(4 * GIB),
        memory_usage_in_bytes=str(GIB),
        memory_stat="total_inactive_file 0\n",
    )
    group(cgroup / "memory", memory_limit_in_bytes="9223372036854771712", memory_usage_in_bytes="5")
    limits = memory_limits("77", proc=proc, cgroup=cgroup)
    assert sorted(limit.free_bytes for limit in limits) == [3 * GIB, 64 * GIB]


def test_the_limits_of_this_very_process_can_be_read() -> None:
    assert all(limit.free_bytes >= 0 for limit in memory_limits())


def test_arenas_that_do_not_fit_are_refused_by_the_limit_and_what_helps() -> None:
    limits = [
        MemoryLimit(name="the machine's memory", limit_bytes=64 * GIB, free_bytes=60 * GIB),
        MemoryLimit(name="/sys/fs/cgroup/memory.max", limit_bytes=8 * GIB, free_bytes=5 * GIB),
    ]
    check_memory(5 * GIB, arenas=1, limits=limits)
    with pytest.raises(ArenaRefused) as refused:
        check_memory(8 * GIB, arenas=2, limits=limits)
    text = str(refused.value)
    assert "/sys/fs/cgroup/memory.max (8.00 GiB) leaves 5.00 GiB" in text
    assert "by 3.00 GiB" in text
    assert "set checkpoint.arenas to 1" in text
