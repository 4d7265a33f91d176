"""Where an arena's pages lie, and that a GPU may write to them itself: asked for once, when the arena is mapped.

Pages come into being where they are first touched, and the agent touches none but the header: without a GPU they are
local to the trainer's thread. With one they are asked for on the node that the GPU hangs at, and registered, so that a
copy runs at the link's speed while host and main stream go on. Where the system refuses, copies are slower, not wrong.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

_MBIND: Final = {"x86_64": 237, "aarch64": 235}.get(platform.machine())
_PREFERRED: Final = 1  # another node's page is better than none
_NODES_MAX: Final = 64
_PCI: Final = Path("/sys/bus/pci/devices")


def device_of(tensors: Iterable[Tensor]) -> torch.device | None:
    """The GPU that most of a rank's state comes from: a rank has one. None: it has none."""
    return next((tensor.device for tensor in tensors if tensor.is_cuda), None)


def node_of(device: torch.device, *, pci: Path = _PCI) -> int | None:
    """The NUMA node that a GPU hangs at; None where the system does not say."""
    found: Any = torch.cuda.get_device_properties(device)  # Any: torch's stubs do not know all of it
    if not hasattr(found, "pci_bus_id"):
        return None
    name = f"{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"
    return node_in(pci / name)


def node_in(folder: Path) -> int | None:
    """The node that a PCI device's folder names; -1 there means that the machine has but one."""
    try:
        node = int((folder / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if 0 <= node < _NODES_MAX else None


def prefer(address: int, size: int, node: int) -> bool:
    """Ask for untouched pages of a mapping to come from `node`; whether the kernel took it."""
    if _MBIND is None:
        return False
    library = ctypes.CDLL(None, use_errno=True)
    mask = ctypes.c_ulong(1 << node)
    asked = [ctypes.c_long(_MBIND), ctypes.c_void_p(address), ctypes.c_ulong(size), ctypes.c_int(_PREFERRED)]
    return bool(library.syscall(*asked, ctypes.byref(mask), ctypes.c_ulong(_NODES_MAX + 1), ctypes.c_uint(0)) == 0)


class Registration:
    """Memory that a GPU knows. `end` before it is unmapped."""

    def __init__(self, address: int, size: int, *, cudart: Any = None) -> None:
        """Register; `is_done` says whether CUDA took it (a limit on locked memory may forbid it)."""
        self._address = address
        self._cudart = cudart or torch.cuda.cudart()
        self.is_done = int(self._cudart.cudaHostRegister(address, size, 0)) == 0

    def end(self) -> None:
        """Let the memory go. Nothing may be copying to it."""
        if self.is_done:
            self.is_done = False
            self._cudart.cudaHostUnregister(self._address)


def settle(buffer: Any, device: torch.device | None) -> Registration | None:
    """Make the mapping `buffer` good to copy to from `device`; for host state there is nothing to do."""
    if device is None:
        return None
    whole = torch.frombuffer(buffer, dtype=torch.uint8)
    node = node_of(device)
    if node is not None:
        prefer(whole.data_ptr(), whole.numel(), node)
    with torch.cuda.device(device):
        return Registration(whole.data_ptr(), whole.numel())


def pages_on(address: int, *, numa_maps: Path | None = None) -> str:
    """What the kernel says of the mapping that begins at `address`: its policy and the pages of each node."""
    text = (numa_maps or Path(f"/proc/{os.getpid()}/numa_maps")).read_text()
    begins = f"{address:x} "
    return next((line[len(begins) :] for line in text.splitlines() if line.startswith(begins)), "")
