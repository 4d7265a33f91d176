"""blake3 of a piece of memory, in hex: the one digest of chunks, manifests and samples."""

from __future__ import annotations

__all__ = ["digest_of"]


def digest_of(data: bytes | bytearray | memoryview) -> str:
    """Return the blake3 digest as 64 hex digits. Releases the GIL; one core does about 1 GB/s and more."""
    try:
        from blake3 import blake3
    except ModuleNotFoundError:  # in a Lambda, whose package is pure Python; there it is a manifest of some KB
        from spotproof.store.blake3_pure import blake3_hex

        return blake3_hex(bytes(data))
    return blake3(data).hexdigest()
