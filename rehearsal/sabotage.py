"""Sabotages: what is broken on purpose, from outside the product, and which verdict must notice.

A rehearsal that cannot fail proves nothing. Some act at the wire (requests lose a condition or a tag, answers lie),
some inside the nodes' processes (`spoilt/sitecustomize.py`); the product's files stay as they are.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rehearsal import verdicts
from rehearsal.permissions import deployed
from rehearsal.permissions.estate import NODE
from rehearsal.plan import Act, Plan
from rehearsal.plane.calls import Call
from rehearsal.plane.faults import FOREVER
from rehearsal.plane.object_faults import ObjectFault, ObjectKind
from rehearsal.stage import Stage
from spotproof.contract import tags

SPOILT: Final = Path(__file__).with_name("spoilt")
Params = dict[str, Any]

_PLAN: Final = Plan(acts=(Act.NOTICE,), steps=60, interval_steps=15, act_every_steps=24, patience_s=40.0, covers=False)
_IN_VAIN: Final = dataclasses.replace(_PLAN, patience_s=24.0)  # what is waited for at the end never comes
_FROZEN: Final = dataclasses.replace(_PLAN, acts=(Act.FROZEN,), interval_steps=8, act_every_steps=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sabotage:
    """One thing broken. `breaks` are the verdicts of which at least one must fail."""

    name: str
    says: str
    spoil: Callable[[Stage], None]
    breaks: tuple[str, ...]
    plan: Plan = _PLAN


def find(name: str) -> Sabotage:
    """The sabotage of that name. Raises FileNotFoundError that lists the names."""
    found = next((known for known in ALL if known.name == name), None)
    if found is None:
        raise FileNotFoundError(f"no sabotage {name!r}; there are {', '.join(known.name for known in ALL)}")
    return found


# ---------------------------------------------------------------------------------------------------- at the wire
def _drop_flush_order(stage: Stage) -> None:
    def nobody(params: Params) -> Params:
        return params | {"Targets": [{"Key": "tag:nobody", "Values": ["nobody"]}]}

    stage.region.faults.rewrite("ssm", "SendCommand", nobody)


def _lose_chunks(stage: Stage) -> None:
    swallow = ObjectFault(kind=ObjectKind.SWALLOW, method="PUT", key=r"/blobs/", skip=1, times=FOREVER)
    stage.region.object_faults.add(swallow)


def _strip_claim_condition(stage: Stage) -> None:
    """The claims of the loss also come late, the second one later: with the condition in place that changes nothing,
    without it the second handler opens again what the first has filled. The claim at submit is spared."""

    def claims(call: Call) -> bool:
        return _moves_slot(call, "claimed_at")

    faults = stage.region.faults
    faults.rewrite("dynamodb", "UpdateItem", without_condition, when=lambda call: _moves_slot(call, ""))
    faults.delay("dynamodb", "UpdateItem", 2.0, skip=1, when=claims)
    faults.delay("dynamodb", "UpdateItem", 6.0, skip=1, times=FOREVER, when=claims)


def _moves_slot(call: Call, attribute: str) -> bool:
    key = call.params.get("Key", {}).get("sk", {}).get("S", "")
    named = call.params.get("ExpressionAttributeNames", {}).values()
    return str(key).startswith("SLOT#") and (not attribute or attribute in named)


def _drop_launch_tag(stage: Stage) -> None:
    def untagged(params: Params) -> Params:
        changed = copy.deepcopy(params)
        for specification in changed.get("TagSpecifications", []):
            specification["Tags"] = [tag for tag in specification["Tags"] if tag["Key"] != tags.LAUNCH]
        return changed

    stage.region.faults.rewrite("ec2", "CreateFleet", untagged)


def _refuse_terminate(stage: Stage) -> None:
    stage.region.faults.add("ec2", "TerminateInstances", "UnauthorizedOperation", status=403, times=FOREVER)


def without_condition(params: Params) -> Params:
    """The same write, unconditional. Names and values that only the condition used go too, or DynamoDB refuses."""
    if "ConditionExpression" not in params:
        return params
    left = {k: v for k, v in params.items() if k not in ("ConditionExpression", "ReturnValuesOnConditionCheckFailure")}
    used = set(re.findall(r"[#:]\w+", str(left.get("UpdateExpression", ""))))
    for field in ("ExpressionAttributeNames", "ExpressionAttributeValues"):
        kept = {name: value for name, value in left.pop(field, {}).items() if name in used}
        if kept:
            left[field] = kept
    return left


def _strip_pointer_condition(params: Params) -> Params:
    """A transaction that raises the pointer: without its look at NEWEST, and the put unconditional."""
    actions = params.get("TransactItems", [])
    if not any(_sort_key(action) == "POINTER" and "Put" in action for action in actions):
        return params
    kept = [action for action in actions if "ConditionCheck" not in action]
    return params | {"TransactItems": [{kind: without_condition(body) for kind, body in a.items()} for a in kept]}


def _sort_key(action: Params) -> str:
    (body,) = action.values()
    return str((body.get("Item") or body.get("Key"))["sk"]["S"])


# ---------------------------------------------------------------------------------------------------- in the account
def _regrant(change: Callable[[list[dict[str, Any]]], None]) -> Callable[[Stage], None]:
    """Changes the node's deployed policy. The emulated account does not enforce it, so the run itself goes well."""

    def spoil(stage: Stage) -> None:
        iam = stage.region.client("iam")
        role = next(role for role, actor in deployed.read(stage.region, stage.outputs).actors.items() if actor == NODE)
        for name in iam.list_role_policies(RoleName=role)["PolicyNames"]:
            document = deployed.policy(stage.region, role, name)
            change(document["Statement"])
            iam.put_role_policy(RoleName=role, PolicyName=name, PolicyDocument=json.dumps(document))

    return spoil


def _without_put(statements: list[dict[str, Any]]) -> None:
    """Nodes may not store checkpoints any more."""
    for one in statements:
        if one["Sid"] == "Checkpoints":
            one["Action"] = ["s3:GetObject"]


def _with_delete(statements: list[dict[str, Any]]) -> None:
    """Nodes may delete checkpoints."""
    for one in statements:
        if one["Sid"] == "Checkpoints":
            one["Action"].append("s3:DeleteObject")


# ---------------------------------------------------------------------------------------------------- in the nodes
def inside(what: str) -> Callable[[Stage], None]:
    """Breaks `what` (see spoilt/sitecustomize.py) in every container of every node."""

    def spoil(stage: Stage) -> None:
        stage.region.hosts.sabotage = SPOILT
        stage.region.hosts.image_env["REHEARSAL_SPOILS"] = what

    return spoil


def inside_functions(what: str) -> Callable[[Stage], None]:
    """Breaks `what` (see spoilt/sitecustomize.py) in every function."""

    def spoil(stage: Stage) -> None:
        stage.region.functions.sabotage, stage.region.functions.spoils = SPOILT, what

    return spoil


def _remove_join_barrier(stage: Stage) -> None:
    """The flush is slow, as a large one is: a successor that does not wait for it is there first."""
    inside("join-barrier")(stage)
    slow = ObjectFault(kind=ObjectKind.DELAY, method="PUT", key=r"/part-", seconds=12.0, times=FOREVER)
    stage.region.object_faults.add(slow)


def _ignore_generation(stage: Stage) -> None:
    inside("generation")(stage)
    stage.region.faults.rewrite("dynamodb", "TransactWriteItems", _strip_pointer_condition)


ALL: Final[tuple[Sabotage, ...]] = (
    Sabotage(
        name="flush-order-dropped",
        says="SendCommand is accepted and reaches no node",
        spoil=_drop_flush_order,
        breaks=(verdicts.EXERCISED,),
        plan=dataclasses.replace(_PLAN, covers=True),
    ),
    Sabotage(
        name="pointer-before-data",
        says="S3 says that it stored the chunks, and did not: the pointer names what is not there",
        spoil=_lose_chunks,
        breaks=(verdicts.COMMITS,),
    ),
    Sabotage(
        name="digest-check-removed",
        says="restored chunks are not compared with their digests",
        spoil=inside("digest-check"),
        breaks=(verdicts.WHOLE_ONLY, verdicts.BIT_EQUAL),
        plan=_FROZEN,
    ),
    Sabotage(
        name="claim-condition-stripped",
        says="writes to a slot lose their condition, and claims come late",
        spoil=_strip_claim_condition,
        breaks=(verdicts.ONE_REPLACEMENT,),
        plan=dataclasses.replace(_PLAN, acts=(Act.STORM,), patience_s=28.0),
    ),
    Sabotage(
        name="join-barrier-removed",
        says="a successor does not wait until the holder's flush is final",
        spoil=_remove_join_barrier,
        breaks=(verdicts.NOTHING_LOST,),
        plan=dataclasses.replace(_IN_VAIN, notice_s=40.0),
    ),
    Sabotage(
        name="generation-ignored",
        says="a pointer is raised whatever generation is the newest, and nodes do not look",
        spoil=_ignore_generation,
        breaks=(verdicts.FENCED, verdicts.COMMITS),
        plan=_FROZEN,
    ),
    Sabotage(
        name="rng-not-restored",
        says="random number generators keep the state of a fresh process",
        spoil=inside("rng"),
        breaks=(verdicts.BIT_EQUAL,),
    ),
    Sabotage(
        name="launch-tag-dropped",
        says="launched instances do not carry the tag of their launch",
        spoil=_drop_launch_tag,
        breaks=(verdicts.TAGGED,),
        plan=_IN_VAIN,
    ),
    Sabotage(
        name="terminate-refused",
        says="the control plane may not end instances",
        spoil=_refuse_terminate,
        breaks=(verdicts.NOTHING_LEFT,),
        plan=_IN_VAIN,
    ),
    Sabotage(
        name="grant-removed",
        says="the deployed node role may not store checkpoints any more",
        spoil=_regrant(_without_put),
        breaks=(verdicts.PERMISSIONS,),
    ),
    Sabotage(
        name="grant-widened",
        says="the deployed node role may delete checkpoints",
        spoil=_regrant(_with_delete),
        breaks=(verdicts.PERMISSIONS,),
    ),
)
