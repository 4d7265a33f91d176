"""Run a server in this process's own network namespace and relay a socket of the outer one to it.

A listening socket belongs to the namespace in which it was made, so the parent binds it to loopback, hands it down by
descriptor, and this process, already in its own namespace, forwards what it accepts to the server's port. The server
may listen on all interfaces: there is only this namespace's loopback. Ends, and ends the server, when stdin closes.

Usage: python namespaced_relay.py LISTEN_FD PORT COMMAND...
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import struct
import subprocess
import sys

SIOCGIFFLAGS = 0x8913
SIOCSIFFLAGS = 0x8914
IFF_UP = 0x1


def raise_loopback() -> None:
    """A new namespace has a loopback interface that is down; this needs no `ip` command."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(probe, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(probe, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(ConnectionError, OSError, RuntimeError):
        writer.write_eof()


async def serve(listener: socket.socket, port: int) -> None:
    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionError:
            writer.close()
            return
        await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))
        inner_writer.close()
        writer.close()

    server = await asyncio.start_server(forward, sock=listener)
    async with server:
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def main() -> None:
    listen_fd, port, *command = sys.argv[1:]
    raise_loopback()
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as server:
        try:
            asyncio.run(serve(socket.socket(fileno=int(listen_fd)), int(port)))
        finally:
            server.kill()


if __name__ == "__main__":
    main()
