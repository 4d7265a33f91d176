"""Deploy, destroy, deploy again: the synthesized stack in an emulated account, by the real CDK CLI."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rehearsal.deploy import DeployFailed
from rehearsal.region import Region
from spotproof.contract import names
from spotproof.contract.items import Live
from spotproof.store.dynamo import DynamoTable
from spotproof.store.live import LiveIndex
from tests.synth.synthesis import assemble
from tests.synth.template import Assembly

pytestmark = pytest.mark.emulator


@pytest.fixture
def region(tmp_path: Path) -> Iterator[Region]:
    with Region(tmp_path / "region", seed=3) as made:
        yield made


def live_runs(region: Region, outputs: dict[str, str]) -> LiveIndex:
    return LiveIndex(DynamoTable(region.client("dynamodb"), outputs[names.OUTPUT_TABLE]))


def status(region: Region) -> str:
    stacks = region.client("cloudformation").describe_stacks()["Stacks"]
    return next((str(one["StackStatus"]) for one in stacks if one["StackName"] == "spotproof"), "")


def reasons(region: Region) -> str:
    events = region.client("cloudformation").describe_stack_events(StackName="spotproof")["StackEvents"]
    return " ".join(one.get("ResourceStatusReason") or "" for one in events)


def invoked(region: Region) -> set[str]:
    """Which of the two scheduled functions have run."""
    names_ = [one.function for one in region.functions.invocations]
    return {kind for kind in ("Sweep", "Collect") if any(kind in name for name in names_)}


def test_destroy_with_a_live_run_fails_names_it_and_leaves_everything(region: Region, assembly: Assembly) -> None:
    outputs = region.deploy(assembly.folder)
    before = region.report().resources
    index = live_runs(region, outputs)
    index.hasten("llama-7b", due_at=2**33)
    with pytest.raises(DeployFailed) as failed:
        region.destroy(assembly.folder)
    assert status(region) == "DELETE_FAILED"
    assert "llama-7b" in str(failed.value)
    assert "spotproof stop llama-7b --stack spotproof" in reasons(region)
    region.settle(check=True)  # every resource is there and as it was
    assert region.report().resources == before
    region.schedules.tick()  # and at work
    region.wait(lambda: len(invoked(region) & {"Sweep", "Collect"}) == 2, what="sweep and collection run")
    (collect,) = [one for one in region.functions.names() if "Collect" in one]
    region.client("s3").put_object(Bucket=outputs[names.OUTPUT_BUCKET], Key="runs/llama-7b/blobs/0", Body=b"young")
    assert region.functions.invoke(collect, {}).result == {"runs": 1, "objects": 0, "bytes": 0}
    region.raise_problems()

    index.remove("llama-7b")
    region.destroy(assembly.folder)
    assert status(region) == ""
    assert region.functions.names() == []
    region.raise_problems()


def test_IAM_06_destroy_and_deploy_again_with_new_state_and_then_over_the_old(
    region: Region, assembly: Assembly, tmp_path_factory: pytest.TempPathFactory
) -> None:
    first = region.deploy(assembly.folder)
    table = DynamoTable(region.client("dynamodb"), first[names.OUTPUT_TABLE])
    kept = Live(run="kept", due_at=2**33)
    region.client("s3").put_object(Bucket=first[names.OUTPUT_BUCKET], Key="runs/kept/a", Body=b"bytes")
    region.destroy(assembly.folder)
    second = region.deploy(assembly.folder)
    assert second[names.OUTPUT_TABLE] != first[names.OUTPUT_TABLE]
    assert second[names.OUTPUT_BUCKET] != first[names.OUTPUT_BUCKET]
    region.destroy(assembly.folder)
    LiveIndex(table).hasten("kept", due_at=2**33)
    again = assemble(
        tmp_path_factory,
        f"""
        attach_table = "{first[names.OUTPUT_TABLE]}"
        attach_bucket = "{first[names.OUTPUT_BUCKET]}"
        """,
    )
    third = region.deploy(again.folder)
    assert third[names.OUTPUT_TABLE] == first[names.OUTPUT_TABLE]
    assert live_runs(region, third).read("kept") == kept
    stored = region.client("s3").get_object(Bucket=third[names.OUTPUT_BUCKET], Key="runs/kept/a")["Body"].read()
    assert stored == b"bytes"
    with pytest.raises(DeployFailed, match="kept"):
        region.destroy(again.folder)
    region.raise_problems()


def test_IAM_06_a_first_deploy_that_fails_half_way_does_not_block_the_second(
    region: Region, assembly: Assembly, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What is attached is not there: the guard, made last, refuses, and everything is rolled back."""
    broken = assemble(tmp_path_factory, 'attach_table = "not-there"\nattach_bucket = "not-there"')
    with pytest.raises(DeployFailed, match="not-there"):
        region.deploy(broken.folder)
    assert status(region) == "ROLLBACK_COMPLETE"
    outputs = region.deploy(assembly.folder)
    assert status(region) == "CREATE_COMPLETE"
    assert outputs[names.OUTPUT_TABLE] != "not-there"
    region.raise_problems()
