"""The whole control plane with its own clients against an emulated account: what fakes cannot tell."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

import pytest

from lambdas import wiring
from spotproof.cli import submit
from spotproof.contract.items import NO_INSTANCE
from spotproof.contract.runspec import Placement, Pools, RunSpec
from spotproof.contract.settings import ControlSettings
from spotproof.store.clients import Clients
from spotproof.store.dynamo import DynamoTable
from spotproof.store.members import Members
from spotproof.store.slots import Slots
from tests.fakes.control import ACCOUNT, IMAGE, notice

pytestmark = pytest.mark.emulator
REGION = "us-east-1"


@pytest.fixture
def clients(moto_url: str, monkeypatch: pytest.MonkeyPatch) -> Clients:
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_url)
    return Clients(region=REGION)


@pytest.fixture
def settings(clients: Clients) -> ControlSettings:
    name = f"control-{uuid.uuid4().hex[:12]}"
    clients.dynamodb.create_table(
        TableName=name,
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
        AttributeDefinitions=[
            {"AttributeName": "pk", "AttributeType": "S"},
            {"AttributeName": "sk", "AttributeType": "S"},
        ],
        BillingMode="PAY_PER_REQUEST",
    )
    queue = clients.sqs.create_queue(QueueName=name)["QueueUrl"]
    topic = clients.sns.create_topic(Name=name)["TopicArn"]
    return ControlSettings(
        stack=name,
        table=name,
        bucket=name,
        region=REGION,
        account=ACCOUNT,
        document="flush",
        document_version="1",
        topic=topic,
        repair_queue=queue,
    )


@pytest.fixture
def placement(clients: Clients) -> Placement:
    vpc = clients.ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnet = clients.ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/24", AvailabilityZone="us-east-1a")
    image = clients.ec2.describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
    template = clients.ec2.create_launch_template(
        LaunchTemplateName=uuid.uuid4().hex, LaunchTemplateData={"ImageId": image}
    )
    return Placement(
        template=template["LaunchTemplate"]["LaunchTemplateId"],
        template_version="1",
        subnets=(f"{subnet['Subnet']['SubnetId']}=us-east-1a",),
    )


def control_of(settings: ControlSettings, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in settings.to_env().items():
        monkeypatch.setenv(name, value)
    wiring.control.cache_clear()
    return wiring.control()


def test_a_run_is_launched_and_a_lost_node_replaced_with_real_clients(
    clients: Clients, settings: ControlSettings, placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = control_of(settings, monkeypatch)
    table = DynamoTable(clients.dynamodb, settings.table)
    run = f"run-{uuid.uuid4().hex[:8]}"
    spec = RunSpec(run=run, image=IMAGE, command=("c",), pools=Pools(types=("g5.xlarge",)), placement=placement)
    now = int(time.time())
    submit.write(spec, table, now=now)

    assert control.sweep() == 1
    [message] = clients.sqs.receive_message(QueueUrl=settings.repair_queue)["Messages"]
    assert control.handle({"m": message["Body"]}, until=time.time() + 60) == {}
    first = str(_slot(table, run).successor_instance)
    assert Members(table).read(first) is not None

    assert control.handle({"m": json.dumps(notice(first, now))}, until=time.time() + 60) == {}
    slot = _slot(table, run)
    second = str(slot.successor_instance)
    assert second not in (NO_INSTANCE, first)
    assert slot.incarnation == 2
    described = clients.ec2.describe_instances(
        Filters=[{"Name": "tag:spotproof:run", "Values": [run]}, {"Name": "tag:spotproof:launch", "Values": ["2"]}]
    )
    assert [one["InstanceId"] for part in described["Reservations"] for one in part["Instances"]] == [second]

    clients.ec2.terminate_instances(InstanceIds=[second])
    assert control.handle({"m": json.dumps({"repair": run})}, until=time.time() + 60) == {}
    assert _slot(table, run).incarnation == 3
    wiring.control.cache_clear()


def _slot(table: DynamoTable, run: str) -> Any:
    slot = Slots(table).read(run, 0)
    assert slot is not None
    return slot
