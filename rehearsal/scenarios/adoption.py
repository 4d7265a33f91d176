"""No pool has room; a person tags a running instance of their own, and it takes the free slot. Then EC2 takes it back.

An event that claims such tags for an instance that has none changes nothing: the tags are read again from EC2. What a
person started is never ended by the stack; who replaces it comes from the stack's own template.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Iterator
from typing import Any, Final

from rehearsal import acts
from rehearsal.evidence import DepartureKind, Evidence
from rehearsal.sabotage import inside_functions
from rehearsal.scenarios.scenario import PLAN, Scenario, Spoil
from rehearsal.stage import Stage
from rehearsal.verdicts import Verdict
from spotproof.contract import keys, names, tags

OWN: Final = ("g5.xlarge", "us-east-1b")
AFTER: Final = ("g6.xlarge", "us-east-1b")
ADOPTED: Final = "adopted"
MINE, STRANGER, HELD = "mine", "stranger", "held"
# A person's own image: its service waits until somebody opts the machine in, then does what the stack's nodes do.
WAITS: Final = """#!/bin/bash
own="${AWS_EC2_METADATA_SERVICE_ENDPOINT:-http://169.254.169.254}/latest"
ask() { curl --silent --fail "$@"; }
opted_in() {
  key="$(ask --request PUT --header 'X-aws-ec2-metadata-token-ttl-seconds: 60' "$own/api/token")" &&
    ask --header "X-aws-ec2-metadata-token: $key" "$own/meta-data/tags/instance/@run@" > /dev/null
}
until opted_in; do sleep 1; done
"""
IDLES: Final = "#!/bin/bash\nsleep 600\n"


def script(stage: Stage) -> None:
    acts.open_pools(stage, OWN)
    stage.region.market.set({OWN: 2})
    mine, stranger = _start(stage, _boots_when_tagged(stage)), _start(stage, IDLES)
    stage.noted |= {MINE: mine, STRANGER: stranger}
    stage.first = 0
    stage.submit()
    stage.wait(lambda: {mine, stranger} <= set(stage.region.hosts.alive()), what="the person's instances run")
    stage.say(f"no pool has room; a person tags {mine}; an event says the same of {stranger}, which has no such tags")
    opt_in = tags.of_opt_in(stack=_stack_name(stage), run=stage.run)
    stage.region.emit(_claims(stage, stranger, opt_in))
    stage.region.client("ec2").create_tags(
        Resources=[mine], Tags=[{"Key": key, "Value": value} for key, value in opt_in.items()]
    )
    stage.wait_for_step(30)
    stage.noted[HELD] = stage.holder()
    acts.open_pools(stage, AFTER)
    pieces = stage.pieces()
    stage.say(f"step {stage.step()}: {mine} gets its notice; {AFTER[0]} in {AFTER[1]} has room")
    stage.departs("adopted node", DepartureKind.NOTICE, mine, good_step=0)
    stage.region.hosts.interrupt(mine, notice_s=stage.plan.notice_s)
    stage.wait_for_replacement(pieces)
    acts.end(stage)


def _start(stage: Stage, user_data: str) -> str:
    """RunInstances as a person calls it: the stack's template for network and role, a boot script of their own."""
    ec2, template = stage.region.client("ec2"), _template(stage)
    subnet = next(pair for pair in stage.outputs[names.OUTPUT_SUBNETS].split(",") if pair.endswith(f"={OWN[1]}"))
    answer = ec2.run_instances(
        MinCount=1,
        MaxCount=1,
        InstanceType=OWN[0],
        SubnetId=subnet.partition("=")[0],
        ImageId="ami-00000000000000000",
        LaunchTemplate={
            "LaunchTemplateId": stage.outputs[names.OUTPUT_TEMPLATE_ID],
            "Version": stage.outputs[names.OUTPUT_TEMPLATE_VERSION],
        },
        UserData=user_data,
        IamInstanceProfile=template["IamInstanceProfile"],
        InstanceMarketOptions={"MarketType": "spot"},
        MetadataOptions={"HttpTokens": "required", "HttpPutResponseHopLimit": 2, "InstanceMetadataTags": "enabled"},
    )
    instance = str(answer["Instances"][0]["InstanceId"])
    stage.by_hand.add(instance)
    return instance


def _template(stage: Stage) -> dict[str, Any]:
    answer = stage.region.client("ec2").describe_launch_template_versions(
        LaunchTemplateId=stage.outputs[names.OUTPUT_TEMPLATE_ID],
        Versions=[stage.outputs[names.OUTPUT_TEMPLATE_VERSION]],
    )
    data: dict[str, Any] = answer["LaunchTemplateVersions"][0]["LaunchTemplateData"]
    return data


def _boots_when_tagged(stage: Stage) -> str:
    stacks_own = base64.b64decode(_template(stage)["UserData"]).decode()
    return WAITS.replace("@run@", tags.RUN) + stacks_own


def _stack_name(stage: Stage) -> str:
    return next(name for name in stage.region.deployed.stacks() if name != "CDKToolkit")


def _claims(stage: Stage, instance: str, claimed: dict[str, str]) -> dict[str, Any]:
    region = stage.region
    return {
        "source": "aws.tag",
        "detail-type": "Tag Change on Resource",
        "resources": [f"arn:aws:ec2:{region.region}:{region.account.id}:instance/{instance}"],
        "detail": {
            "changed-tag-keys": sorted(claimed),
            "service": "ec2",
            "resource-type": "instance",
            "version": 1,
            "tags": claimed,
        },
    }


def promises(stage: Stage, evidence: Evidence) -> Iterator[Verdict]:
    del evidence
    stranger = stage.noted.get(STRANGER, "")
    ended = [
        one
        for answered in stage.region.calls.of("ec2", "TerminateInstances")
        for one in answered.call.params.get("InstanceIds", [])
        if one in stage.by_hand
    ]
    yield adopted(
        held=stage.noted.get(HELD, ""),
        mine=stage.noted.get(MINE, "?"),
        stranger_known=bool(stage.item(keys.member(stranger))),
        ended=len(ended),
    )


def adopted(*, held: str, mine: str, stranger_known: bool, ended: int) -> Verdict:
    """The tagged instance had the slot, the other one none, and neither was ended by the stack."""
    has = "the tagged instance had the slot" if held == mine else f"{held or 'nobody'} had the slot"
    claimed = "was let in too" if stranger_known else "stayed out"
    says = f"{has}; the one that an event only claimed {claimed}; {ended} of theirs ended"
    return Verdict(name=ADOPTED, passed=held == mine and not stranger_known and ended == 0, says=says)


SCENARIO: Final = Scenario(
    name="adoption",
    says="a running instance that a person tags is adopted into a free slot",
    plan=dataclasses.replace(PLAN, spec={"pools": {"cooldown_s": 5}}),
    script=script,
    promises=promises,
    sabotage=Spoil(
        name="tags-not-read-again",
        says="what an event says of an instance's tags is believed",
        act=inside_functions("opt-in"),
        breaks=(ADOPTED,),
    ),
)
