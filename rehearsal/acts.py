"""The acts of the story. Each takes a node away in its own manner and waits until another one trains."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from rehearsal import losses
from rehearsal.deploy import REPOSITORY
from rehearsal.evidence import DepartureKind
from rehearsal.plan import HOME, POOLS, Act
from rehearsal.plane.bus import Delivery
from rehearsal.plane.market import INSUFFICIENT
from rehearsal.stage import InVain, Stage, is_running
from spotproof.contract import keys, names, s3keys
from spotproof.contract.events import EVENTS

WAKE_LIMIT_S: Final = 30.0
AFTER_NEXT_STEPS: Final = 3
GHOST: Final = "ghost"
TOOLKIT: Final = "CDKToolkit"


Pool = tuple[str, str]
CHEAP, FAIR, DEAR = 0.1, 0.2, 0.9


def open_pools(stage: Stage, *room: Pool, refusing: tuple[Pool, ...] = ()) -> None:
    """`room` has one instance each; `refusing` is cheaper, so it is asked first and refuses; the rest is dear."""
    stage.region.market.set({pool: 1 if pool in room else INSUFFICIENT for pool in POOLS})
    stage.region.market.price({pool: CHEAP if pool in refusing else FAIR if pool in room else DEAR for pool in POOLS})


def begin(stage: Stage) -> None:
    """Submit, and the first node trains."""
    open_pools(stage, HOME)
    stage.submit()
    stage.say(f"submitted run {stage.run}: {stage.plan.steps} steps, a checkpoint every {stage.plan.interval_steps}")
    stage.wait_for_step(1)
    stage.say(f"    trains on {stage.holder()}")


def notice(stage: Stage) -> None:
    """EC2 takes the node back with notice while two other pools are out of capacity."""
    instance, pieces = stage.holder(), stage.pieces()
    refusing = (("g5.xlarge", "us-east-1b"), ("g6.xlarge", "us-east-1a"))
    open_pools(stage, ("g6.xlarge", "us-east-1b"), refusing=refusing)
    stage.say(
        f"(a) step {stage.step()}: {instance} gets {stage.plan.notice_s:.0f} s notice; two pools are out of capacity"
    )
    stage.departs("interruption", DepartureKind.NOTICE, instance, good_step=0)
    stage.region.hosts.interrupt(instance, notice_s=stage.plan.notice_s)
    stage.wait_for_replacement(pieces)


def silent(stage: Stage) -> None:
    """The node is gone without a word, in the middle between two checkpoints."""
    open_pools(stage, ("g5.xlarge", "us-east-1c"))
    committed = stage.wait_for_commit_beyond(stage.step())
    stage.wait_for_step(committed + stage.plan.interval_steps // 2)
    instance, pieces = stage.holder(), stage.pieces()
    stage.say(f"(b) step {stage.step()}: {instance} dies silently; step {committed} is committed")
    stage.departs("silent death", DepartureKind.SILENT, instance, good_step=committed)
    stage.region.hosts.silent_kill(instance)
    stage.wait_for_replacement(pieces)


def frozen(stage: Stage) -> None:
    """The node freezes and its newest checkpoint is damaged in S3; once it is replaced, it wakes."""
    open_pools(stage, ("g6.xlarge", "us-east-1c"))
    good = stage.wait_for_commit_beyond(stage.step())
    bad = stage.wait_for_commit_beyond(good)
    instance, pieces, generation = stage.holder(), stage.pieces(), stage.generation()
    old = losses.pieces(losses.read(stage.logs[0]))[-1].pid
    stage.region.hosts.freeze(instance)
    damage_newest(stage)
    stage.say(f"(c) step {stage.step()}: {instance} freezes; a chunk of the commit of step {bad} is damaged in S3")
    stage.departs("frozen node", DepartureKind.FROZEN, instance, good_step=good, damaged=True)
    stage.wait_for_replacement(pieces)
    stage.wait_for_step(good + AFTER_NEXT_STEPS)
    stage.woken_generation, stage.woke_at = generation, time.time()
    stage.region.hosts.wake(instance)
    end = time.monotonic() + WAKE_LIMIT_S
    while is_running(old) and time.monotonic() < end:
        time.sleep(0.1)
    stage.woken_ended = not is_running(old)
    stage.say(f"    {instance} wakes and {'ends itself' if stage.woken_ended else 'goes on training'}")


def damage_newest(stage: Stage) -> None:
    """One byte of a chunk that only the newest commit has is turned over, in the bucket, behind everybody's back."""
    with stage.auditor.pause():
        newest, before = stage.auditor.commits[-1], stage.auditor.commits[-2]
        own = [digest for digest in newest.chunks if digest not in before.chunks]
        key, bucket = s3keys.blob(stage.run, own[len(own) // 2]), stage.outputs[names.OUTPUT_BUCKET]
        s3 = stage.region.client("s3")
        found = s3.get_object(Bucket=bucket, Key=key)
        body = bytearray(found["Body"].read())
        body[len(body) // 2] ^= 0xFF
        s3.put_object(Bucket=bucket, Key=key, Body=bytes(body), Metadata=found["Metadata"])


def storm(stage: Stage) -> None:
    """An interruption whose events come twice and out of order, several times over."""
    open_pools(stage, ("g6e.xlarge", "us-east-1a"), ("g6e.xlarge", "us-east-1b"))
    stage.wait_for_step(stage.step() + AFTER_NEXT_STEPS)
    instance, pieces = stage.holder(), stage.pieces()
    stage.region.bus.delivery = Delivery(duplicates=0.7, jitter_s=1.5)
    stage.say(f"(d) step {stage.step()}: {instance} gets its notice; every event comes twice and out of order")
    stage.departs("event storm", DepartureKind.NOTICE, instance, good_step=0)
    stage.region.hosts.interrupt(instance, notice_s=stage.plan.notice_s)
    for _ in range(3):
        stage.region.emit(interruption_of(instance))
    stage.wait_for_replacement(pieces)
    stage.region.bus.delivery = Delivery()


def interruption_of(instance: str) -> dict[str, Any]:
    """One more event of the same interruption: another id, the same loss."""
    return {
        "source": "aws.ec2",
        "detail-type": "EC2 Spot Instance Interruption Warning",
        "detail": {"instance-id": instance, "instance-action": "terminate"},
    }


def golden_events(stage: Stage) -> None:
    """Every golden event of the contract passes the deployed rules and functions and changes nothing."""
    instance, pieces = stage.holder(), stage.pieces()
    stage.region.hosts.rebalance(instance)
    for row in EVENTS:
        for name in row.golden:
            event = json.loads((REPOSITORY / "tests" / "events" / f"{name}.json").read_text())
            stage.region.emit(event | {"account": stage.region.account.id, "region": stage.region.region})
    ghost(stage)
    stage.region.quiet()
    look_at_dashboard(stage)
    collect(stage)
    stage.say(f"    every golden event passed; {pieces} processes trained so far, and still do")


def look_at_dashboard(stage: Stage) -> None:
    """A person opens the dashboard: CloudWatch asks each custom widget what it is, for the runs, and for this one."""
    cloudwatch = stage.region.client("cloudwatch")
    (board,) = cloudwatch.list_dashboards()["DashboardEntries"]
    widgets = json.loads(cloudwatch.get_dashboard(DashboardName=board["DashboardName"])["DashboardBody"])["widgets"]
    context = {"dashboardName": board["DashboardName"], "theme": "light", "width": 588, "height": 369}
    questions: tuple[dict[str, Any], ...] = ({"describe": True}, {}, {"run": stage.run})
    for endpoint in [one["properties"]["endpoint"] for one in widgets if one["type"] == "custom"]:
        for asked in questions:
            shown = stage.region.functions.invoke(endpoint.rsplit(":", 1)[-1], {"widgetContext": context, **asked})
            if shown.error or ("run" in asked and f"Run {stage.run}" not in str(shown.result)):
                raise InVain(f"the widget, asked for {asked}, says {shown.error or shown.result!r:.200}")


def collect(stage: Stage) -> None:
    """An hour is over: the collection looks at every run's checkpoints, of which none is old enough to go."""
    (name,) = [one for one in stage.region.functions.names() if "Collect" in one]
    (fired,) = stage.region.schedules.tick("Collect")
    stage.wait(lambda: stage.region.functions.invoked[name] > 0, what=f"{fired} calls {name}")
    done = stage.region.functions.invoke(name, {})
    if done.error or not isinstance(done.result, dict) or done.result["runs"] < 1 or done.result["objects"]:
        raise InVain(f"the collection says {done.error or done.result!r:.200}")


def ghost(stage: Stage) -> None:
    """A run stands in the sweep's index and nowhere else, as after a submit that was killed: repair forgets it."""
    key, table = keys.live(GHOST), stage.outputs[names.OUTPUT_TABLE]
    item = {"pk": {"S": key.pk}, "sk": {"S": key.sk}, "run": {"S": GHOST}, "due_at": {"N": "0"}}
    stage.region.client("dynamodb").put_item(TableName=table, Item=item)
    stage.wait(lambda: not stage.item(key), what="a run that is nothing but an entry in the sweep's index is forgotten")


def destroyed_in_vain(stage: Stage) -> None:
    """An operator destroys the stack while the run trains: that is refused by name, and the run goes on."""
    cloudformation = stage.region.client("cloudformation")
    (stack,) = [one for one in stage.region.deployed.stacks() if one != TOOLKIT]
    cloudformation.delete_stack(StackName=stack)
    status = cloudformation.describe_stacks(StackName=stack)["Stacks"][0]["StackStatus"]
    events = cloudformation.describe_stack_events(StackName=stack)["StackEvents"]
    said = " ".join(str(one.get("ResourceStatusReason", "")) for one in events)
    if status != "DELETE_FAILED" or stage.run not in said:
        raise InVain(f"destroying the stack with a live run: {status}, {said[-200:]}")
    stage.say(f"    destroying the stack is refused: run {stage.run} is live")


def end(stage: Stage) -> None:
    """The run, and every run beside it, trains to its end, and everything that belongs to it ends."""
    for one in stage.runs:
        one.wait_for_step(stage.plan.steps)
    for one in stage.runs:
        one.wait_for_status("done")
    stage.wait(lambda: not stage.alive(), what="every instance is ended")
    stage.wait(lambda: set(stage.region.hosts.alive()) <= stage.by_hand, what="every machine is off")
    stage.say(f"run {stage.status()}, nothing is left")


ACTS: Final[Mapping[Act, Callable[[Stage], None]]] = {
    Act.NOTICE: notice,
    Act.SILENT: silent,
    Act.FROZEN: frozen,
    Act.STORM: storm,
}
