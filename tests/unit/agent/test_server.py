"""The socket: frames and memory go through whole, a peer that does not read holds nobody up, one agent per folder."""

from __future__ import annotations

import os
import selectors
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from spotproof.agent.server import Peer, Server
from spotproof.checkpoint.arena import sealed_memory
from spotproof.checkpoint.channel import Channel, Ended, connect, pair
from spotproof.contract.protocol import Arenas, Committed, Hello, Role, SaveFailed
from spotproof.errors import BadSettings, NoAgent, ProtocolError

HELLO = Hello(role=Role.TRAINER, pid=1)


class Place:
    """A server and the selector of its loop."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.selector = stack.enter_context(selectors.DefaultSelector())
        self.server = stack.enter_context(Server(folder, self.selector))

    def connect(self) -> tuple[Channel, Peer]:
        channel = connect(self.folder)
        peer = self.server.accept()
        assert peer is not None
        return channel, peer


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        yield Place(tmp_path / "run", stack)


def test_a_peer_is_known_by_its_hello_and_by_what_the_kernel_says(place: Place) -> None:
    channel, peer = place.connect()
    channel.send(HELLO)
    [said] = place.server.hear(peer)
    assert said.received is not None
    assert peer.hello == HELLO
    assert peer.pid == os.getpid()
    channel.close()
    [gone] = place.server.hear(peer)
    assert gone.received is None
    assert place.server.peers == []


def test_memory_goes_with_its_frame(place: Place) -> None:
    channel, peer = place.connect()
    fd = sealed_memory(5, name="test")
    os.pwrite(fd, b"hello", 0)
    place.server.send(peer, Arenas(count=1, image_bytes=5), [fd])
    os.close(fd)  # the server's copy goes on its own
    received = channel.receive(timeout_s=5)
    assert received is not None
    mine = received.take()
    assert os.pread(mine, 5, 0) == b"hello"
    os.close(mine)
    with pytest.raises(ProtocolError, match="without the memory"):
        received.take()
    channel.close()


def test_a_peer_that_does_not_read_gets_everything_later_in_order(place: Place) -> None:
    channel, peer = place.connect()
    frames = [SaveFailed(step=step, reason="x" * 4000) for step in range(500)]
    for frame in frames:
        place.server.send(peer, frame)
    assert peer.outbox  # the socket is full, and nobody was held up
    got: list[object] = []
    while len(got) < len(frames):
        got += [received.frame for received in channel.waiting()]
        place.server.flush(peer)
    assert got == frames
    channel.close()


def test_nonsense_ends_that_connection_only(place: Place) -> None:
    good, _ = place.connect()
    bad, peer = place.connect()
    bad.sock.send(b"{not a frame}")
    [said] = place.server.hear(peer)
    assert said.received is None
    assert len(place.server.peers) == 1
    with pytest.raises(Ended):
        bad.receive(timeout_s=5)
    for one in (good, bad):
        one.close()


def test_a_forked_worker_that_outlives_its_trainer_does_not_keep_the_trainer_alive(place: Place) -> None:
    channel, peer = place.connect()
    reading, writing = os.pipe()
    worker = os.fork()
    if worker == 0:  # as a DataLoader's worker: it looks after its parent every five seconds only
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    channel.close()
    place.selector.select(2)
    said = list(place.server.hear(peer))
    os.close(writing)
    os.waitpid(worker, 0)
    assert [one.received for one in said] == [None]


def test_sending_to_one_who_is_gone_does_nothing(place: Place) -> None:
    channel, peer = place.connect()
    channel.close()
    place.server.send(peer, Committed(generation=1, step=1, seconds=0))
    assert not peer.outbox
    place.server.drop(peer)
    place.server.send(peer, Committed(generation=1, step=1, seconds=0))
    assert not peer.outbox


def test_a_folder_has_one_agent_and_a_killed_ones_socket_is_no_obstacle(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "agent.sock").touch()  # left by an agent that was killed
    with ExitStack() as stack:
        Place(folder, stack)
        with pytest.raises(BadSettings, match="in use by another agent"):
            Place(folder, stack)
    with ExitStack() as stack:
        Place(folder, stack)
    assert not (folder / "agent.sock").exists()


def test_a_long_folder_name_is_no_obstacle(tmp_path: Path) -> None:
    folder = tmp_path / ("deep" * 20) / ("deeper" * 10)
    with ExitStack() as stack:
        channel, _ = Place(folder, stack).connect()
        channel.close()


def test_without_an_agent_the_error_says_what_to_start(tmp_path: Path) -> None:
    with pytest.raises(NoAgent, match="spotproof agent"):
        connect(tmp_path)


def test_the_door_can_be_closed_while_those_inside_stay(place: Place) -> None:
    channel, peer = place.connect()
    place.server.close_door()
    with pytest.raises(NoAgent):
        connect(place.folder)
    place.server.send(peer, Committed(generation=1, step=1, seconds=0))
    assert channel.receive(timeout_s=5) is not None
    channel.close()


def test_a_frame_that_does_not_come_is_none_and_an_end_is_told() -> None:
    one, other = pair()
    assert one.receive(timeout_s=0) is None
    other.close()
    with pytest.raises(Ended):
        one.receive(timeout_s=1)
    with pytest.raises(Ended):
        one.send(HELLO)
    one.close()
