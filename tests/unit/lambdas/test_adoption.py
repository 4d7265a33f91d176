"""Hand-tagged instances: adopted into a free slot, let go when their tag goes, never ended; nodes that come back."""

from __future__ import annotations

from typing import Any

import pytest

from lambdas.decisions import adoption
from lambdas.decisions.facts import Facts
from spotproof.contract import keys, tags
from spotproof.contract.history import HistoryKind
from spotproof.contract.items import NO_INSTANCE, Node
from spotproof.contract.metrics import Metric
from spotproof.contract.orders import slots_of
from spotproof.contract.runspec import Signals
from spotproof.contract.states import Cause, FlushOutcome, NodePhase, RunStatus
from spotproof.store.table import Update
from tests.fakes.control import REGION, STACK, World, advice, event, notice, state

MINE = "i-0ffffffffffffff01"
BY_HAND = {tags.STACK: STACK, tags.RUN: "mini"}


def tagged(instance: str, at: float, *changed: str) -> dict[str, Any]:
    made = event("Tag Change on Resource", instance=instance, at=at)
    detail = {"changed-tag-keys": list(changed or (tags.RUN,)), "service": "ec2", "resource-type": "instance"}
    arn = f"arn:aws:ec2:us-east-1:111122223333:instance/{instance}"
    return {**made, "source": "aws.tag", "resources": [arn], "detail": detail}


def full(world: World) -> None:
    """EC2 has nothing left: claims stay open."""
    world.ec2.refused = {
        f"{kind}#{zone}#spot": "InsufficientInstanceCapacity"
        for kind in ("g5.xlarge", "g6.xlarge")
        for zone in ("us-east-1a", "us-east-1b", "us-east-1c")
    }


def waiting_run(world: World, **fields: Any) -> None:
    """A run whose slot is claimed and that nobody can launch for."""
    full(world)
    world.submit(**fields)
    world.tick()
    assert world.slot().successor_instance == NO_INSTANCE


def adopted(world: World) -> str:
    """A run that a hand-tagged instance has joined."""
    world.submit()
    world.ec2.tag(MINE, tags=dict(BY_HAND))
    world.deliver(tagged(MINE, world.clock()))
    world.join()
    world.tick()
    assert world.slot().holder_instance == MINE
    return MINE


def test_a_tagged_instance_is_given_the_open_claim() -> None:
    world = World()
    waiting_run(world)
    world.ec2.tag(MINE, tags=dict(BY_HAND))
    assert world.deliver(tagged(MINE, world.clock())) == {}
    slot, member = world.slot(), world.member(MINE)
    assert slot.successor_instance == MINE
    assert (member.slot, member.incarnation, member.launch) == (0, slot.incarnation, None)
    assert (member.instance_type, member.zone) == ("g5.xlarge", "us-east-1a")
    assert (HistoryKind.ADOPTED in world.words(), world.meter.total(Metric.ADOPTED)) == (True, 1)
    world.deliver(tagged(MINE, world.clock()))
    assert (world.slot(), world.meter.total(Metric.ADOPTED)) == (slot, 1)


def test_a_place_that_nobody_claims_is_claimed_for_it() -> None:
    world = World()
    world.submit()
    world.ec2.tag(MINE, tags=dict(BY_HAND))
    world.deliver(tagged(MINE, world.clock()))
    slot = world.slot()
    assert (slot.successor_instance, slot.cause, world.ec2.count("create_fleet")) == (MINE, Cause.USER, 0)
    world.tick()
    assert (world.slot(), world.ec2.count("create_fleet")) == (slot, 0)


def test_what_is_tagged_before_the_run_is_submitted_comes_before_a_launch() -> None:
    world = World()
    world.ec2.tag(MINE, tags=dict(BY_HAND))
    world.deliver(tagged(MINE, world.clock()))
    assert (world.slots(), world.told()[-1].detail) == (
        (),
        "no place: the run has no spec: flush and notification only",
    )
    world.submit()
    world.tick()
    assert (world.slot().successor_instance, world.ec2.count("create_fleet")) == (MINE, 0)


def test_the_sweep_finds_what_no_event_told() -> None:
    world = World()
    waiting_run(world)
    world.ec2.tag(MINE, tags=dict(BY_HAND))
    world.tick()
    assert (world.slot().successor_instance, world.member(MINE).slot) == (MINE, 0)


@pytest.mark.parametrize("moment", ["entered", "bound"])
def test_the_sweep_finishes_an_adoption_that_was_cut_off(moment: str) -> None:
    world = World()
    waiting_run(world)
    world.ec2.tag(MINE, tags=dict(BY_HAND))
    world.deliver(tagged(MINE, world.clock()))
    slot = world.slot()
    if moment == "entered":
        world.table.write(Update(key=keys.slot("mini", 0), set={"successor_instance": NO_INSTANCE}))
    world.tick()
    assert (world.slot().successor_instance, world.slot().incarnation) == (MINE, slot.incarnation)


def test_a_look_that_read_the_slots_before_the_adoption_ends_no_entry() -> None:
    world = World()
    world.submit(slots=2)
    before = world.slots()
    world.ec2.tag(MINE, tags=dict(BY_HAND))
    world.deliver(tagged(MINE, world.clock()))
    member = world.member(MINE)
    seen = Facts(
        run="mini",
        stack=STACK,
        region=REGION,
        now=int(world.clock()),
        head=world.head(),
        spec=world.stores.specs.read("mini"),
        slots=before,
        machines=world.control._reader.machines.of_run(STACK, "mini"),
        members=(member,),
    )
    world.control._apply(adoption.by_look(seen, {slot.slot: slot for slot in before}))
    assert world.member(MINE).ended_at is None


def test_an_instance_never_gets_two_places() -> None:
    world = World()
    waiting_run(world, slots=2)
    world.ec2.tag(MINE, tags=dict(BY_HAND))
    world.deliver(tagged(MINE, world.clock()), tagged(MINE, world.clock()))
    world.tick()
    assert [slot.successor_instance for slot in world.slots()].count(MINE) == 1


@pytest.mark.parametrize(
    ("why", "fields", "run_tag"),
    [
        ("another type", {"instance_type": "p5.48xlarge"}, "mini"),
        ("stopped", {"state": "stopped"}, "mini"),
        ("another stack", {"tags": {tags.STACK: "other", tags.RUN: "mini"}}, "mini"),
        ("no run", {"tags": {tags.STACK: STACK}}, ""),
        ("launched by us", {"tags": {**BY_HAND, tags.LAUNCH: "9"}}, "mini"),
    ],
)
def test_what_does_not_fit_is_not_adopted(why: str, fields: dict[str, Any], run_tag: str) -> None:
    world = World()
    waiting_run(world)
    one = world.ec2.tag(MINE, **{"tags": dict(BY_HAND), **{k: v for k, v in fields.items() if k != "state"}})
    one.state = fields.get("state", "running")
    world.deliver(tagged(MINE, world.clock()))
    assert world.slot().successor_instance == NO_INSTANCE, why
    assert (world.stores.members.read(MINE), world.ec2.terminated) == (None, [])
    assert run_tag in ("mini", "")


def test_people_hear_of_an_instance_that_has_no_place() -> None:
    world = World()
    [holder] = world.started()
    world.ec2.tag(MINE, tags=dict(BY_HAND))
    world.deliver(tagged(MINE, world.clock()))
    [said] = world.sns.said
    assert (MINE in said["Subject"], "no free slot" in said["Message"]) == (True, True)
    for _ in range(3):
        world.beat("mini", holder)
        world.tick()
    assert len(world.sns.said) == 1
    assert world.slot().holder_instance == holder


def test_a_prewarmed_claim_is_no_free_slot() -> None:
    world = World()
    [holder] = world.started(signals=Signals(prewarm=True))
    full(world)
    world.beat("mini", holder)
    world.deliver(advice(holder, world.clock()))
    assert world.slot().successor_instance == NO_INSTANCE
    world.ec2.tag(MINE, tags=dict(BY_HAND))
    world.deliver(tagged(MINE, world.clock()))
    assert world.slot().successor_instance == NO_INSTANCE


def test_tags_are_read_from_ec2_and_not_from_the_event() -> None:
    world = World()
    waiting_run(world)
    world.ec2.tag(MINE, tags={"Name": "mine"})
    world.deliver(tagged(MINE, world.clock()))
    assert world.slot().successor_instance == NO_INSTANCE
    assert world.meter.total(Metric.IGNORED) == 1


def test_other_tags_cost_no_call() -> None:
    world = World()
    before = len(world.ec2.calls)
    world.deliver(tagged(MINE, world.clock(), "Name", "team"))
    world.deliver(tagged(MINE, world.clock() + 1, *tags.ALL))  # a launch of ours
    assert (len(world.ec2.calls), world.meter.total(Metric.IGNORED)) == (before, 2)


def test_an_interrupted_adopted_node_is_replaced_like_any_other() -> None:
    world = World()
    adopted(world)
    world.deliver(notice(MINE, world.clock()))
    assert world.slot().successor_instance not in (None, NO_INSTANCE, MINE)


def test_one_whose_agent_never_beats_is_replaced_and_left_running() -> None:
    world = World()
    world.submit()
    world.ec2.tag(MINE, tags=dict(BY_HAND))
    world.deliver(tagged(MINE, world.clock()))
    world.clock.advance(601)
    world.tick()
    assert world.slot().successor_instance not in (None, NO_INSTANCE, MINE)
    assert MINE not in world.ec2.terminated
    assert [MINE in said["Subject"] for said in world.sns.said] == [True]
    successor = world.slot().successor_instance
    for _ in range(2):
        world.tick()
    assert world.slot().successor_instance == successor, "it is not adopted again"


def test_untagging_saves_replaces_and_never_ends() -> None:
    world = World()
    adopted(world)
    del world.ec2.instances[MINE].tags[tags.RUN]
    untagged = tagged(MINE, world.clock())
    world.deliver(untagged)
    slot = world.slot()
    assert (slot.cause, slot.holder_instance) == (Cause.USER, MINE)
    assert slot.successor_instance not in (None, NO_INSTANCE, MINE)
    assert slots_of(world.head().order_leavers or "0") == frozenset({0})
    assert world.member(MINE).ended_at is not None
    assert len([said for said in world.sns.said if "released" in said["Subject"]]) == 1
    world.deliver(untagged)
    assert len([said for said in world.sns.said if "released" in said["Subject"]]) == 1
    world.boot()
    world.stores.nodes.beat(_flushed(world))
    world.join()
    world.tick()
    world.clock.advance(1200)
    world.tick()
    assert world.slot().holder_instance == slot.successor_instance
    assert MINE not in world.ec2.terminated


def test_a_word_of_tags_that_comes_minutes_late_leaves_the_node_its_time_to_save() -> None:
    world = World()
    adopted(world)
    del world.ec2.instances[MINE].tags[tags.RUN]
    heard_late = tagged(MINE, world.clock() - 210)
    world.deliver(heard_late)
    deadline_at = int(world.clock()) + 120
    assert (world.slot().deadline_at, world.head().order_deadline_at) == (deadline_at, deadline_at)
    assert slots_of(world.head().order_leavers or "0") == frozenset({0})


def _flushed(world: World) -> Node:
    return Node(
        run="mini",
        slot=0,
        incarnation=world.slot().holder_incarnation or 0,
        instance=MINE,
        phase=NodePhase.DRAINING,
        beat_at=int(world.clock()),
        flush=FlushOutcome.COMMITTED,
    )


def test_a_look_goes_on_while_the_place_of_an_untagged_node_is_open() -> None:
    world = World()
    [a, b] = world.started(slots=2)
    full(world)
    world.ec2.instances[a].launched_at -= 3600
    world.ec2.instances[a].tags.clear()
    world.beat_all()
    world.tick()
    assert world.slot(number=0).cause is Cause.USER
    world.ec2.instances[b].state = "terminated"
    world.tick()
    assert world.slot(number=1).cause is Cause.DISAPPEARED


def test_what_was_let_go_can_be_tagged_again() -> None:
    world = World()
    adopted(world)
    full(world)
    del world.ec2.instances[MINE].tags[tags.RUN]
    world.deliver(tagged(MINE, world.clock()))
    first = world.slot()
    assert first.successor_instance == NO_INSTANCE
    world.ec2.instances[MINE].tags[tags.RUN] = "mini"
    world.deliver(tagged(MINE, world.clock()))
    assert (world.slot().successor_instance, world.member(MINE).incarnation) == (MINE, first.incarnation)


@pytest.mark.parametrize("told", ["by an event", "by nobody"])
def test_an_instance_that_is_tagged_for_another_run_is_saved_there_and_adopted_here(told: str) -> None:
    world = World()
    adopted(world)
    full(world)
    world.submit("other")
    world.tick()
    world.ec2.instances[MINE].tags[tags.RUN] = "other"
    if told == "by an event":
        world.deliver(tagged(MINE, world.clock()))
    world.tick()
    assert world.slot("mini").cause is Cause.USER
    assert slots_of(world.head("mini").order_leavers or "0") == frozenset({0})
    world.tick()
    assert (world.slot("other").successor_instance, world.member(MINE).run) == (MINE, "other")


def test_tags_of_a_launch_that_are_visible_late_release_nothing() -> None:
    world = World()
    [holder] = world.started()
    launched = world.ec2.instances[holder]
    launched.launched_at = world.clock() - 5
    kept, launched.tags = launched.tags, {}
    world.deliver(tagged(holder, world.clock()))
    assert (world.slot().successor_instance, world.slot().holder_instance) == (None, holder)
    launched.tags = kept
    world.deliver(tagged(holder, world.clock()))
    assert world.slot().successor_instance is None


def test_an_instance_that_ec2_does_not_show_is_left_to_the_sweep() -> None:
    world = World()
    adopted(world)
    world.ec2.invisible_s = 10**9
    world.deliver(tagged(MINE, world.clock()))
    assert world.slot().successor_instance is None


def test_a_paused_run_adopts_nobody() -> None:
    world = World()
    waiting_run(world)
    world.pause("mini", RunStatus.PAUSED)
    world.ec2.tag(MINE, tags=dict(BY_HAND))
    world.deliver(tagged(MINE, world.clock()))
    assert world.slot().successor_instance == NO_INSTANCE
    assert "the run is paused" in world.sns.said[-1]["Message"]


# ----------------------------------------------------------------------------------------------------------- comebacks
def gone_on(world: World, lost: str) -> str:
    """The slot of a stopped node has a new holder."""
    world.deliver(notice(lost, world.clock(), "stop"))
    world.ec2.instances[lost].state = "stopped"
    world.deliver(state(lost, world.clock(), "stopped"))
    world.boot()
    world.join()
    world.tick()
    return str(world.slot().holder_instance)


def test_a_node_of_ours_that_comes_back_is_ended_when_its_slot_has_gone_on() -> None:
    world = World()
    [lost] = world.started()
    holder = gone_on(world, lost)
    world.ec2.instances[lost].state = "running"
    world.deliver(state(lost, world.clock(), "running"))
    assert (world.ec2.terminated, world.slot().holder_instance) == ([lost], holder)
    assert HistoryKind.COMEBACK in world.words()


def test_a_hand_tagged_node_that_comes_back_is_told_of_and_left_alone() -> None:
    world = World()
    adopted(world)
    holder = gone_on(world, MINE)
    world.ec2.instances[MINE].state = "running"
    world.deliver(state(MINE, world.clock(), "running"))
    world.clock.advance(1200)
    for _ in range(3):
        world.beat("mini", holder)
        world.tick()
    assert (MINE in world.ec2.terminated, world.slot().holder_instance) == (False, holder)
    assert [said["Subject"] for said in world.sns.said if "came back" in said["Subject"]] == [
        f"spotproof: {MINE} came back and has no place"
    ]


def test_a_hand_tagged_node_that_comes_back_gets_the_next_free_place() -> None:
    world = World()
    adopted(world)
    holder = gone_on(world, MINE)
    world.ec2.instances[MINE].state = "running"
    back = state(MINE, world.clock(), "running")
    world.deliver(back)
    world.deliver(back)
    full(world)
    world.ec2.instances[holder].state = "terminated"
    for _ in range(2):
        world.tick()
    slot = world.slot()
    assert (slot.successor_instance, world.member(MINE).incarnation) == (MINE, slot.incarnation)
    assert world.member(MINE).ended_at is None
    assert len([said for said in world.sns.said if "came back" in said["Subject"]]) == 1


def test_a_node_that_comes_back_before_its_successor_is_still_the_holder() -> None:
    world = World()
    [lost] = world.started()
    full(world)
    world.deliver(notice(lost, world.clock(), "stop"))
    world.ec2.instances[lost].state = "running"
    world.deliver(state(lost, world.clock(), "running"))
    assert (world.ec2.terminated, world.slot().holder_instance) == ([], lost)


def test_a_node_that_boots_is_no_comeback() -> None:
    world = World()
    world.submit()
    world.tick()
    world.boot()
    [first] = world.ec2.alive()
    world.deliver(state(first.instance, world.clock(), "running"))
    assert (world.ec2.terminated, HistoryKind.BOOTED in world.words()) == ([], True)
