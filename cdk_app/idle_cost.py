"""What a stack costs a month while nothing runs, itemised from its template: `make idle-cost`.

    settings file -> synthesis -> every resource of the template -> what it uses when idle -> price

A type of resource that is not known here is an error: nobody can deploy something whose price nobody has looked up.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cdk_app import prices, settings
from cdk_app.prices import Price
from spotproof.contract import limits, names
from spotproof.contract.metrics import Metric
from spotproof.errors import BadSettings

LIMIT_USD: Final = 5.00
MINUTES_A_MONTH: Final = prices.HOURS_A_MONTH * 60
SMALL_DASHBOARD: Final = 50
# An event source mapping of a standard queue polls with five pollers, each waiting 20 s for a message (Lambda Developer
# Guide, "Using Lambda with Amazon SQS").
POLLERS: Final = 5
POLLS_A_MINUTE: Final = 3
# What the sweep measures although nothing runs; a test compares.
IDLE_METRICS: Final = (Metric.RUNS_LIVE,)

Template = Mapping[str, Any]
Properties = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleCall:
    """What one scheduled call does while nothing runs: upper bounds."""

    seconds: float
    log_bytes: int
    reads: int = 0
    lists: int = 0  # of the bucket
    metrics: tuple[Metric, ...] = ()


IDLE_CALLS: Final[Mapping[names.Function, IdleCall]] = {
    # One short query per partition of the index, one after the other; three lines of Lambda's log and two of ours.
    names.Function.SWEEP: IdleCall(seconds=0.5, log_bytes=2_048, reads=limits.LIVE_SHARDS, metrics=IDLE_METRICS),
    # One listing of the runs' folders.
    names.Function.COLLECT: IdleCall(seconds=0.5, log_bytes=2_048, lists=1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Something that is used in an idle month, by one resource."""

    resource: str
    type: str
    what: str
    quantity: float
    price: Price

    @property
    def usd(self) -> float:
        """At the price of the list, nothing free."""
        return self.quantity * self.price.usd


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """The idle month. `free` counts, by type, the resources that cost nothing by themselves, with the reason."""

    items: tuple[Item, ...]
    free: Mapping[str, tuple[int, str]]
    unknown: tuple[str, ...]  # `type logical-id`

    def list_usd(self) -> float:
        """As if the account's free allowances were used up by something else."""
        return sum(item.usd for item in self.items)

    def usd(self) -> float:
        """After the allowances that every account has each month."""
        used: dict[Price, float] = {}
        for item in self.items:
            used[item.price] = used.get(item.price, 0.0) + item.quantity
        return sum(max(0.0, quantity - price.free) * price.usd for price, quantity in used.items())

    def holds(self) -> bool:
        """Whether everything is known and the month is within the limit."""
        return not self.unknown and self.usd() <= LIMIT_USD


Rule = Callable[[str, Properties, Template], Iterable[tuple[str, float, Price]]]

FREE: Final[Mapping[str, str]] = {
    "AWS::DynamoDB::Table": "on demand: nothing is read or written but by the sweep; storage and recovery cost by GB",
    "AWS::EC2::InternetGateway": "free",
    "AWS::EC2::LaunchTemplate": "free",
    "AWS::EC2::Route": "free",
    "AWS::EC2::RouteTable": "free",
    "AWS::EC2::SecurityGroup": "free",
    "AWS::EC2::SecurityGroupEgress": "free",
    "AWS::EC2::SecurityGroupIngress": "free",
    "AWS::EC2::Subnet": "free",
    "AWS::EC2::SubnetRouteTableAssociation": "free",
    "AWS::EC2::VPC": "free",
    "AWS::EC2::VPCGatewayAttachment": "free",
    "AWS::Events::Rule": "events of AWS services are free; our own cost when a drill is sent",
    "AWS::FIS::ExperimentTemplate": "costs by the minute that an experiment runs",
    "AWS::IAM::InstanceProfile": "free",
    "AWS::IAM::Role": "free",
    "AWS::IAM::ServiceLinkedRole": "free",
    "AWS::Lambda::EventInvokeConfig": "free",
    "AWS::Lambda::Permission": "free",
    "AWS::Logs::LogGroup": "costs by what is written: see the sweep",
    "AWS::S3::Bucket": "costs by what is stored",
    "AWS::S3::BucketPolicy": "free",
    "AWS::SNS::Subscription": "costs by what is said",
    "AWS::SNS::Topic": "costs by what is said",
    "AWS::SNS::TopicPolicy": "free",
    "AWS::SQS::Queue": "costs by request: see the event source mappings",
    "AWS::SQS::QueuePolicy": "free",
    "AWS::SSM::Document": "free",
    names.GUARD_RESOURCE: "asked when the stack is made or destroyed",
}


def _alarm(_: str, properties: Properties, __: Template) -> Iterator[tuple[str, float, Price]]:
    """A metric alarm costs by the metrics that it looks at."""
    metrics = [one for one in properties.get("Metrics", []) if "MetricStat" in one]
    yield "metrics that it watches", max(1, len(metrics)), prices.ALARM


def _dashboard(_: str, properties: Properties, __: Template) -> Iterator[tuple[str, float, Price]]:
    count = _metrics_shown(properties["DashboardBody"])
    price = prices.DASHBOARD if count <= SMALL_DASHBOARD else prices.LARGE_DASHBOARD
    yield f"dashboard ({count} metrics)", 1, price


def _metrics_shown(body: Any) -> int:
    """Metrics that the dashboard's widgets name. References in the text are put in as words: only the shape counts."""
    text = body if isinstance(body, str) else "".join(p if isinstance(p, str) else "x" for p in body["Fn::Join"][1])
    widgets = json.loads(text)["widgets"]
    return sum(len(widget.get("properties", {}).get("metrics", [])) for widget in widgets)


def _mapping(_: str, __: Properties, ___: Template) -> Iterator[tuple[str, float, Price]]:
    yield "polls of its queue", POLLERS * POLLS_A_MINUTE * MINUTES_A_MONTH, prices.QUEUE_REQUEST


def _schedule(_: str, properties: Properties, template: Template) -> Iterator[tuple[str, float, Price]]:
    """The ticks, and what each of them starts."""
    ticks = MINUTES_A_MONTH / _minutes(properties["ScheduleExpression"])
    function = template["Resources"][properties["Target"]["Arn"]["Fn::GetAtt"][0]]["Properties"]
    name, call = _idle_call(function["Handler"])
    gib = int(function["MemorySize"]) / 1024
    yield f"ticks of {name}", ticks, prices.TICK
    yield f"calls of {name}", ticks, prices.INVOCATION
    yield f"{call.seconds:g} s in {gib:g} GiB for each", ticks * call.seconds * gib, prices.GIB_SECOND
    yield "its log", ticks * call.log_bytes / 2**30, prices.LOG_GIB
    if call.reads:
        yield f"{call.reads} reads of the index for each", ticks * call.reads, prices.READ_UNIT
    if call.lists:
        yield "listings of the bucket", ticks * call.lists, prices.LIST_REQUEST
    if call.metrics:
        yield f"its metrics ({', '.join(call.metrics)})", len(call.metrics), prices.METRIC


def _idle_call(handler: str) -> tuple[str, IdleCall]:
    for row in names.FUNCTIONS:
        if row.handler == handler and row.function in IDLE_CALLS:
            return row.function.value, IDLE_CALLS[row.function]
    raise BadSettings(f"nobody has said what a tick of {handler} costs", next_step="add it to IDLE_CALLS in this file")


def _minutes(expression: str) -> float:
    found = re.fullmatch(r"rate\((\d+) (minute|hour|day)s?\)", expression)
    if found is None:
        raise BadSettings(f"the schedule {expression} is not a rate", next_step="teach cdk_app/idle_cost.py to read it")
    return int(found[1]) * {"minute": 1, "hour": 60, "day": 1440}[found[2]]


def _function(_: str, __: Properties, ___: Template) -> Iterator[tuple[str, float, Price]]:
    yield from ()  # costs when it is called: the sweep is counted at its schedule, the others have nothing to do


def _endpoint(_: str, properties: Properties, __: Template) -> Iterator[tuple[str, float, Price]]:
    """Gateways are free; an interface costs in each of its subnets."""
    if properties.get("VpcEndpointType") == "Interface":
        hours = len(properties["SubnetIds"]) * prices.HOURS_A_MONTH
        yield "hours of the interface endpoint in its zones", hours, prices.INTERFACE_HOUR


def _nat(_: str, __: Properties, ___: Template) -> Iterator[tuple[str, float, Price]]:
    yield "hours of the NAT gateway", prices.HOURS_A_MONTH, prices.NAT_HOUR


def _address(_: str, __: Properties, ___: Template) -> Iterator[tuple[str, float, Price]]:
    yield "hours of the address", prices.HOURS_A_MONTH, prices.ADDRESS_HOUR


def _key(_: str, __: Properties, ___: Template) -> Iterator[tuple[str, float, Price]]:
    yield "key", 1, prices.KEY


RULES: Final[Mapping[str, Rule]] = {
    "AWS::CloudWatch::Alarm": _alarm,
    "AWS::CloudWatch::Dashboard": _dashboard,
    "AWS::EC2::EIP": _address,
    "AWS::EC2::NatGateway": _nat,
    "AWS::EC2::VPCEndpoint": _endpoint,
    "AWS::KMS::Key": _key,
    "AWS::Lambda::EventSourceMapping": _mapping,
    "AWS::Lambda::Function": _function,
    "AWS::Scheduler::Schedule": _schedule,
}


def bill_of(template: Template) -> Bill:
    """The idle month of a template."""
    items: list[Item] = []
    free: dict[str, tuple[int, str]] = {}
    unknown: list[str] = []
    for name, resource in template["Resources"].items():
        kind = resource["Type"]
        rule = RULES.get(kind)
        if rule is not None:
            used = rule(name, resource.get("Properties", {}), template)
            items += [
                Item(resource=name, type=kind, what=what, quantity=quantity, price=price)
                for what, quantity, price in used
            ]
        elif kind in FREE:
            free[kind] = (free.get(kind, (0, ""))[0] + 1, FREE[kind])
        else:
            unknown.append(f"{kind} {name}")
    return Bill(items=tuple(items), free=free, unknown=tuple(unknown))


# ---------------------------------------------------------------------------------------------------- what is said
def document_of(bill: Bill) -> dict[str, Any]:
    """The bill as plain values."""
    return {
        "as_of": prices.AS_OF,
        "region": prices.REGION,
        "limit_usd": LIMIT_USD,
        "usd": round(bill.usd(), 2),
        "list_usd": round(bill.list_usd(), 2),
        "unknown": list(bill.unknown),
        "items": [
            {
                "type": item.type,
                "resource": item.resource,
                "what": item.what,
                "quantity": round(item.quantity, 3),
                "unit_usd": item.price.usd,
                "free_a_month": item.price.free,
                "usd": round(item.usd, 4),
                "source": item.price.source,
            }
            for item in bill.items
        ],
        "free": {kind: {"count": count, "because": why} for kind, (count, why) in bill.free.items()},
    }


def lines_of(bill: Bill) -> Iterator[str]:
    """The bill for people: resources of one type and use are one line."""
    yield f"An idle month of this stack in {prices.REGION}, prices of {prices.AS_OF}:"
    groups: dict[tuple[str, str, Price], list[Item]] = {}
    for item in bill.items:
        groups.setdefault((item.type, item.what, item.price), []).append(item)
    for (kind, what, price), of in groups.items():
        quantity, usd = sum(one.quantity for one in of), sum(one.usd for one in of)
        amount = f"{quantity:,.0f}" if quantity >= 1 else f"{quantity:.3f}"
        yield f"  {usd:8.3f}  {len(of):>2} x {kind}: {what}: {amount} at {price.usd:.10g} ({price.source})"
    for kind, (count, why) in sorted(bill.free.items()):
        yield f"  {0:8.3f}  {count:>2} x {kind}: {why}"
    for one in bill.unknown:
        yield f"         ?  {one}: its price is not known; say in cdk_app/idle_cost.py what it costs"
    yield f"  {bill.list_usd():8.2f}  if the account's monthly allowances are used up elsewhere"
    within = "within" if bill.usd() <= LIMIT_USD else "MORE THAN"
    yield f"  {bill.usd():8.2f}  a month after the allowances of every account: {within} {LIMIT_USD:.2f}"


def synthesized(path: Path) -> Template:
    """The template that the settings file makes. Raises BadSettings."""
    from cdk_app.app import build, new_app

    with tempfile.TemporaryDirectory() as folder:
        app = new_app(folder)
        stack = build(app, settings.load(path))
        app.synth()
        template: Template = json.loads((Path(folder) / stack.template_file).read_text(encoding="utf-8"))
    return template


def monthly_note(deployment: settings.StackSettings) -> str:
    """What the chosen network costs beside the idle stack, '' where it costs nothing: said at each synthesis."""
    from cdk_app.constructs.network import INTERFACES

    match deployment.network:
        case settings.Network.ENDPOINTS:
            zones = deployment.zone_count()
            usd = len(INTERFACES) * zones * prices.INTERFACE_MONTH_USD
            what = f"{len(INTERFACES)} interface endpoints in {zones} zone{'s' if zones > 1 else ''}"
        case settings.Network.NAT if not deployment.vpc_id:
            usd = deployment.gateway_count() * prices.NAT_MONTH_USD
            what = f"{deployment.gateway_count()} NAT gateway{'s' if deployment.gateway_count() > 1 else ''}"
        case _:
            return ""
    return f"network = {deployment.network.value}: {what}, about ${math.ceil(usd)} a month and a price per GB"


def main(arguments: list[str] | None = None) -> int:
    """0 when the idle month is known and within the limit."""
    parser = argparse.ArgumentParser(prog="idle-cost", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--settings", type=Path, default=Path(settings.FILE), help="the settings file")
    parser.add_argument("--template", type=Path, help="a synthesized template instead")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    given = parser.parse_args(arguments)
    try:
        template = json.loads(given.template.read_text(encoding="utf-8")) if given.template else None
        bill = bill_of(template or synthesized(given.settings))
    except (BadSettings, OSError, ValueError) as error:
        print(f"spotproof: {error}", file=sys.stderr)
        return 1
    print(json.dumps(document_of(bill), indent=2) if given.json else "\n".join(lines_of(bill)))
    return 0 if bill.holds() else 1


if __name__ == "__main__":
    sys.exit(main())
