"""From a notice to CreateFleet, beside a bare boto3 CreateFleet to the same emulator; imports and the bundle's size.

    python benchmarks/hot_path.py [--check] [--samples 9]

An emulated account in processes of its own: AWS's own DynamoDB Local for the table, moto for everything else. Each
sample is one bare call, then one interruption warning, of a node that works and has committed, that goes the whole way
through the handler: `handed over` is the time until our CreateFleet has left. Both are warm. Shown beside it, judged by
nobody: `answered`, the time until EC2's answer is back, which is EC2's own and comes on top of ours whatever we do;
`handed over` where moto is the table too, which takes 3 ms to understand one update; and both where answers take as
long as we think AWS takes at least (5 ms for DynamoDB, a second for a fleet: assumed, not measured). Import cost is CPU
of a new process with all of its bytecode cached, each handler with the clients that it uses beside boto3 with the same
clients, in turn. Only ratios are quoted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from spotproof.cli import submit
from spotproof.contract.items import NO_INSTANCE, Generation, Node, PointerItem, pointer_rank
from spotproof.contract.runspec import Placement, Pools, RunSpec
from spotproof.contract.settings import ControlSettings
from spotproof.contract.states import NodePhase
from spotproof.store.clients import Clients
from spotproof.store.dynamo import DynamoTable
from spotproof.store.members import Memberships
from spotproof.store.nodes import Nodes
from spotproof.store.pointer import Pointers
from spotproof.store.slots import Slots
from tests.fakes.control import ACCOUNT, IMAGE, REGION, notice
from tests.fakes.dynamodb_local import NotHere, dynamodb_local

ROOT: Final = Path(__file__).resolve().parents[1]
MOST_OF_BARE, AIM_OF_BARE, MOST_OF_IMPORT, MOST_BYTES = 2.0, 1.3, 1.3, 1_500_000
TABLE_URL: Final = "AWS_ENDPOINT_URL_DYNAMODB"
HANDED_OVER: Final = "handed over, times bare"
WARM_UPS: Final = 3
SERVER: Final = """
import io, re, sys, time
sys.path.insert(0, {root!r})
import tests.fakes.moto_server as fake
takes_s, fleet_s, locked = {takes_s!r}, {fleet_s!r}, fake.behind_one_lock

def as_long_as_aws(app):
    inner = locked(app)
    def answer(environ, start):
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        scope = re.search("/([a-z0-9-]+)/aws4_request", environ.get("HTTP_AUTHORIZATION", ""))
        is_fleet = b"Action=CreateFleet" in body
        time.sleep(fleet_s if is_fleet else takes_s.get(scope.group(1) if scope else "", 0.0))
        return inner(environ, start)
    return answer

fake.behind_one_lock = as_long_as_aws
with fake.moto_server() as url:
    print(url, flush=True)
    sys.stdin.read()
"""
# What an answer takes on AWS, at least; the emulator's own time comes on top. An instant fleet takes longer than this.
TAKES_S: Final = {"dynamodb": 0.005, "ec2": 0.1, "ssm": 0.1, "sns": 0.02, "sqs": 0.01}
FLEET_S: Final = 1.0
# What each handler calls on its way; the clients of a notice, and those of the sweep.
HANDLERS: Final = {
    "interruption": ("dynamodb", "ec2", "ssm"),
    "signals": ("dynamodb", "ec2", "ssm"),
    "sweep": ("dynamodb", "sqs"),
    "repair": ("dynamodb", "ec2", "ssm", "s3"),
}
OURS: Final = """
import sys; sys.path.insert(0, {root!r})
import lambdas.handlers.{name}
from spotproof.store.clients import Clients
clients = Clients(region="us-east-1")
[clients.get(service) for service in {services!r}]
import time; print(time.process_time())
"""
BARE: Final = """
import boto3
[boto3.client(service, region_name="us-east-1") for service in {services!r}]
import time; print(time.process_time())
"""


@dataclass(slots=True)
class Stopwatch:
    """When this process's newest CreateFleet left it, and when its answer was back."""

    left_at: float = 0.0
    back_at: float = 0.0

    def watch(self, client: Any) -> None:
        client.meta.events.register("before-send.ec2.CreateFleet", self._left)
        client.meta.events.register("after-call.ec2.CreateFleet", self._back)

    def _left(self, **_: Any) -> None:
        self.left_at = time.perf_counter()

    def _back(self, **_: Any) -> None:
        self.back_at = time.perf_counter()


@dataclass(slots=True)
class Samples:
    """Seconds: the bare call, and ours from the message on."""

    bare: list[float] = field(default_factory=list)
    handed_over: list[float] = field(default_factory=list)
    answered: list[float] = field(default_factory=list)

    def ratio(self, ours: list[float]) -> float:
        """The median of the samples' own ratios."""
        return statistics.median(mine / other for mine, other in zip(ours, self.bare, strict=True))


@contextmanager
def emulator(*, as_aws: bool) -> Iterator[str]:
    """The endpoint of an emulated account that shares nothing with this process, and takes as long as AWS or not."""
    takes_s, fleet_s = (TAKES_S, FLEET_S) if as_aws else ({}, 0.0)
    script = SERVER.format(root=str(ROOT), takes_s=takes_s, fleet_s=fleet_s)
    server = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert server.stdin is not None
    try:
        yield server.stdout.readline().strip()
    finally:
        server.stdin.close()
        server.wait(timeout=20)
        server.stdout.close()


@contextmanager
def own_table(*, is_wanted: bool) -> Iterator[dict[str, str]]:
    """The setting of a table that is AWS's own emulator; {} where it cannot run, with a word, or is not wanted."""
    with ExitStack() as stack:
        found: dict[str, str] = {}
        if is_wanted:
            try:
                found = {TABLE_URL: stack.enter_context(dynamodb_local())}
            except NotHere as reason:
                print(f"{reason}; moto is the table")
        yield found


def measured(urls: Mapping[str, str], samples: int) -> Samples:
    """Bare and ours in turn."""
    credentials = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": REGION}
    os.environ.pop(TABLE_URL, None)
    os.environ.update({**urls, **credentials})
    import boto3

    from lambdas import wiring

    clients = Clients(region=REGION)
    settings, placement = account(clients)
    os.environ.update(settings.to_env())
    for handler in wiring.logger.handlers:
        handler.stream = StringIO()  # type: ignore[attr-defined] #  # written as always, and not onto this terminal
    control, watch = wiring.control(), Stopwatch()
    watch.watch(wired_ec2(control))
    bare = boto3.client("ec2", region_name=REGION)
    table, found = DynamoTable(clients.dynamodb, settings.table), Samples()
    for number in range(samples + WARM_UPS):
        lost, run = begun(control, table, placement)
        request = last_request(table, run)
        began_at = time.perf_counter()
        bare.create_fleet(ClientToken=uuid.uuid4().hex, **request)
        bare_s = time.perf_counter() - began_at
        body = json.dumps(notice(lost, time.time()))
        began_at = time.perf_counter()
        with redirect_stdout(StringIO()):
            failures = control.handle({"m": body}, until=time.time() + 60)
        slot = Slots(table).read(run, 0)
        assert failures == {}
        assert slot is not None
        assert slot.successor_instance not in (None, NO_INSTANCE), "the notice has launched its replacement"
        if number >= WARM_UPS:
            found.bare.append(bare_s)
            found.handed_over.append(watch.left_at - began_at)
            found.answered.append(watch.back_at - began_at)
    return found


def wired_ec2(control: Any) -> Any:
    """The client with which the handler makes fleets."""
    lazy = control._parts.effects.fleet._client  # noqa: SLF001 - a stopwatch at the handler's own client
    return lazy._clients.get(lazy._service)  # noqa: SLF001


def account(clients: Clients) -> tuple[ControlSettings, Placement]:
    """What a deployment makes, as far as this path needs it."""
    name = f"hot-{uuid.uuid4().hex[:8]}"
    kinds = [{"AttributeName": one, "AttributeType": "S"} for one in ("pk", "sk")]
    keys = [{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}]
    clients.dynamodb.create_table(
        TableName=name, KeySchema=keys, AttributeDefinitions=kinds, BillingMode="PAY_PER_REQUEST"
    )
    settings = ControlSettings(
        stack=name,
        table=name,
        bucket=name,
        region=REGION,
        account=ACCOUNT,
        document="flush",
        document_version="1",
        topic=clients.sns.create_topic(Name=name)["TopicArn"],
        repair_queue=clients.sqs.create_queue(QueueName=name)["QueueUrl"],
        launches_per_hour=100_000,
    )
    vpc = clients.ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnets = {}
    for number, zone in enumerate(("a", "b", "c")):
        made = clients.ec2.create_subnet(VpcId=vpc, CidrBlock=f"10.0.{number}.0/24", AvailabilityZone=f"{REGION}{zone}")
        subnets[made["Subnet"]["SubnetId"]] = f"{REGION}{zone}"
    image = clients.ec2.describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
    template = clients.ec2.create_launch_template(LaunchTemplateName=name, LaunchTemplateData={"ImageId": image})
    return settings, Placement(
        template=template["LaunchTemplate"]["LaunchTemplateId"],
        template_version="1",
        subnets=tuple(f"{subnet}={zone}" for subnet, zone in subnets.items()),
    )


def begun(control: Any, table: DynamoTable, placement: Placement) -> tuple[str, str]:
    """A run whose node works and has committed; returns instance and run."""
    run = f"run-{uuid.uuid4().hex[:8]}"
    pools = Pools(types=("g5.xlarge", "g6.xlarge"))
    spec = RunSpec(run=run, image=IMAGE, command=("c",), pools=pools, placement=placement)
    submit.write(spec, table, now=int(time.time()))
    with redirect_stdout(StringIO()):
        assert control.handle({"m": json.dumps({"repair": run})}, until=time.time() + 60) == {}
    slot = Slots(table).read(run, 0)
    assert slot is not None
    instance, now = str(slot.successor_instance), int(time.time())
    member = f"0:1:{instance}"
    Memberships(table).seal(Generation(run=run, generation=1, members=(member,), sealed_at=now), pointer=None)
    Slots(table).promote(run, 0, 1, instance=instance)
    beat = Node(run=run, slot=0, incarnation=1, instance=instance, phase=NodePhase.TRAINING, beat_at=now, step=100)
    Nodes(table).beat(beat)
    committed = PointerItem(
        run=run,
        generation=1,
        step=100,
        rank=pointer_rank(1, 100),
        manifest_key="runs/run/checkpoints/00000001-000000000100/manifest.json",
        manifest_digest="0" * 64,
        committed_at=now,
    )
    Pointers(table).rise(committed, own_generation=1)
    return instance, run


def last_request(table: DynamoTable, run: str) -> dict[str, Any]:
    """The request that the run's own launch made: the bare call asks for the same."""
    from spotproof.store.launches import Launches

    request: dict[str, Any] = json.loads(Launches(table).recent(run)[-1].request)
    return request


def samples_of(samples: int, *, as_aws: bool, local_table: bool = False) -> Samples:
    """Measured on a fresh emulator."""
    from lambdas import wiring

    wiring.control.cache_clear()
    with emulator(as_aws=as_aws) as url, own_table(is_wanted=local_table) as table:
        return measured({"AWS_ENDPOINT_URL": url, **table}, samples)


def imports(samples: int) -> dict[str, float]:
    """For each handler: CPU of importing it and making its clients, over boto3 with the same clients."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as cache:
        for name, services in HANDLERS.items():
            ours, bare = OURS.format(root=str(ROOT), name=name, services=services), BARE.format(services=services)
            cpu_s(ours, cache), cpu_s(bare, cache)  # fills the cache
            ratios = [cpu_s(ours, cache) / cpu_s(bare, cache) for _ in range(samples)]
            found[name] = statistics.median(ratios)
    return found


def cpu_s(script: str, cache: str) -> float:
    """CPU seconds of a new process that runs the script with the bytecode in `cache`."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = cache
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    return float(done.stdout)


def bundle_bytes() -> int | None:
    """The functions' zip; None where the wheel cache has not been made."""
    from cdk_app import bundling

    if not list(bundling.WHEELS.glob("*.whl")):
        return None
    with tempfile.TemporaryDirectory() as folder:
        target, archive = Path(folder, "bundle"), Path(folder, "bundle.zip")
        target.mkdir()
        bundling.bundle(target)
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
            for path in sorted(target.rglob("*")):
                packed.write(path, path.relative_to(target))
        return archive.stat().st_size


def main() -> None:
    """Measure and print, one JSON line last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=9)
    parser.add_argument("--check", action="store_true", help="exit 1 when a bound is broken")
    given = parser.parse_args()
    found = samples_of(given.samples, as_aws=False, local_table=True)
    numbers: dict[str, float] = {HANDED_OVER: found.ratio(found.handed_over)}
    numbers |= {f"import of {name}, times boto3": ratio for name, ratio in imports(max(3, given.samples // 2)).items()}
    few = max(3, given.samples // 3)
    slowed, on_moto = samples_of(few, as_aws=True), samples_of(few, as_aws=False)
    size = bundle_bytes()
    bounds = dict.fromkeys(numbers, MOST_OF_IMPORT) | {HANDED_OVER: MOST_OF_BARE}
    for what, count in numbers.items():
        print(f"{what:36} {count:6.2f}  {'ok' if count <= bounds[what] else 'BROKEN'}, bound {bounds[what]}")
    answered = found.ratio(found.answered)
    print(f"{'answered, times bare: not judged':36} {answered:6.2f}")
    print(f"{'handed over, moto the table: neither':36} {on_moto.ratio(on_moto.handed_over):6.2f}")
    assumed = f"{slowed.ratio(slowed.handed_over):.2f} and {slowed.ratio(slowed.answered):.2f}"
    print(f"with assumed latencies of AWS, not judged: handed over and answered {assumed}")
    print(f"{'bundle, bytes zipped':36} {size or 'not measured: run make setup'}  bound {MOST_BYTES:,}")
    broken = [what for what, count in numbers.items() if count > bounds[what]]
    broken += ["bundle"] if size is not None and size > MOST_BYTES else []
    shown = {what: round(count, 3) for what, count in {**numbers, "answered, not judged": answered}.items()}
    print(json.dumps({**shown, "bundle_bytes": size}))
    sys.exit(1 if given.check and broken else 0)


if __name__ == "__main__":
    main()
