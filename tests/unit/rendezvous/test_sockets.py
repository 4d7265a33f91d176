"""Connections are ended from outside of their owner; listeners and what came later are left alone."""

from __future__ import annotations

import os
import socket

from spotproof.rendezvous.sockets import open_sockets, shut_down


def test_connections_end_on_both_sides_and_listeners_stay() -> None:
    before = open_sockets()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
        other, _ = server.accept()
        with other:
            ours = open_sockets() - before
            assert {number for number, _ in ours} == {server.fileno(), one.fileno(), other.fileno()}
            shut_down(ours)
            assert one.recv(1) == other.recv(1) == b""
            with socket.create_connection(server.getsockname()) as again:
                server.accept()[0].close()
                assert again.recv(1) == b""


def test_a_number_that_is_used_anew_is_somebody_elses() -> None:
    before = open_sockets()
    one, other = socket.socketpair()
    ours = open_sockets() - before
    number = one.fileno()
    one.close()
    other.close()
    first, second = socket.socketpair()
    assert number in (first.fileno(), second.fileno())
    shut_down(ours)
    first.sendall(b"x")
    assert second.recv(1) == b"x"
    assert number in map(int, os.listdir("/proc/self/fd"))
    first.close()
    second.close()
