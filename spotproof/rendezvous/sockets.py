"""This process's sockets by number and inode, and a way to end connections whose owner cannot be asked to.

gloo has no abort: a member that waits for one that will never send waits for the group's time-out, and a group that is
destroyed can hang (pytorch 56297). Shutting its connections down makes every call in it fail at once, here and there.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress

__all__ = ["Socket", "open_sockets", "shut_down"]

Socket = tuple[int, str]
"""(descriptor, `socket:[inode]`): a number that is used anew has another inode."""

_DESCRIPTORS = "/proc/self/fd"


def open_sockets() -> frozenset[Socket]:
    """The sockets that are open now."""
    found = []
    for name in os.listdir(_DESCRIPTORS):
        with suppress(OSError):  # closed meanwhile
            target = os.readlink(f"{_DESCRIPTORS}/{name}")
            if target.startswith("socket:"):
                found.append((int(name), target))
    return frozenset(found)


def shut_down(sockets: frozenset[Socket]) -> None:
    """End these connections; the descriptors stay their owner's to close. Listening ones are left alone: gloo ends the
    process when its listener fails."""
    for descriptor, inode in sockets & open_sockets():
        with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
            is_same = os.readlink(f"{_DESCRIPTORS}/{connection.fileno()}") == inode
            if is_same and not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                connection.shutdown(socket.SHUT_RDWR)
