"""The idle month of the template: within its limit, itemised, and an error for what nobody has priced."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from cdk_app import idle_cost, prices
from cdk_app.idle_cost import FREE, IDLE_METRICS, LIMIT_USD, RULES, bill_of, lines_of, monthly_note
from cdk_app.prices import Price
from cdk_app.settings import parse
from spotproof.contract.names import FUNCTIONS, Function
from tests.synth.template import Assembly


def changed(assembly: Assembly, name: str, resource: dict[str, Any]) -> dict[str, Any]:
    template: dict[str, Any] = copy.deepcopy(assembly.document)
    template["Resources"][name] = resource
    return template


def test_an_idle_stack_costs_no_more_than_five_dollars_a_month(assembly: Assembly) -> None:
    bill = bill_of(assembly.document)
    assert bill.unknown == ()
    assert bill.usd() <= LIMIT_USD == 5.00
    assert 0 < bill.usd() < bill.list_usd()


def test_every_resource_is_in_the_bill(assembly: Assembly) -> None:
    bill = bill_of(assembly.document)
    counted = {item.resource for item in bill.items}
    called = set(assembly.of("AWS::Lambda::Function"))
    free = sum(count for count, _ in bill.free.values())
    gateways = [e for e in assembly.of("AWS::EC2::VPCEndpoint").values() if e["VpcEndpointType"] == "Gateway"]
    assert len(counted | called) + len(gateways) + free == len(assembly.resources())
    assert not set(RULES) & set(FREE)


@pytest.mark.parametrize("kind", ["AWS::EC2::Instance", "AWS::CloudWatch::CompositeAlarm", "Custom::Other"])
def test_a_type_that_nobody_has_priced_is_an_error(assembly: Assembly, kind: str, tmp_path: Path) -> None:
    template = changed(assembly, "New", {"Type": kind})
    bill = bill_of(template)
    assert bill.unknown == (f"{kind} New",)
    assert not bill.holds()
    assert any("its price is not known" in line for line in lines_of(bill))
    file = tmp_path / "template.json"
    file.write_text(json.dumps(template))
    assert idle_cost.main(["--template", str(file)]) == 1


def test_a_schedule_of_a_function_that_nobody_has_measured_is_an_error(
    assembly: Assembly, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repair = next(row.handler for row in FUNCTIONS if row.function is Function.REPAIR)
    (name,) = [n for n, one in assembly.of("AWS::Lambda::Function").items() if one["Handler"] == repair]
    schedule = {
        "Type": "AWS::Scheduler::Schedule",
        "Properties": {"ScheduleExpression": "rate(1 hour)", "Target": {"Arn": {"Fn::GetAtt": [name, "Arn"]}}},
    }
    file = tmp_path / "template.json"
    file.write_text(json.dumps(changed(assembly, "New", schedule)))
    assert idle_cost.main(["--template", str(file)]) == 1
    assert repair in capsys.readouterr().err


def test_what_is_too_dear_fails(assembly: Assembly, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "template.json"
    file.write_text(json.dumps(changed(assembly, "Way", {"Type": "AWS::EC2::NatGateway"})))
    assert idle_cost.main(["--template", str(file), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["usd"] > 30
    assert any(item["type"] == "AWS::EC2::NatGateway" for item in said["items"])


def test_the_shipped_stack_passes_and_says_its_two_sums(
    assembly: Assembly, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "template.json"
    file.write_text(json.dumps(assembly.document))
    assert idle_cost.main(["--template", str(file)]) == 0
    *_, list_price, sum_ = capsys.readouterr().out.splitlines()
    assert "allowances are used up" in list_price
    assert sum_.endswith("within 5.00")


def test_an_allowance_is_taken_once_however_many_resources_use_it() -> None:
    half = Price(usd=1.0, unit="thing", source="nowhere", free=1.0)
    items = tuple(
        idle_cost.Item(resource=str(number), type="T", what="things", quantity=0.75, price=half) for number in range(2)
    )
    bill = idle_cost.Bill(items=items, free={}, unknown=())
    assert bill.list_usd() == 1.5
    assert bill.usd() == 0.5


def test_a_large_dashboard_has_no_allowance() -> None:
    def shown(count: int) -> dict[str, Any]:
        body = json.dumps({"widgets": [{"properties": {"metrics": [["N", str(n)] for n in range(count)]}}]})
        return {"Resources": {"D": {"Type": "AWS::CloudWatch::Dashboard", "Properties": {"DashboardBody": body}}}}

    assert bill_of(shown(50)).usd() == 0
    assert bill_of(shown(51)).usd() == prices.LARGE_DASHBOARD.usd


def test_every_price_has_its_source() -> None:
    listed = [value for value in vars(prices).values() if isinstance(value, Price)]
    assert len(listed) > 10
    assert all(one.usd > 0 and one.source.startswith("aws.amazon.com/") and one.unit for one in listed)
    assert prices.AS_OF


def test_an_idle_sweep_measures_what_the_bill_says() -> None:
    from tests.fakes.control import World

    world = World()
    world.control.sweep()
    assert {metric for metric, _, _ in world.meter.seen} == set(IDLE_METRICS)


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({}, ""),
        ({"network": "nat", "nat_gateways": 2}, "2 NAT gateways, about $73 a month"),
        ({"network": "endpoints", "zones": 2}, "6 interface endpoints in 2 zones, about $88 a month"),
        ({"network": "endpoints", "zones": 1}, "6 interface endpoints in 1 zone, about $44 a month"),
    ],
)
def test_the_synthesis_says_what_the_network_costs(document: dict[str, Any], says: str) -> None:
    note = monthly_note(parse(document))
    assert says in note
    assert bool(note) == bool(says)
