"""Table and bucket keys: no two things share one, listings are in order, nodes write under NODE# and nowhere else."""

from __future__ import annotations

import itertools

import pytest

from spotproof.contract import keys, s3keys
from spotproof.contract.keys import Key
from spotproof.contract.limits import ENGAGED_SLOTS_MAX, LIVE_SHARDS
from spotproof.errors import BadManifest

RUNS = ("a", "a-1", "1", "b")
DIGEST = "0f" * 32


def control_keys(run: str) -> list[Key]:
    return [
        keys.spec(run),
        keys.head(run),
        keys.launcher(run),
        keys.live(run),
        *(keys.slot(run, number) for number in (0, 1, 11)),
        *(keys.launch(run, number) for number in (0, 1, 11)),
        *(keys.history(run, at, name) for at, name in ((1, "x"), (1, "y"), (11, "x"))),
    ]


def node_keys(run: str) -> list[Key]:
    return [
        keys.newest(run),
        keys.pointer(run),
        *(keys.node(run, slot, incarnation) for slot in (0, 1, 8, 11) for incarnation in (1, 11)),
        *(keys.generation(run, number) for number in (0, 1, 11)),
        *(keys.checkpoint(run, *pair) for pair in itertools.product((0, 1, 11), repeat=2)),
        *(keys.quarantine(run, *pair) for pair in itertools.product((0, 1, 11), repeat=2)),
        *(keys.shard_lease(run, number) for number in (0, 1, 11)),
    ]


def test_no_two_things_share_a_key() -> None:
    made = [key for run in RUNS for key in (*control_keys(run), *node_keys(run))]
    made += [keys.member("i-12345678"), keys.pool("us-east-1", "g5.xlarge", "us-east-1a", "spot")]
    assert len(set(made)) == len(made)


@pytest.mark.parametrize("run", RUNS)
def test_what_nodes_write_begins_with_NODE(run: str) -> None:
    # The node role's policy is a condition on the partition key.
    assert all(key.pk.startswith(keys.NODE_PREFIX) for key in node_keys(run))


@pytest.mark.parametrize("run", RUNS)
def test_what_only_the_control_plane_writes_does_not(run: str) -> None:
    others = [*control_keys(run), keys.member("i-12345678"), keys.pool("r", "t", "z", "spot")]
    assert not [key for key in others if key.pk.startswith(keys.NODE_PREFIX)]


def test_one_runs_partitions_hold_nothing_of_another() -> None:
    partitions = {run: {key.pk for key in (*control_keys(run), *node_keys(run))} for run in RUNS}
    live = {keys.live_partition(shard) for shard in range(LIVE_SHARDS)}
    for one, other in itertools.combinations(RUNS, 2):
        assert partitions[one] & partitions[other] <= live


def sorts_like_numbers(made: list[str]) -> bool:
    return made == sorted(made) and len(set(made)) == len(made)


NUMBERS = (0, 1, 2, 9, 10, 99, 100, 999)


def test_listings_are_in_order() -> None:
    assert sorts_like_numbers([keys.slot("r", number).sk for number in NUMBERS])
    assert sorts_like_numbers([keys.launch("r", number).sk for number in (*NUMBERS, 10**7)])
    assert sorts_like_numbers([keys.generation("r", number).sk for number in (*NUMBERS, 10**7)])
    assert sorts_like_numbers([keys.checkpoint("r", g, s).sk for g in NUMBERS for s in (*NUMBERS, 10**11)])
    assert sorts_like_numbers([keys.history("r", at, "x").sk for at in (*NUMBERS, 1_800_000_000_000)])


def test_the_last_slot_still_sorts() -> None:
    assert keys.slot("r", ENGAGED_SLOTS_MAX - 1).sk < keys.slot("r", ENGAGED_SLOTS_MAX).sk


def test_prefixes_find_their_items_and_no_others() -> None:
    found = {
        keys.SLOT_PREFIX: keys.slot("r", 3).sk,
        keys.LAUNCH_PREFIX: keys.launch("r", 3).sk,
        keys.GENERATION_PREFIX: keys.generation("r", 3).sk,
        keys.CHECKPOINT_PREFIX: keys.checkpoint("r", 3, 3).sk,
    }
    for prefix in found:
        assert [name for name, sk in found.items() if sk.startswith(prefix)] == [prefix]
    assert not keys.launcher("r").sk.startswith(keys.LAUNCH_PREFIX)


def test_node_items_spread_over_partitions() -> None:
    partitions = {keys.node("r", slot, 1).pk for slot in range(100)}
    assert partitions == {keys.node_shard_partition("r", shard) for shard in range(keys.NODE_SHARDS)}


def test_a_runs_place_in_the_sweeps_index_is_stable_and_spread() -> None:
    assert keys.live("night-run") == Key(pk="LIVE#10", sk="RUN#night-run")
    used = {keys.live(f"run-{number}").pk for number in range(400)}
    assert used == {keys.live_partition(shard) for shard in range(LIVE_SHARDS)}


# --- the bucket -------------------------------------------------------------------------------------------------------
def test_everything_of_a_run_lies_under_its_prefix() -> None:
    made = [
        s3keys.blob("r", DIGEST),
        s3keys.part("r", 1, 2, 3),
        s3keys.manifest("r", 1, 2),
        s3keys.checkpoints_prefix("r"),
        s3keys.checkpoint_prefix("r", 1, 2),
    ]
    assert all(key.startswith(s3keys.run_prefix("r")) for key in made)
    assert len(set(made)) == len(made)
    assert not s3keys.manifest("r-2", 1, 2).startswith(s3keys.run_prefix("r"))


def test_manifests_are_listed_in_order_of_generation_then_step() -> None:
    orders = [(0, 0), (0, 9), (0, 10), (0, 10**11), (1, 0), (9, 5), (10, 0)]
    made = [s3keys.manifest("r", generation, step) for generation, step in orders]
    assert made == sorted(made)
    assert [s3keys.order_of_manifest(key) for key in made] == orders


def test_parts_are_listed_in_order_of_rank() -> None:
    made = [s3keys.part("r", 1, 2, rank) for rank in (0, 1, 9, 10, 999, 1000)]
    assert made == sorted(made)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "runs/r/checkpoints/00000001-000000000002/manifest.json.tmp",
        "runs/r/checkpoints/00000001-000000000002/part-00000.json",
        "runs/r/checkpoints/1-2/manifest.json",
        "runs/r/x/checkpoints/00000001-000000000002/manifest.json",
        "x/runs/r/checkpoints/00000001-000000000002/manifest.json",
        "runs/r/checkpoints/00000001-000000000002/manifest.json\n",
    ],
)
def test_what_only_looks_like_a_manifest_is_none(key: str) -> None:
    assert not s3keys.is_manifest(key)
    with pytest.raises(BadManifest):
        s3keys.order_of_manifest(key)


def test_a_manifest_is_known_by_its_key() -> None:
    assert s3keys.is_manifest(s3keys.manifest("r", 1, 2))
    assert not s3keys.is_manifest(s3keys.part("r", 1, 2, 0))
