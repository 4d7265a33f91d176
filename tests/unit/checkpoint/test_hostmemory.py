from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest
import torch

from spotproof.checkpoint import hostmemory
from spotproof.checkpoint.arena import Arena, create
from spotproof.checkpoint.hostmemory import Registration, device_of, node_in, pages_on, prefer

pytestmark = pytest.mark.torch
MIB = 1024**2


class Cuda:
    """Stands for CUDA's runtime: answers `code`."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.calls: list[tuple[str, int]] = []

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        assert flags == 0
        self.calls.append(("register", size))
        return self.code

    def cudaHostUnregister(self, address: int) -> int:
        self.calls.append(("unregister", 0))
        return 0


def test_memory_is_registered_once_and_let_go_of_once() -> None:
    cuda = Cuda()
    registration = Registration(4096, MIB, cudart=cuda)
    registration.end()
    registration.end()
    assert cuda.calls == [("register", MIB), ("unregister", 0)]


def test_memory_that_cuda_refuses_is_used_as_it_is() -> None:
    cuda = Cuda(code=2)
    registration = Registration(4096, MIB, cudart=cuda)
    assert not registration.is_done
    registration.end()
    assert cuda.calls == [("register", MIB)]


@pytest.mark.parametrize(("text", "node"), [("1\n", 1), ("0\n", 0), ("-1\n", None), ("?\n", None)])
def test_the_node_of_a_device_is_what_the_system_says(text: str, node: int | None, tmp_path: Path) -> None:
    (tmp_path / "numa_node").write_text(text)
    assert node_in(tmp_path) == node


def test_a_device_of_which_nothing_is_said_has_no_node(tmp_path: Path) -> None:
    assert node_in(tmp_path) is None


def test_host_state_needs_nothing() -> None:
    assert device_of([torch.zeros(1)]) is None
    with mmap.mmap(-1, MIB) as memory:
        assert hostmemory.settle(memory, None) is None


def test_an_arenas_pages_are_asked_for_where_they_are_wanted() -> None:
    fd = create(4 * MIB, name="test")
    try:
        with Arena(fd) as arena:
            address = torch.frombuffer(arena.buffer, dtype=torch.uint8).data_ptr()
            taken = prefer(address, 4 * MIB, 0)
            if not taken:
                pytest.skip("this kernel or container does not let memory policies be set")
            assert "prefer" in pages_on(address)
    finally:
        os.close(fd)


def test_a_node_that_is_not_there_is_refused_not_raised() -> None:
    with mmap.mmap(-1, MIB) as memory:
        address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
        assert not prefer(address, MIB, 63)
