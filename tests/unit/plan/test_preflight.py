"""Whether a layout fits into its notice, from sizes alone; how fast a node sends; chunks and threads that suit it."""

from __future__ import annotations

import pytest

from spotproof.agent.uploads import THREADS_MAX, suited
from spotproof.checkpoint.chunks import MIB
from spotproof.checkpoint.jobs import Begin
from spotproof.contract.runspec import CheckpointPolicy, Pools, RunSpec
from spotproof.plan import accelerators, network
from spotproof.plan.preflight import Layout, outlook

GB = 10**9
SMALL_NODE, LARGE_NODE = 312_500_000.0, 8 * GB


def spec(*types: str, chunk_mib: int = 0) -> RunSpec:
    return RunSpec(
        run="r",
        image="x@sha256:" + "0" * 64,
        command=("train",),
        pools=Pools(types=types),
        checkpoint=CheckpointPolicy(chunk_mib=chunk_mib),
    )


@pytest.mark.parametrize(
    ("what", "layout", "fits"),
    [
        ("LoRA on the smallest node", Layout(image_bytes=2 * GB, wire_bytes_s=SMALL_NODE), True),
        ("7B in full on the smallest node", Layout(image_bytes=98 * GB, wire_bytes_s=SMALL_NODE), False),
        ("7B in full on a large node", Layout(image_bytes=98 * GB, wire_bytes_s=LARGE_NODE), True),
        ("98 % of it frozen", Layout(image_bytes=98 * GB, lacking_bytes=2 * GB, wire_bytes_s=SMALL_NODE), True),
        ("two long steps", Layout(image_bytes=2 * GB, wire_bytes_s=SMALL_NODE, step_s=50), False),
    ],
)
def test_two_steps_copy_and_upload_against_the_notice(what: str, layout: Layout, fits: bool) -> None:
    found = outlook(layout)
    assert found.fits is fits, f"{what}: {found.says}"
    assert bool(found.helps) is not fits


def test_what_would_help_does_help() -> None:
    layout = Layout(image_bytes=60 * GB, wire_bytes_s=SMALL_NODE, step_s=2, every_s=180, is_sharded=True)
    wire, nodes, _, often = outlook(layout).helps
    gbit_s = float(wire.split("at least ")[1].split(" ")[0])
    assert outlook(Layout(image_bytes=60 * GB, wire_bytes_s=(gbit_s + 0.1) * GB / 8, step_s=2)).fits
    times = float(nodes.split(" ")[0])
    assert outlook(Layout(image_bytes=int(60 * GB / times), wire_bytes_s=SMALL_NODE, step_s=2)).fits
    assert "from 192 s on, now 180 s" in often


def test_steps_that_take_all_of_it_are_named() -> None:
    [steps, *_] = outlook(Layout(image_bytes=GB, wire_bytes_s=LARGE_NODE, step_s=60)).helps
    assert steps.startswith("shorter steps")


def test_every_type_with_accelerators_has_a_network() -> None:
    names = [f"{family}.{size}" for family, of in accelerators.FAMILIES.items() for size in of.counts]
    assert [name for name in names if network.bytes_s_of(name) is None] == []


def test_the_slowest_known_type_counts_and_no_node_more_than_was_demonstrated() -> None:
    assert network.slowest_bytes_s(["p4d.24xlarge", "g5.xlarge", "x.unknown"]) == 2.5e9 / 8
    assert network.bytes_s_of("p5.48xlarge") == 8e9
    assert network.slowest_bytes_s(["x.unknown"]) is None


@pytest.mark.parametrize(
    ("types", "chunk_mib", "threads"),
    [(("g5.xlarge",), 8, 4), (("p4d.24xlarge",), 64, THREADS_MAX), (("p4d.24xlarge", "g5.4xlarge"), 32, 16)],
)
def test_chunks_and_threads_suit_the_slowest_node(types: tuple[str, ...], chunk_mib: int, threads: int) -> None:
    found = suited(Begin(run="r", scratch_dir=""), spec(*types))
    assert (found.chunk_bytes, found.threads) == (chunk_mib * MIB, threads)


def test_a_chunk_size_that_the_run_names_is_taken_and_an_unknown_type_changes_nothing() -> None:
    assert suited(Begin(run="r", scratch_dir=""), spec("p4d.24xlarge", chunk_mib=16)).chunk_bytes == 16 * MIB
    assert suited(Begin(run="r", scratch_dir=""), spec("x.unknown")) == Begin(run="r", scratch_dir="")
