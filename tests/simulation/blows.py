"""What the weather does to a history: each blow is counted under a name that people read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from spotproof.contract.limits import NOTICE_S
from spotproof.contract.parse import BLOCK_LEAD_S
from spotproof.contract.states import RunStatus
from spotproof.errors import StoreError
from tests.fakes.control import STACK, advice, event, notice, state
from tests.simulation import signs
from tests.simulation.account import is_by_hand

if TYPE_CHECKING:
    from tests.simulation.history import History

POOLS: Final = [
    f"{kind}#{zone}" for zone in ("us-east-1a", "us-east-1b", "us-east-1c") for kind in ("g5.xlarge", "g6.xlarge")
]
DRY: Final = (
    "InsufficientInstanceCapacity",
    "InsufficientInstanceCapacity",
    "MaxSpotInstanceCountExceeded",
    "VcpuLimitExceeded",
)
SSM_CODES: Final = ("ThrottlingException", "InvalidDocument", "InternalServerError")
RUN: Final = "sim"


def schedule(history: History) -> None:
    """Everything that will happen while the weather lasts."""
    weather, chance = history.weather, history.chance

    def some(times: int, blow: Callable[[History], None]) -> None:
        for _ in range(times):
            history.at(history.now() + chance.uniform(0, weather.length_s), lambda: blow(history))

    some(weather.losses, lose_one)
    some(weather.bursts, burst)
    some(weather.drills, drill)
    some(weather.rebalances, rebalance)
    some(weather.maintenances, maintenance)
    some(weather.blocks, block)
    some(weather.by_hand, tag_by_hand)
    some(weather.dry_phases, dry)
    some(weather.pauses, pause)
    for operation in ("create_fleet", "terminate_instances", "describe_instances"):
        some(weather.throttles, partial(_throttle, operation))
    if weather.outage_s:
        history.at(history.now() + chance.uniform(0, 100), lambda: outage(history))
    if weather.beats_out_s:
        history.at(history.now() + chance.uniform(0, 100), lambda: beats_out(history))
    for pool in POOLS:
        if chance.random() < weather.refused_pools:
            history.ec2.refused[f"{pool}#spot"] = "InsufficientInstanceCapacity"
            history.faults["pool without capacity"] += 1


def calm(history: History) -> None:
    """No new faults: capacity is back, everything reachable, frozen nodes wake up, people resume what was blocked."""
    ec2, nodes, stores = history.ec2, history.nodes, history.world.stores
    ec2.refused.clear()
    ec2.room.clear()
    ec2._faults.clear()
    history.out_until, nodes.out, nodes.never_joins, nodes.boot_deaths = 0.0, False, 0.0, 0.0
    for instance, life in nodes.lives.items():
        if life.frozen and ec2.instances[instance].is_alive:
            _wake(history, instance)
    for pool in stores.pools.list("us-east-1"):
        with contextlib.suppress(StoreError):
            stores.pools.cool(pool, replace(pool, until=0, cooldown_s=0, verdict=""))
    head = stores.heads.read(RUN)
    if head is None:
        return
    if head.next_launch_at > history.now():
        stores.heads.retry_at(RUN, 0)
    if head.status is RunStatus.BLOCKED:
        resume(history)
    if history.weather.stop and history.world.head(RUN).status is RunStatus.ACTIVE:
        history.faults["run stopped by a person"] += 1
        history.world.pause(RUN, RunStatus.STOPPING)


# ------------------------------------------------------------------------------------------------------------- nodes
def lose_one(history: History) -> None:
    """One node goes, with a notice or without."""
    if living := _living(history):
        _lose(history, history.chance.choice(living))


def burst(history: History) -> None:
    """Many nodes go in one moment: all of them, or some."""
    living = _living(history)
    if not history.weather.clean and history.chance.random() < 0.5:
        history.faults["burst: some of the nodes"] += 1
        living = history.chance.sample(living, (len(living) + 1) // 2)
    else:
        history.faults["burst: all nodes"] += 1
    for instance in living:
        _lose(history, instance)


def drill(history: History) -> None:
    """An operator rehearses an interruption: the metadata says nothing, only the control plane does."""
    for instance in _living(history)[:1]:
        history.faults["drill"] += 1
        history.lost.add(instance)
        life = history.nodes.life(instance)
        life.ends_by = history.now() + NOTICE_S if life.ends_by is None else life.ends_by
        told = event("Spotproof Drill", instance=instance, at=history.now(), **{"instance-action": "terminate"})
        history.emit({**told, "source": "spotproof.drill"})


def rebalance(history: History) -> None:
    """EC2 sees a higher risk for a node."""
    if living := _living(history):
        history.faults["rebalance recommendation"] += 1
        history.emit(advice(history.chance.choice(living), history.now()))


def maintenance(history: History) -> None:
    """AWS Health plans maintenance for a node, soon enough to be moved."""
    instances = _living(history)
    if not instances:
        return
    history.faults["maintenance planned"] += 1
    instance = history.chance.choice(instances)
    starts = datetime.fromtimestamp(history.now() + history.chance.uniform(300, 2000), tz=UTC)
    told = event("AWS Health Event", instance=instance, at=history.now())
    detail = {
        "eventArn": f"arn:aws:health:us-east-1::event/EC2/x/{instance}",
        "service": "EC2",
        "eventTypeCode": history.chance.choice(
            ["AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED", "AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED"]
        ),
        "eventTypeCategory": "scheduledChange",
        "startTime": starts.strftime("%a, %d %b %Y %H:%M:%S GMT"),
        "statusCode": "upcoming",
        "affectedEntities": [{"entityValue": instance}],
        "page": "1",
        "totalPages": "1",
    }
    history.emit({**told, "source": "aws.health", "resources": [instance], "detail": detail})


def block(history: History) -> None:
    """Some nodes run in a capacity block, whose end EC2 announces long before it comes."""
    living = _living(history)
    inside = history.chance.sample(living, (len(living) + 1) // 2)
    ends_at = int(history.now() + history.chance.uniform(400, 1200))
    history.faults["capacity block ends"] += bool(inside)
    for instance in inside:
        history.ec2.instances[instance].reservation = "cr-1"
        history.lost.add(instance)
        life = history.nodes.life(instance)
        life.ends_by = ends_at if life.ends_by is None else life.ends_by
        history.at(ends_at, partial(_block_ends, history, instance))
    told = event("Capacity Block Expiration Warning", instance="none", at=history.now())
    moment = datetime.fromtimestamp(ends_at + BLOCK_LEAD_S, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    history.emit({**told, "detail": {"capacity-reservation-id": "cr-1", "end-date": moment}})


def _block_ends(history: History, instance: str) -> None:
    if history.ec2.instances[instance].is_alive:
        history.violations += [why for why in (signs.unheard(history, instance),) if why]
    end(history, instance)


def tag_by_hand(history: History) -> None:
    """A person offers an instance to the run; some take it back later."""
    number = sum(1 for one in history.ec2.instances if one.startswith("i-0ffff")) + 1
    instance = f"i-0ffffffffffffff{number:02x}"
    history.faults["instance tagged by hand"] += 1
    history.ec2.tag(instance, tags={"spotproof:stack": STACK, "spotproof:run": RUN})
    _tags_changed(history, instance)
    if history.chance.random() < 0.3:
        history.at(history.now() + history.chance.uniform(60, 600), lambda: _untag(history, instance))


def _untag(history: History, instance: str) -> None:
    history.faults["tag taken off by hand"] += 1
    history.lost.add(instance)
    life = history.nodes.life(instance)
    life.ends_by = history.now() + NOTICE_S if life.ends_by is None else life.ends_by
    del history.ec2.instances[instance].tags["spotproof:run"]
    _tags_changed(history, instance)


def _tags_changed(history: History, instance: str) -> None:
    told = event("Tag Change on Resource", instance=instance, at=history.now())
    detail = {
        "changed-tag-keys": ["spotproof:run"],
        "service": "ec2",
        "resource-type": "instance",
        "version": 3,
        "tags": dict(history.ec2.instances[instance].tags),
    }
    arn = f"arn:aws:ec2:us-east-1:{told['account']}:instance/{instance}"
    history.emit({**told, "source": "aws.tag", "resources": [arn], "detail": detail})


def end(history: History, instance: str) -> None:
    """EC2 ends the instance."""
    history.lost.add(instance)
    if history.ec2.instances[instance].is_alive:
        history.ec2.turn(instance, "terminated")
        history.emit(state(instance, history.now(), "shutting-down"))
        history.emit(state(instance, history.now(), "terminated"))


def _living(history: History) -> list[str]:
    """What EC2 may take: our own nodes, and those of people that work for the run."""
    slots = history.world.slots(RUN)
    placed = {one for slot in slots for one in (slot.holder_instance, slot.successor_instance)}
    return [one.instance for one in history.ec2.alive() if not is_by_hand(one) or one.instance in placed]


def _lose(history: History, instance: str) -> None:
    if instance in history.lost:
        return
    history.lost.add(instance)
    chance, life = history.chance, history.nodes.life(instance)
    history.faults["node lost while it boots or prepares"] += not life.generation
    if chance.random() < history.weather.notice_share:
        _notice(history, instance)
        return
    kinds = ["dies", "freezes", "fails"] if history.weather.slots == 1 else ["dies", "freezes"]
    match chance.choice(kinds):
        case "freezes":
            history.faults["node freezes"] += 1
            life.frozen = True
            if history.weather.wakes:
                history.at(history.now() + chance.uniform(30, 400), lambda: _wake(history, instance))
        case "fails":
            history.faults["trainer fails"] += 1
            life.failing = True
        case _:
            history.faults["node dies without notice"] += 1
            end(history, instance)


def _wake(history: History, instance: str) -> None:
    life = history.nodes.life(instance)
    if life.frozen and history.ec2.instances[instance].is_alive:
        life.frozen, life.woke, life.woke_at = False, True, history.now()
        history.faults["old node wakes up"] += 1


def _notice(history: History, instance: str) -> None:
    chance, now = history.chance, history.now()
    action = "terminate" if chance.random() >= history.weather.comebacks else chance.choice(["stop", "hibernate"])
    history.faults[f"interruption notice: {action}"] += 1
    life = history.nodes.life(instance)
    life.notice_until = life.ends_by = now + NOTICE_S
    history.emit(notice(instance, now, action))
    after_s = chance.uniform(0, 5) if action == "hibernate" else chance.uniform(30, 120)
    if action == "terminate":
        history.at(now + after_s, lambda: end(history, instance))
    else:
        history.at(now + after_s, lambda: _stop(history, instance, action))


def _stop(history: History, instance: str, action: str) -> None:
    """The instance stops; minutes later EC2 has capacity again and starts it, with its disk and maybe its memory."""
    if not history.ec2.instances[instance].is_alive:
        return
    history.ec2.turn(instance, "stopped")
    history.nodes.life(instance).ends_by = 0.0  # what it had to save is over
    history.nodes.life(instance).frozen = True
    history.emit(state(instance, history.now(), "stopping"))
    history.emit(state(instance, history.now(), "stopped"))
    history.at(history.now() + history.chance.uniform(20, 500), lambda: _start(history, instance, action))


def _start(history: History, instance: str, action: str) -> None:
    if history.ec2.instances[instance].state != "stopped":
        return
    history.faults[f"old node comes back after {action}"] += 1
    life, booting_s = history.nodes.life(instance), history.chance.uniform(5, 40)
    if action == "stop":
        life.forgets(history.now(), booting_s)
    life.woke = action == "hibernate"
    life.frozen, life.notice_until, life.boots_at = False, None, history.now() + booting_s
    history.ec2.turn(instance, "pending")


# --------------------------------------------------------------------------------------------------------------- AWS
def ssm_refusal(history: History) -> str:
    """The code with which SSM refuses the next command."""
    if history.quiet or history.chance.random() >= history.weather.ssm_refuses:
        return ""
    code = history.chance.choice(SSM_CODES)
    history.faults[f"SSM refuses: {code}"] += 1
    return code


def sqs_refusal(history: History) -> bool:
    """Whether SQS refuses the sweep's next batch."""
    refuses = not history.quiet and history.chance.random() < history.weather.sqs_refuses
    history.faults["SQS refuses the sweep"] += refuses
    return refuses


def outage(history: History) -> None:
    """DynamoDB answers nobody."""
    history.faults["table out"] += 1
    history.out_until = history.now() + history.weather.outage_s


def beats_out(history: History) -> None:
    """No beat arrives. When all have joined: nodes that have not beaten yet cannot be counted as silent."""
    if any(slot.successor_instance for slot in history.world.slots(RUN)):
        if not history.quiet:
            history.at(history.now() + 10, lambda: beats_out(history))
        return

    def back() -> None:
        history.nodes.out = False

    history.faults["all nodes silent at once"] += 1
    history.nodes.out = True
    history.at(history.now() + history.weather.beats_out_s, back)


def dry(history: History) -> None:
    """For minutes some pools have nothing left, or next to nothing: capacity or quota."""
    chance, ec2 = history.chance, history.ec2
    code = chance.choice(DRY)
    history.faults[f"dry phase: {code}"] += 1
    touched = chance.sample(POOLS, chance.randint(2, len(POOLS)))
    names = [f"{pool}#{market}" for pool in touched for market in ("spot", "on-demand")]
    for name in names:
        if history.weather.room and code == DRY[0]:
            ec2.room[name] = history.weather.room
        else:
            ec2.refused.setdefault(name, code)

    def over() -> None:
        for name in names:
            ec2.room.pop(name, None)
            if ec2.refused.get(name) == code:
                del ec2.refused[name]

    history.at(history.now() + chance.uniform(60, 400), over)


def _throttle(operation: str, history: History) -> None:
    history.faults[f"throttled: {operation}"] += 1
    history.ec2.fail(operation, "RequestLimitExceeded")


# ------------------------------------------------------------------------------------------------------------ people
def pause(history: History) -> None:
    """A person pauses the run, and resumes it some minutes later."""
    if history.world.head(RUN).status is not RunStatus.ACTIVE:
        return
    history.faults["run paused by a person"] += 1
    history.world.pause(RUN)
    history.at(history.now() + history.chance.uniform(30, 700), lambda: resume(history))


def resume(history: History) -> None:
    """A person resumes what is paused or blocked."""
    head: Any = history.world.head(RUN)
    if head.status in (RunStatus.PAUSED, RunStatus.BLOCKED):
        history.faults["run resumed by a person"] += 1
        history.resumed_at, history.watch.recoveries = history.now(), 0  # budgets begin anew
        history.world.stores.heads.move(head, RunStatus.ACTIVE, now=int(history.now()))
        history.world.stores.live.hasten(RUN, due_at=int(history.now()))
