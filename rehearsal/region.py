"""A whole AWS Region on one machine, for one rehearsal.

    with Region(workdir, seed=7) as region:
        region.deploy(cdk_out)                                   # cdk bootstrap + cdk deploy, then the gate
        region.market.set({("g5.xlarge", "us-east-1a"): 1})      # nothing launches that the market does not offer
        region.client("dynamodb")                                # boto3, as the account's operator
        region.hosts.interrupt(instance_id, notice_s=20)         # IMDS + event, SIGKILL at the deadline
        region.emit({"source": ..., "detail-type": ..., "detail": {...}})
        region.schedules.tick()                                  # every schedule fires once
        region.calls.of("ec2", "CreateFleet")                    # what was really called, by whom
        region.raise_problems()                                  # what the emulator itself could not do

Everything that happens after `deploy` is read from deployed objects: rules, queue policies, event source mappings,
function code and configuration, launch template, user data, SSM document, roles. Nothing of the product is imported.
One Region at a time per process: the patches of moto's CloudFormation are global.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self, cast

import boto3
from botocore.config import Config

from rehearsal.deploy import CdkCli, Toolchain
from rehearsal.nodes.hosts import Hosts
from rehearsal.plane import moto_edges, public_parameters, resources
from rehearsal.plane.account import OPERATOR_KEY, OPERATOR_SECRET, Account
from rehearsal.plane.bus import Bus
from rehearsal.plane.calls import CallLog
from rehearsal.plane.commands import Commands
from rehearsal.plane.compute import Compute
from rehearsal.plane.coverage import Coverage, coverage
from rehearsal.plane.dropped import Dropped
from rehearsal.plane.faults import FaultTable
from rehearsal.plane.fleet import Fleets
from rehearsal.plane.functions import Functions
from rehearsal.plane.gate import Gate
from rehearsal.plane.instances import Instances
from rehearsal.plane.market import Market
from rehearsal.plane.object_faults import ObjectFaults
from rehearsal.plane.object_proxy import ObjectProxy
from rehearsal.plane.object_server import ObjectServer
from rehearsal.plane.pollers import Pollers
from rehearsal.plane.queues import Queues
from rehearsal.plane.resources import Deployed
from rehearsal.plane.schedules import Schedules
from rehearsal.plane.server import Endpoint
from rehearsal.plane.stacks import Stacks
from rehearsal.plane.templates import Templates
from rehearsal.processes import Processes, poll_until, terminated_like_ctrl_c
from rehearsal.timeline import Timeline

ASSET_BUCKET_PREFIX = "cdk-"


class ProblemsFound(Exception):
    """The emulator could not do something that it was asked to do; the rehearsal proves nothing then."""


class Region:
    """The account, its endpoints, its machines. Use as a context manager: every process ends with it.

    `time_scale` shortens SQS visibility timeouts (0.05: three minutes become nine seconds); `concurrency` is how many
    copies of one function may run at once; `seed` makes duplication and reordering repeatable.
    """

    def __init__(
        self,
        workdir: Path,
        *,
        region: str = "us-east-1",
        seed: int = 0,
        time_scale: float = 0.05,
        concurrency: int = 2,
    ) -> None:
        self.workdir = workdir
        self.region = region
        self.account = Account(region)
        self.calls = CallLog()
        self.market = Market()
        self.timeline = Timeline()
        self.processes = Processes()
        self._dropped = Dropped(self.account)
        self.deployed = Deployed(self._dropped.table)
        self.gate_findings: list[str] = []
        self._endpoints: dict[str, str] = {}
        self._closing = ExitStack()
        self._bootstrapped = False
        self._wire_events(seed, time_scale, concurrency)
        self._wire_machines()

    def _wire_events(self, seed: int, time_scale: float, concurrency: int) -> None:
        """Endpoint, queues, functions, bus, pollers, schedules."""
        account, timeline = self.account, self.timeline
        self.endpoint = Endpoint(account, calls=self.calls)
        self.queues = Queues(account, time_scale=time_scale)
        self.functions = Functions(
            account=account,
            processes=self.processes,
            queues=self.queues,
            timeline=timeline,
            folder=self.workdir / "functions",
            endpoints=self._endpoints,
        )
        self.endpoint.kill_caller = self.functions.crash
        self.bus = Bus(
            account=account,
            queues=self.queues,
            functions=self.functions,
            faults=self.endpoint.faults,
            timeline=timeline,
            seed=seed,
        )
        self.pollers = Pollers(account=account, queues=self.queues, functions=self.functions, concurrency=concurrency)
        self.schedules = Schedules(account=account, bus=self.bus, queues=self.queues, functions=self.functions)
        self.stacks = Stacks(
            account=account,
            deployed=self.deployed,
            functions=self.functions,
            ended=self._stack_ends,
            gone=self._dropped.undo,
        )
        self.endpoint.outside, self.endpoint.answers = self.stacks.outside(), self.stacks.answered

    def _stack_ends(self, ending: list[resources.Resource]) -> None:
        self.pollers.end({one.physical_id for one in ending})
        with self.account.lock:
            self._dropped.unmake(ending)

    def _wire_machines(self) -> None:
        """Object server, instances, the machines under them, and the verbs that act on them."""
        account, timeline = self.account, self.timeline
        self.objects = ObjectServer(self.processes, self.workdir / "s3", self.region)
        self.proxy = ObjectProxy(
            server_port=lambda: self.objects.port, role_keys=self._role_keys, region=self.region, calls=self.calls
        )
        templates = Templates(account)
        self.instances = Instances(
            account=account, market=self.market, templates=templates, timeline=timeline, emit=self._state_changed
        )
        fleets = Fleets(market=self.market, instances=self.instances, templates=templates)
        compute = Compute(account=account, market=self.market, instances=self.instances, tag_changed=self._tag_changed)
        self.commands = Commands(account=account, instances=self.instances, emit=self.emit)
        self.hosts = Hosts(
            account=account,
            processes=self.processes,
            instances=self.instances,
            timeline=timeline,
            emit=self.emit,
            folder=self.workdir / "nodes",
            endpoints=self._endpoints,
        )
        self.instances.machines = self.hosts
        self.commands.shells = self.hosts
        self.endpoint.verbs = {
            ("ec2", "CreateFleet"): fleets.create_fleet,
            ("ec2", "DeleteFleets"): fleets.delete_fleets,
            ("events", "PutEvents"): self.bus.put_events,
            **compute.verbs(),
            **self.commands.verbs(),
            **self.stacks.verbs(),
        }
        self.endpoint.around = compute.around()
        self.endpoint.witnesses = {
            ("ssm", "SendCommand"): self.commands.seen,
            ("ec2", "TerminateInstances"): compute.seen,
        }

    # ------------------------------------------------------------------ life
    def __enter__(self) -> Self:
        """Starts the account and the object server; returns when both answer."""
        self.workdir.mkdir(parents=True, exist_ok=True)
        with ExitStack() as starting:
            starting.enter_context(terminated_like_ctrl_c())
            starting.callback(self.processes.close)
            moto_edges.require()
            starting.callback(self.account.forget)
            starting.callback(resources.install(self.deployed))
            starting.callback(self.endpoint.stop)
            self._port = self.endpoint.start()
            starting.callback(self.proxy.stop)
            proxy_port = self.proxy.start()
            self._endpoints["AWS_ENDPOINT_URL"] = self.stacks.endpoint = f"http://127.0.0.1:{self._port}"
            self._endpoints["AWS_ENDPOINT_URL_S3"] = f"http://127.0.0.1:{proxy_port}"
            self.timeline.start()
            starting.callback(self._end_work)
            self.objects.start()
            self._closing = starting.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Ends every process and thread of the region, in the order machines, functions, servers."""
        self._closing.close()

    def _end_work(self) -> None:
        self.timeline.stop()
        self.hosts.close()
        self.pollers.stop()

    # ------------------------------------------------------------------ deployment
    def deploy(self, cdk_out: Path, *, toolchain: Toolchain | None = None, check: bool = True) -> dict[str, str]:
        """Deploys a synthesized folder with the real CDK CLI and returns the outputs of its stacks.

        Then the deployed buckets are made on the object server and the event source mappings begin to poll. With
        `check` the completeness gate runs and raises ProblemsFound for anything the emulation did not take over.
        """
        cli = self._cli(toolchain)
        if not self._bootstrapped:
            cli.bootstrap(cdk_out)
            self._bootstrapped = True
        public_parameters.provide(self.account, public_parameters.wanted(cdk_out))
        cli.deploy(cdk_out)
        return self.settle(check=check)

    def destroy(self, cdk_out: Path, *, toolchain: Toolchain | None = None) -> None:
        """`cdk destroy` of every stack of the folder. Raises DeployFailed with the CLI's log where one is not gone."""
        self._cli(toolchain).destroy(cdk_out)

    def _cli(self, toolchain: Toolchain | None) -> CdkCli:
        return CdkCli(
            toolchain=toolchain or Toolchain.find(),
            processes=self.processes,
            endpoint=f"http://localhost:{self._port}",
            region=self.region,
            account=self.account.id,
            access_key=OPERATOR_KEY,
            folder=self.workdir / "cdk",
        )

    def deploy_template(self, name: str, body: str, *, check: bool = True) -> dict[str, str]:
        """A template without the CDK, for small tests: CreateStack, or UpdateStack when the stack exists."""
        cloudformation = self.client("cloudformation")
        options = {"StackName": name, "TemplateBody": body, "Capabilities": ["CAPABILITY_NAMED_IAM"]}
        if name in self.deployed.stacks():
            cloudformation.update_stack(**options)
        else:
            cloudformation.create_stack(**options)
        return self.settle(check=check)

    def settle(self, *, check: bool) -> dict[str, str]:
        """What follows every deployment: buckets, polling, the gate. Returns all outputs."""
        for bucket in self.deployed.of("AWS::S3::Bucket"):
            if not bucket.physical_id.startswith(ASSET_BUCKET_PREFIX):
                self.objects.make_bucket(bucket.physical_id, bucket.properties)
        self.pollers.refresh()
        if check:
            self.gate_findings = Gate(self.client, self.deployed, self.objects).findings()
            if self.gate_findings:
                raise ProblemsFound("the deployment is not complete:\n  " + "\n  ".join(self.gate_findings))
        return self.outputs()

    def outputs(self) -> dict[str, str]:
        """Outputs of every deployed stack but the toolkit's."""
        stacks = self.client("cloudformation").describe_stacks()["Stacks"]
        return {
            output["OutputKey"]: output["OutputValue"]
            for stack in stacks
            if stack["StackName"] != "CDKToolkit"
            for output in stack.get("Outputs", [])
        }

    # ------------------------------------------------------------------ access
    def client(self, service: str, **options: Any) -> Any:
        """A boto3 client of the account's operator; S3 goes to the object server, past the fault proxy."""
        if service == "s3":
            return self.objects.client()
        return boto3.client(
            cast(Any, service),  # any service; the stubs know only names that are written out
            endpoint_url=self._endpoints["AWS_ENDPOINT_URL"],
            region_name=self.region,
            aws_access_key_id=OPERATOR_KEY,
            aws_secret_access_key=OPERATOR_SECRET,
            config=Config(retries={"max_attempts": 2}, read_timeout=30),
            **options,
        )

    def operator_env(self) -> dict[str, str]:
        """The environment in which an operator's command (`spotproof submit ...`) finds this account."""
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self.workdir),
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ACCESS_KEY_ID": OPERATOR_KEY,
            "AWS_SECRET_ACCESS_KEY": OPERATOR_SECRET,
            **self._endpoints,
        }

    def _role_keys(self, access_key: str) -> tuple[str, str] | None:
        if access_key == OPERATOR_KEY:
            return "", OPERATOR_SECRET
        known = self.account.credentials(access_key)
        return None if known is None else (known.role, known.secret_key)

    @property
    def faults(self) -> FaultTable:
        """Faults of API calls and of rule deliveries."""
        return self.endpoint.faults

    @property
    def object_faults(self) -> ObjectFaults:
        """Faults of S3 transfers of nodes and functions."""
        return self.proxy.faults

    # ------------------------------------------------------------------ events
    def emit(self, event: dict[str, Any]) -> str:
        """Puts one event on the default bus; see `Bus.emit`."""
        return self.bus.emit(event)

    def _state_changed(self, instance_id: str, state: str) -> None:
        self.emit(
            {
                "source": "aws.ec2",
                "detail-type": "EC2 Instance State-change Notification",
                "resources": [f"arn:aws:ec2:{self.region}:{self.account.id}:instance/{instance_id}"],
                "detail": {"instance-id": instance_id, "state": state},
            }
        )

    def _tag_changed(self, instance_id: str, keys: list[str]) -> None:
        self.emit(
            {
                "source": "aws.tag",
                "detail-type": "Tag Change on Resource",
                "resources": [f"arn:aws:ec2:{self.region}:{self.account.id}:instance/{instance_id}"],
                "detail": {
                    "changed-tag-keys": keys,
                    "service": "ec2",
                    "resource-type": "instance",
                    "version": 1,
                    "tags": self.instances.tags(instance_id),
                },
            }
        )

    # ------------------------------------------------------------------ waiting and judging
    def wait(self, ready: Callable[[], object], *, what: str, timeout_s: float = 60.0) -> None:
        """Polls until `ready()`; raises TimeoutError naming `what`, or ProblemsFound as soon as the emulator failed."""

        def check() -> object:
            self.raise_problems()
            return ready()

        poll_until(check, what=what, timeout_s=timeout_s, every_s=0.1)

    def quiet(self, *, for_s: float = 1.0, timeout_s: float = 60.0) -> None:
        """Waits until the queues that rules fill have been empty for `for_s` seconds: no event is in flight any more.

        Other queues do not count: what a schedule fills is never empty for long while the schedule ticks.
        """
        since = time.monotonic()
        end = since + timeout_s
        names = [str(target["Arn"]).rsplit(":", 1)[-1] for rule in self.bus.rules() for target in rule.targets]
        names = [name for name in dict.fromkeys(names) if name in self.queues.names()]
        while time.monotonic() - since < for_s:
            self.raise_problems()
            if any(self.queues.waiting(name) for name in names):
                since = time.monotonic()
            if time.monotonic() > end:
                raise TimeoutError(f"the queues were not empty within {timeout_s:.0f} s")
            time.sleep(0.05)

    def problems(self) -> list[str]:
        """What the emulator could not do, each with its traceback."""
        parts = (self.endpoint, self.timeline, self.functions, self.pollers, self.commands, self.hosts)
        return [*self.endpoint.crashes, *(p for part in parts for p in getattr(part, "problems", []))]

    def raise_problems(self) -> None:
        """Raises ProblemsFound if `problems()` has any."""
        found = self.problems()
        if found:
            raise ProblemsFound("\n".join(found))

    def report(self) -> Coverage:
        """What of the deployed stack this rehearsal has exercised so far."""
        return coverage(self)
