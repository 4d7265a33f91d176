"""Frames between agent and trainer: each arrives as it was sent; what does not fit is refused whole."""

from __future__ import annotations

import dataclasses
import json
import re
import typing
from enum import StrEnum
from typing import Any

import pytest

from spotproof.contract import protocol
from spotproof.contract.protocol import Frame, Go, Hello, Notice, Progress, Restored, Role, Saved, decode, encode
from spotproof.contract.states import NoticeKind, SaveKind
from spotproof.errors import ProtocolError

FRAMES: tuple[type[Any], ...] = typing.get_args(Frame)


def content(hint: Any) -> Any:
    choices = [choice for choice in typing.get_args(hint) if choice is not type(None)]
    if typing.get_origin(hint) is tuple:
        return ("python", "a b", "", "é\n\"'")
    if choices:
        return content(choices[0])
    if issubclass(hint, StrEnum):
        return list(hint)[-1]
    return {int: 2**40, float: 0.1, str: "é\n\"'", bool: False}[hint]


def full(kind: type[Any]) -> Any:
    hints = typing.get_type_hints(kind)
    return kind(**{field.name: content(hints[field.name]) for field in dataclasses.fields(kind)})


def raw(frame: Any, **changes: object) -> bytes:
    return json.dumps({**json.loads(encode(frame)), **changes}).encode()


@pytest.mark.parametrize("kind", FRAMES)
def test_a_frame_arrives_as_it_was_sent(kind: type[Any]) -> None:
    assert decode(encode(full(kind))) == full(kind)


def test_none_arrives_as_none() -> None:
    assert decode(encode(Progress(step=3))) == Progress(step=3, loss=None)


def test_a_loss_arrives_to_the_last_bit() -> None:
    loss = float.fromhex("0x1.3d711e0000001p+2")
    assert decode(encode(Progress(step=3, loss=loss))) == Progress(step=3, loss=loss)


def test_every_frame_is_named_in_the_order_of_calls() -> None:
    said = protocol.__doc__ or ""
    unnamed = [kind.__name__ for kind in FRAMES if not re.search(rf"\b{kind.__name__}\b", said)]
    assert not unnamed, "say in the docstring who sends it and when"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"Hello"',
        b"\xff",
        b"{}",
        b'{"frame": "Farewell"}',
        b'{"frame": ["Hello"]}',
        b'{"frame": "Hello"}',
        b'{"frame": "Hello", "pid": 1}',
        b'{"frame": "Exited", "code": 1, "signal": 9}',
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="not a message of protocol 1"):
        decode(data)


@pytest.mark.parametrize(
    ("frame", "changes"),
    [
        (full(Hello), {"pid": "7"}),
        (full(Hello), {"pid": True}),
        (full(Hello), {"pid": None}),
        (full(Hello), {"pid": 7.0}),
        (full(Hello), {"role": "spy"}),
        (full(Hello), {"role": None}),
        (full(Notice), {"leave": 1}),
        (full(Notice), {"leave": "false"}),
        (full(Notice), {"deadline_at": "soon"}),
        (full(Notice), {"kind": "alien-invasion"}),
        (full(Go), {"command": "python train.py"}),
        (full(Go), {"command": ["python", 7]}),
        (full(Restored), {"skipped": None}),
        (full(Saved), {"kind": ["flush"]}),
        (full(Progress), {"loss": "1.0"}),
    ],
)
def test_a_field_that_does_not_fit_is_refused(frame: Any, changes: dict[str, object]) -> None:
    with pytest.raises(ProtocolError):
        decode(raw(frame, **changes))


def test_a_whole_number_is_a_time_too() -> None:
    notice = decode(raw(full(Notice), deadline_at=1_800_000_000))
    assert isinstance(notice, Notice)
    assert notice.deadline_at == 1_800_000_000.0


def test_a_frame_that_no_datagram_holds_is_not_sent() -> None:
    with pytest.raises(ProtocolError, match=r"Go is \d+ bytes long"):
        encode(Go(command=("x" * protocol.MAX_MESSAGE_BYTES,)))


def test_a_refusal_quotes_only_the_beginning() -> None:
    with pytest.raises(ProtocolError) as caught:
        decode(b"x" * 100_000)
    assert len(str(caught.value)) < 1_000


def test_kinds_of_saves_and_notices_travel_as_their_words() -> None:
    sent = json.loads(encode(Saved(arena=0, step=1, kind=SaveKind.FLUSH, samples=8, sample_chain="")))
    assert sent["kind"] == "flush"
    notice = Notice(order="a", kind=NoticeKind.INTERRUPTION, deadline_at=1.0, leave=True)
    assert json.loads(encode(notice))["kind"] == "interruption"
    assert json.loads(encode(Hello(role=Role.LAUNCHER, pid=1)))["role"] == "launcher"
