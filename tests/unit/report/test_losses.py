"""Loss logs: exact numbers, torn ends, and a comparison that sees a single bit."""

from __future__ import annotations

import math

import pytest

from spotproof.errors import ContractError
from spotproof.report.losses import by_process, compare, joined, read_log
from spotproof.report.model import Point, Segment


def segment(incarnation: int, *points: Point) -> Segment:
    return Segment(slot=0, incarnation=incarnation, points=points)


def point(step: int, loss: float = 1.0, samples: tuple[int, ...] = ()) -> Point:
    return Point(step=step, loss=loss, samples=samples)


def test_a_log_is_read_to_the_last_bit() -> None:
    lines = ['{"step": 3, "loss": "0x1.3d711e0000000p+2", "samples": [5, 7], "at": 12.5, "pid": 9}\n']
    assert read_log(lines) == (Point(step=3, loss=float.fromhex("0x1.3d711ep+2"), samples=(5, 7), at=12.5, pid=9),)


def test_numbers_and_missing_fields_are_read_too() -> None:
    assert read_log(['{"step": 1, "loss": 2.5}\n', '{"step": 2, "loss": 2}\n']) == (point(1, 2.5), point(2, 2.0))


def test_a_line_that_a_dying_node_did_not_finish_is_left_out() -> None:
    assert read_log(['{"step": 1, "loss": 2.5}\n', '{"step": 2, "lo']) == (point(1, 2.5),)
    assert read_log(['{"step": 1, "loss": 2.5}\n', '{"step": 2, "loss": 2.5}']) == (point(1, 2.5),)


@pytest.mark.parametrize("line", ["\n", "nonsense\n", "[1]\n", '{"step": 1}\n', '{"step": 1, "loss": "x"}\n', "{}\n"])
def test_another_broken_line_is_named(line: str) -> None:
    with pytest.raises(ContractError, match="line 2"):
        read_log(['{"step": 1, "loss": 2.5}\n', line])


def test_a_log_of_several_trainers_is_taken_apart() -> None:
    points = [Point(step=step, loss=1.0, pid=pid) for step, pid in [(1, 7), (2, 7), (2, 8), (3, 7), (3, 8)]]
    assert [[point.step for point in piece] for piece in by_process(points)] == [[1, 2, 3], [2, 3]]


def test_of_a_repeated_step_the_newest_incarnation_counts() -> None:
    curve = joined([segment(2, point(2, 2.2), point(3, 3.2)), segment(1, point(1, 1.1), point(2, 2.1))])
    assert [(step, one.loss) for step, one in curve.items()] == [(1, 1.1), (2, 2.2), (3, 3.2)]


REFERENCE = (point(1, 3.0, (1,)), point(2, 2.0, (2,)), point(3, 1.0, (3,)))


def test_equal_runs_are_equal_however_often_they_were_interrupted() -> None:
    found = compare([segment(1, *REFERENCE[:2]), segment(2, *REFERENCE[1:])], REFERENCE)
    assert found.is_equal
    assert found.compared == 4


def test_one_bit_is_a_difference() -> None:
    off = math.nextafter(2.0, 3.0)
    found = compare([segment(1, REFERENCE[0], point(2, off, (2,)), REFERENCE[2])], REFERENCE)
    assert not found.is_equal
    assert found.different == (2,)


def test_a_repeated_step_that_differs_counts_although_the_newest_one_is_right() -> None:
    found = compare([segment(1, *REFERENCE[:1], point(2, 9.0, (2,))), segment(2, *REFERENCE[1:])], REFERENCE)
    assert found.different == (2,)


def test_the_same_loss_from_other_samples_is_a_difference() -> None:
    found = compare([segment(1, REFERENCE[0], point(2, 2.0, (99,)), REFERENCE[2])], REFERENCE)
    assert found.different == (2,)


def test_missing_and_extra_steps_are_named() -> None:
    found = compare([segment(1, REFERENCE[0], REFERENCE[2], point(4))], REFERENCE)
    assert (found.missing, found.extra, found.is_equal) == ((2,), (4,), False)


def test_nothing_is_not_equal_to_nothing() -> None:
    assert not compare([], ()).is_equal
    assert not compare([segment(1)], REFERENCE).is_equal


def test_a_loss_that_is_not_a_number_is_equal_to_itself_only() -> None:
    assert compare([segment(1, point(1, math.nan))], (point(1, math.nan),)).is_equal
    assert not compare([segment(1, point(1, math.nan))], (point(1, 1.0),)).is_equal
