"""How far a restore is, for people and for logs."""

from __future__ import annotations

import io

from spotproof.checkpoint.meter import Meter


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def played(stream: io.StringIO, times: list[float]) -> str:
    meter = Meter(stream=stream, clock=lambda: times.pop(0))
    meter.begin("restore of step 5, generation 2", 40_000_000)
    for _ in range(2):
        meter.moved(20_000_000)
    meter.end(kept_bytes=3_000_000)
    return stream.getvalue()


def test_a_log_gets_bytes_seconds_and_rate_in_one_line() -> None:
    said = played(io.StringIO(), [0.0, 1.0, 2.0, 2.0])
    assert said == ("restore of step 5, generation 2: 40.0 of 40.0 MB in 2.0 s, 20 MB/s, 3.0 MB were here already\n")


def test_a_log_of_a_long_restore_gets_a_line_every_ten_seconds() -> None:
    said = played(io.StringIO(), [0.0, 11.0, 12.0, 12.0]).splitlines()
    assert said[0] == "restore of step 5, generation 2: 20.0 of 40.0 MB in 11.0 s, 2 MB/s"
    assert len(said) == 2


def test_a_person_sees_a_bar_that_moves_on_one_line() -> None:
    said = played(Terminal(), [0.0, 1.0, 2.0, 2.0])
    assert said.count("\n") == 1
    assert "[###############               ]" in said
    assert f"[{'#' * 30}]" in said


def test_nothing_is_said_without_a_stream() -> None:
    meter = Meter()
    meter.begin("restore", 0)
    meter.moved(1)
    meter.end()
