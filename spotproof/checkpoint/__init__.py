"""From state_dict to snapshot, local copy, upload, manifest and pointer, and back.

`StorageWriter` and `StorageReader` are for people who call `torch.distributed.checkpoint` themselves. They are loaded
on first use: most of this package works, on purpose, where there is no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spotproof.checkpoint.reader import StorageReader
    from spotproof.checkpoint.writer import StorageWriter

__all__ = ["StorageReader", "StorageWriter"]

_HOMES = {"StorageReader": "spotproof.checkpoint.reader", "StorageWriter": "spotproof.checkpoint.writer"}


def __getattr__(name: str) -> object:
    """Load what needs torch when it is first asked for. Raises AttributeError for any other name."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
