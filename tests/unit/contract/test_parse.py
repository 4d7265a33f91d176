"""Events to messages, once, at the edge: every golden event, every lack, and everything that means nothing to us."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spotproof.contract.events import EVENTS, EventRow
from spotproof.contract.messages import (
    BlockExpiry,
    CommandResult,
    Drill,
    Ignored,
    Interruption,
    Rebalance,
    Repair,
    ScheduledChange,
    StateChange,
    TagChange,
)
from spotproof.contract.parse import parse, repair_body, unix_seconds
from spotproof.contract.states import InterruptionAction
from spotproof.errors import MalformedEvent

TESTS = Path(__file__).parents[2]
NOW = 1_777_889_000
INSTANCE = "i-0a1b2c3d4e5f60718"
AT = 1_777_888_803  # 2026-05-04T10:00:03Z


def golden(name: str) -> dict[str, Any]:
    return dict(json.loads((TESTS / "events" / f"{name}.json").read_text()))


def fixture(name: str) -> dict[str, Any]:
    return dict(json.loads((TESTS / "cases" / "fixtures" / f"{name}.json").read_text()))


def common(name: str, at: int = AT) -> dict[str, Any]:
    return {"event_id": golden(name)["id"], "region": "us-east-1", "account": "111122223333", "at": at}


def interruption(name: str, action: InterruptionAction, deadline_at: int = AT + 120) -> Interruption:
    return Interruption(**common(name), instance=INSTANCE, deadline_at=deadline_at, action=action)


def state(name: str) -> StateChange:
    return StateChange(**common(f"state-{name}"), instance=INSTANCE, state=name)


def block(name: str) -> BlockExpiry:
    # It ends at 11:30; EC2 begins to take instances 30 minutes earlier, at 11:00.
    deadline = unix_seconds("2026-05-04T11:00:00Z")
    at = unix_seconds("2026-05-04T10:50:00Z")
    return BlockExpiry(**common(name, at), reservation="cr-0123456789abcdef0", deadline_at=deadline)


EXPECTED = {
    "spot-interruption-terminate": interruption("spot-interruption-terminate", InterruptionAction.TERMINATE),
    "spot-interruption-stop": interruption("spot-interruption-stop", InterruptionAction.STOP),
    "spot-interruption-hibernate": interruption("spot-interruption-hibernate", InterruptionAction.HIBERNATE),
    "capacity-reservation-interruption": interruption(
        "capacity-reservation-interruption", InterruptionAction.TERMINATE
    ),
    "capacity-block-expiration": block("capacity-block-expiration"),
    "capacity-block-reservation-expiration": block("capacity-block-reservation-expiration"),
    "rebalance-recommendation": Rebalance(**common("rebalance-recommendation"), instance=INSTANCE),
    "rebalance-recommended": Rebalance(**common("rebalance-recommended"), instance=INSTANCE),
    "health-scheduled-change": ScheduledChange(
        **common("health-scheduled-change", unix_seconds("2026-05-04T06:00:11Z")),
        instances=(INSTANCE,),
        starts_at=unix_seconds("2026-05-18T06:00:00Z"),
        code="AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED",
    ),
    "state-pending": state("pending"),
    "state-running": state("running"),
    "state-stopping": state("stopping"),
    "state-stopped": state("stopped"),
    "state-shutting-down": state("shutting-down"),
    "state-terminated": state("terminated"),
    "tag-change": TagChange(**common("tag-change"), instance=INSTANCE, changed=("spotproof:run",)),
    "tag-removed": TagChange(**common("tag-removed"), instance=INSTANCE, changed=("spotproof:run",)),
    "ssm-invocation": CommandResult(
        **common("ssm-invocation", unix_seconds("2026-05-04T10:00:09Z")),
        instance=INSTANCE,
        command="0d1e2f30-1111-4222-8333-444455556666",
        document="demo-flush",
        status="Success",
    ),
    "drill": Drill(**common("drill"), instance=INSTANCE, notice_s=120),
}


def row_of_golden(name: str) -> EventRow:
    detail_type = golden(name)["detail-type"]
    return next(row for row in EVENTS if detail_type in row.detail_types)


def test_no_golden_event_is_left_out() -> None:
    assert set(EXPECTED) == {path.stem for path in (TESTS / "events").glob("*.json")}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_each_golden_event_becomes_its_message(name: str) -> None:
    assert parse(golden(name), received_at=NOW) == EXPECTED[name]


# --- cases ------------------------------------------------------------------------------------------------------------
def test_EV_01_the_arn_of_a_warning_is_never_needed() -> None:
    all_resources: list[object] = [fixture("spot-terminate")["resources"], [], None, 7]
    for resources in all_resources:
        parsed = parse({**fixture("spot-terminate"), "resources": resources}, received_at=NOW)
        assert isinstance(parsed, Interruption)
        assert (parsed.instance, parsed.region, parsed.action) == (INSTANCE, "us-east-1", "terminate")


@pytest.mark.parametrize(
    ("detail", "action"),
    [
        ({"instance-action": "terminate"}, InterruptionAction.TERMINATE),
        ({}, InterruptionAction.UNKNOWN),
        # The key of the metadata service means nothing here: a warning without its own key is still a warning.
        ({"action": "terminate"}, InterruptionAction.UNKNOWN),
        ({"instance-action": "retire"}, InterruptionAction.UNKNOWN),
        ({"instance-action": ["terminate"]}, InterruptionAction.UNKNOWN),
        ({"instance-action": None}, InterruptionAction.UNKNOWN),
    ],
)
def test_EV_03_a_warning_is_a_notice_whatever_it_names(detail: dict[str, Any], action: InterruptionAction) -> None:
    event = {**golden("spot-interruption-terminate"), "detail": {"instance-id": INSTANCE, **detail}}
    parsed = parse(event, received_at=NOW)
    assert isinstance(parsed, Interruption)
    assert (parsed.action, parsed.deadline_at) == (action, AT + 120)


LIFECYCLE_TEST = {
    "source": "aws.autoscaling",
    "detail-type": "EC2 Instance-terminate Lifecycle Action",
    "detail": {"Event": "autoscaling:TEST_NOTIFICATION"},
}


def test_EV_15_an_empty_time_is_the_time_of_receipt_and_unknown_input_raises_nothing() -> None:
    inputs: list[dict[str, Any]] = [
        {**fixture("spot-terminate"), "time": ""},
        {},
        {"detail-type": "Something New", "source": "aws.ec2", "detail": {}},
        LIFECYCLE_TEST,
    ]
    handled, *rest = [parse(event, received_at=NOW) for event in inputs]
    assert isinstance(handled, Interruption)
    assert (handled.at, handled.deadline_at) == (NOW, NOW + 120)
    assert [type(one) for one in rest] == [Ignored, Ignored, Ignored]


# --- unknown ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "event",
    [
        {"source": None, "detail-type": None},
        {"source": ["aws.ec2"], "detail-type": "EC2 Spot Instance Interruption Warning"},
        {"source": "aws.ec2", "detail-type": ["EC2 Spot Instance Interruption Warning"]},
        {"source": "evil.ec2", "detail-type": "EC2 Spot Instance Interruption Warning", "detail": {}},
        {"source": "aws.ec2", "detail-type": "ec2 spot instance interruption warning", "detail": {}},
        {"Records": []},
    ],
)
def test_what_nobody_asked_for_is_ignored_with_its_name(event: dict[str, Any]) -> None:
    parsed = parse({"id": "e-1", **event}, received_at=NOW)
    assert isinstance(parsed, Ignored)
    assert parsed.reason.startswith("unknown event")
    assert parsed.event_id == "e-1"


# --- malformed --------------------------------------------------------------------------------------------------------
def with_detail(name: str, **changes: object) -> dict[str, Any]:
    event = golden(name)
    event["detail"] = {
        **{key: value for key, value in event["detail"].items() if key not in changes},
        **{key: value for key, value in changes.items() if value is not ...},
    }
    return event


REQUIRED = {
    "spot-interruption-terminate": ("instance-id",),
    "capacity-reservation-interruption": ("instance-id",),
    "capacity-block-expiration": ("end-date", "capacity-reservation-id"),
    "rebalance-recommendation": ("instance-id",),
    "health-scheduled-change": ("affectedEntities", "startTime", "eventTypeCode"),
    "state-terminated": ("instance-id", "state"),
    "ssm-invocation": ("instance-id", "command-id", "document-name", "status"),
    "drill": ("instance-id",),
}


LACKS = [
    (name, field, value)
    for name, fields in REQUIRED.items()
    for field in fields
    for value in (..., None, "", 7, ["x"])
    if (field, value) != ("affectedEntities", ["x"])  # there a list belongs
]


@pytest.mark.parametrize(("name", "field", "value"), LACKS)
def test_a_known_event_without_what_it_must_have_raises_with_its_id(name: str, field: str, value: object) -> None:
    with pytest.raises(MalformedEvent, match=field) as caught:
        parse(with_detail(name, **{field: value}), received_at=NOW)
    assert caught.value.event_id == golden(name)["id"]
    assert caught.value.event_id in str(caught.value)


@pytest.mark.parametrize("instance", ["i-xyz", "none", "i-0a1b2c3d4e5f60718; reboot", "mi-0a1b2c3d4e5f60718"])
def test_an_instance_id_that_is_none_goes_no_further(instance: str) -> None:
    with pytest.raises(MalformedEvent, match="not an instance id"):
        parse(with_detail("spot-interruption-terminate", **{"instance-id": instance}), received_at=NOW)


@pytest.mark.parametrize("detail", [None, [], "text", 7])
def test_a_detail_that_is_no_object_is_malformed(detail: object) -> None:
    with pytest.raises(MalformedEvent, match="detail is not an object"):
        parse({**golden("spot-interruption-terminate"), "detail": detail}, received_at=NOW)


@pytest.mark.parametrize("time", ["yesterday", "2026-13-01T00:00:00Z", "12"])
def test_a_time_that_is_none_is_malformed(time: str) -> None:
    with pytest.raises(MalformedEvent, match="is not a time"):
        parse({**golden("spot-interruption-terminate"), "time": time}, received_at=NOW)


@pytest.mark.parametrize("notice", [0, -5, 1801, 10**12, "soon", True, 1.5])
def test_a_drill_needs_whole_seconds(notice: object) -> None:
    with pytest.raises(MalformedEvent, match="notice-s"):
        parse(with_detail("drill", **{"notice-s": notice}), received_at=NOW)


def test_a_drill_may_be_shorter_than_a_real_notice() -> None:
    parsed = parse(with_detail("drill", **{"notice-s": 20}), received_at=NOW)
    assert isinstance(parsed, Drill)
    assert parsed.notice_s == 20


# --- details ----------------------------------------------------------------------------------------------------------
def test_a_reservation_without_a_termination_time_gives_two_minutes() -> None:
    event = with_detail("capacity-reservation-interruption", **{"instance-termination-time": ...})
    parsed = parse(event, received_at=NOW)
    assert isinstance(parsed, Interruption)
    assert parsed.deadline_at == AT + 120


@pytest.mark.parametrize(
    "change", [{"service": "RDS"}, {"eventTypeCategory": "issue"}, {"eventTypeCategory": "accountNotification"}]
)
def test_health_events_of_others_mean_nothing(change: dict[str, object]) -> None:
    parsed = parse(with_detail("health-scheduled-change", **change), received_at=NOW)
    assert isinstance(parsed, Ignored)


def test_a_health_event_names_only_instances() -> None:
    entities = [{"entityValue": "vol-1"}, {"entityValue": INSTANCE}, "x", {}]
    event = with_detail("health-scheduled-change", affectedEntities=entities)
    parsed = parse(event, received_at=NOW)
    assert isinstance(parsed, ScheduledChange)
    assert parsed.instances == (INSTANCE,)


@pytest.mark.parametrize("resources", [[], None, 7, ["arn:aws:ec2:us-east-1:111122223333:volume/vol-1"], {}])
def test_a_tag_change_of_something_else_means_nothing(resources: object) -> None:
    event = {**golden("tag-change"), "resources": resources}
    assert isinstance(parse(event, received_at=NOW), Ignored)


def test_resources_may_be_one_text() -> None:
    event = {**golden("tag-change"), "resources": golden("tag-change")["resources"][0]}
    parsed = parse(event, received_at=NOW)
    assert isinstance(parsed, TagChange)
    assert parsed.instance == INSTANCE


def test_an_input_transformers_spelling_is_understood() -> None:
    event = golden("spot-interruption-terminate")
    event["detail_type"] = event.pop("detail-type")
    assert isinstance(parse(event, received_at=NOW), Interruption)


# --- repair -----------------------------------------------------------------------------------------------------------
def test_the_sweeps_word_reads_back() -> None:
    assert parse(json.loads(json.dumps(repair_body("night-run"))), received_at=NOW) == Repair(run="night-run")


@pytest.mark.parametrize("run", ["", "Night Run", None, 7, ["night-run"], "a#b"])
def test_a_repair_of_what_is_no_run_id_means_nothing(run: object) -> None:
    assert isinstance(parse({"repair": run}, received_at=NOW), Ignored)


@pytest.mark.parametrize(
    "text",
    [
        "2026-05-04T10:02:00Z",
        "2026-05-04T10:02:00+00:00",
        "2026-05-04T12:02:00+02:00",
        "2026-05-04T10:02:00",
        "2026-05-04T10:02:00.900Z",
        "Mon, 04 May 2026 10:02:00 GMT",
    ],
)
def test_all_these_are_one_moment(text: str) -> None:
    assert unix_seconds(text) == 1_777_888_920
