"""Arenas: memory that outlives the trainer, because the agent made it and both have it mapped.

The agent creates one memfd per arena and passes it on; trainer and uploader map the same pages. Size is checked
against every memory limit above the trainer before the run, because the kernel's answer later would be SIGKILL.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from spotproof.contract.arena import HEADER_BYTES, STATE_AT, ArenaHeader, pack, pack_state, unpack
from spotproof.contract.states import ARENA_MOVES, ArenaState
from spotproof.errors import ArenaRefused, ProtocolError

_V1_UNLIMITED_BYTES: Final = 1 << 62  # what an unlimited v1 group says is a page below 2**63
_GIB: Final = 1024**3


class Arena:
    """One mapped arena: the header page and the image behind it. A context manager; closing unmaps, not frees."""

    def __init__(self, fd: int) -> None:
        """Map the arena behind `fd`, which stays the caller's. Raises ProtocolError if it is none."""
        size = os.fstat(fd).st_size
        if size < HEADER_BYTES:
            raise ProtocolError(f"an arena has at least {HEADER_BYTES} bytes, this memory has {size}")
        self._map = mmap.mmap(fd, size)
        header = self.header
        if header.image_bytes != size - HEADER_BYTES:
            raise ProtocolError(f"arena says {header.image_bytes} bytes of image, its memory has {size - HEADER_BYTES}")

    @property
    def header(self) -> ArenaHeader:
        """The header as it stands now."""
        return unpack(self._map[:HEADER_BYTES])

    @property
    def buffer(self) -> mmap.mmap:
        """The whole mapping, for whoever needs a buffer object that keeps it alive."""
        return self._map

    def image(self) -> memoryview:
        """The image. Release it (`with`) before closing the arena."""
        return memoryview(self._map)[HEADER_BYTES:]

    def move(self, to: ArenaState, *, generation: int | None = None, step: int | None = None) -> None:
        """Go to state `to`; generation and step stay as they are unless given. The state word is written last.

        Raises:
            ProtocolError: not a legal move: two processes believe that the arena is theirs.
        """
        now = self.header
        if to not in ARENA_MOVES[now.state]:
            raise ProtocolError(f"an arena does not go from {now.state} to {to} (step {now.step})")
        if generation is not None or step is not None:
            header = ArenaHeader(
                state=now.state,
                generation=now.generation if generation is None else generation,
                step=now.step if step is None else step,
                image_bytes=now.image_bytes,
            )
            page = pack(header)
            self._map[: len(page)] = page
        # The word alone: once it says FREE the rest of the header belongs to another process.
        word = pack_state(to)
        self._map[STATE_AT : STATE_AT + len(word)] = word

    def close(self) -> None:
        """Unmap. Raises BufferError while a view of the image exists."""
        self._map.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def create(image_bytes: int, *, name: str) -> int:
    """A new FREE arena; returns its memfd. Nobody can shrink it, so no reader is ever killed by SIGBUS."""
    fd = sealed_memory(HEADER_BYTES + image_bytes, name=name)
    header = ArenaHeader(state=ArenaState.FREE, generation=0, step=0, image_bytes=image_bytes)
    os.pwrite(fd, pack(header), 0)
    return fd


def sealed_memory(size: int, *, name: str) -> int:
    """A zeroed memfd of exactly `size` bytes whose size is fixed; the caller closes it."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return fd


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """A limit that a process lives under, and what it still leaves."""

    name: str
    limit_bytes: int
    free_bytes: int


def memory_limits(
    pid: str = "self", *, proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")
) -> list[MemoryLimit]:
    """Every limit over process `pid`: its cgroups up to the root (v2 and v1), and the machine's free memory.

    Page cache that the kernel can drop does not count as used. Limits that say "none" are left out.
    """
    found = [_machine(proc)]
    for line in (proc / pid / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            found += _climb(cgroup, path, files=("memory.max", "memory.current", "inactive_file"))
        elif "memory" in controllers.split(","):
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            found += _climb(cgroup / "memory", path, files=files)
    return found


def check_memory(wanted_bytes: int, *, arenas: int, limits: list[MemoryLimit]) -> None:
    """Return if `arenas` arenas of `wanted_bytes` together fit under every limit.

    Raises:
        ArenaRefused: they do not; the message names the limit that is closest and what would help.
    """
    tightest = min(limits, key=lambda limit: limit.free_bytes)
    if wanted_bytes <= tightest.free_bytes:
        return
    short = wanted_bytes - tightest.free_bytes
    help_text = f"raise {tightest.name} by {_gib(short)}"
    if arenas > 1 and wanted_bytes // arenas <= tightest.free_bytes:
        help_text += ", or set checkpoint.arenas to 1"
    raise ArenaRefused(
        f"{arenas} arena(s) of {_gib(wanted_bytes // arenas)} need {_gib(wanted_bytes)}, but {tightest.name} "
        f"({_gib(tightest.limit_bytes)}) leaves {_gib(tightest.free_bytes)}",
        next_step=help_text,
    )


def _machine(proc: Path) -> MemoryLimit:
    values = {}
    for line in (proc / "meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        values[name] = int(rest.split()[0]) * 1024
    return MemoryLimit(name="the machine's memory", limit_bytes=values["MemTotal"], free_bytes=values["MemAvailable"])


def _climb(root: Path, path: str, *, files: tuple[str, str, str]) -> list[MemoryLimit]:
    """Limits of the group at `path` and of every group above it; a path that is not visible here is the root's."""
    group = root / path.strip("/")
    groups = [group, *[parent for parent in group.parents if parent == root or root in parent.parents]]
    limits = [_limit(one, files) for one in groups if (one / files[0]).is_file()]
    return [limit for limit in limits if limit is not None]


def _limit(group: Path, files: tuple[str, str, str]) -> MemoryLimit | None:
    limit_file, usage_file, reclaimable = files
    text = (group / limit_file).read_text().strip()
    if text == "max" or int(text) >= _V1_UNLIMITED_BYTES:
        return None
    used = int((group / usage_file).read_text())
    statistics = group / "memory.stat"
    pairs = [line.split() for line in statistics.read_text().splitlines()] if statistics.is_file() else []
    cache = {name: int(value) for name, value in pairs}.get(reclaimable, 0)
    free = max(0, int(text) - max(0, used - cache))
    return MemoryLimit(name=f"{group / limit_file}", limit_bytes=int(text), free_bytes=free)


def _gib(size: int) -> str:
    return f"{size / _GIB:.2f} GiB"
