"""The run spec: what a person writes in run.yaml, checked once; `to_document` and `parse` are inverse.

run: mini-gpt
image: 111122223333.dkr.ecr.us-east-1.amazonaws.com/train@sha256:...
command: [python, train.py]
slots: 1
pools:
  types: [g5.xlarge, g6.xlarge]
  zones: [us-east-1a, us-east-1b]       # default: every zone that the stack has a subnet in
  market: spot                          # spot | on-demand | spot-then-on-demand
checkpoint: {every_s: 180}
budgets: {recoveries: 25}
signals: {prewarm: false, moves: true}  # what follows from advice and planned maintenance
standby: 0                              # nodes beside the slots that are ready to take one
elastic: ""                             # 2..4, of four slots: go on with fewer when EC2 has no replacement
start_from: ""                          # a path or s3://BUCKET/PREFIX: others' checkpoint that the run begins with
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import typing
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any, Final, TypeVar

from spotproof.contract import ids, limits
from spotproof.contract.frozen import dataclass
from spotproof.contract.states import WhenBusy
from spotproof.errors import BadRunSpec, ContractError

_INSTANCE_TYPE = re.compile(r"[a-z][a-z0-9-]*\.[a-z0-9-]+")
_ZONE = re.compile(r"[a-z]{2}(-[a-z0-9]+)+-\d[a-z]|[a-z]{2}(-[a-z]+)+-\d[a-z](-[a-z0-9]+)*")
_PRICE = re.compile(r"[a-z][a-z0-9-]*\.[a-z0-9-]+=\d{1,4}(\.\d{1,6})?")
_ELASTIC = re.compile(r"[1-9]\d{0,3}\.\.[1-9]\d{0,3}")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
IMAGE_PATTERN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*@sha256:[0-9a-f]{64}")


class MarketPolicy(StrEnum):
    """Which market a run may use."""

    SPOT = "spot"
    ON_DEMAND = "on-demand"
    SPOT_THEN_ON_DEMAND = "spot-then-on-demand"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """Where nodes may come from. `zones` empty: every zone of the stack.

    With spot-then-on-demand: on-demand for claims of the first `first_on_demand_s`, after `fallback_after` failed Spot
    attempts, and when the run would not reach `deadline_step` within `deadline_s` at its pace; back to Spot, one slot
    at a time, when a node has been on-demand for `failback_after_s` (0: never) and Spot is calm.

    A gang's nodes start together in one zone, or not at all; over EFA (`efa`) in one instance type too. When its zone
    cannot give what it lacks for `gang_patience_s`, the whole gang moves.
    """

    types: tuple[str, ...]
    zones: tuple[str, ...] = ()
    market: MarketPolicy = MarketPolicy.SPOT
    fallback_after: int = limits.FALLBACK_AFTER
    cooldown_s: int = limits.POOL_COOLDOWN_S  # of a pool without capacity, at first
    first_on_demand_s: float = 0.0
    failback_after_s: float = limits.FAILBACK_AFTER_S
    deadline_s: float = 0.0  # since submit; 0: none
    deadline_step: int = 0
    gang: bool = False
    gang_patience_s: float = limits.GANG_PATIENCE_S
    efa: bool = False
    same_gpu: bool = False  # only one accelerator: keeps bit-equality over a replacement
    accelerator_memory_gib: float = 0.0  # what a rank needs; 0: not checked
    on_demand_usd: tuple[str, ...] = ()  # `type=usd` of an hour, for the budget in dollars
    placement_scores: bool = False  # ask EC2 for its Spot placement scores: a hint


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPolicy:
    """When to commit. `every_steps` 0: by time only. `chunk_mib` 0: from the network rate."""

    every_s: float = 180.0
    every_steps: int = 0
    keep: int = 3
    arenas: int = 2
    when_busy: WhenBusy = WhenBusy.WAIT
    chunk_mib: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Liveness:
    """How fast a node beats and when its silence counts (DESIGN section 10)."""

    heartbeat_s: float = limits.HEARTBEAT_S
    silence_s: float = limits.SILENCE_S
    first_heartbeat_s: float = limits.FIRST_HEARTBEAT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """What pauses the run when it is spent; resuming it grants them anew. `dollars`, `wall_clock_s` 0: no limit.

    `trainer_failures` and `node_faults` end it as failed: the trainer's own without progress, counted by the agent of
    each node; and nodes that failed before they joined, counted by the control plane until the next commit.
    """

    recoveries: int = limits.RECOVERIES_WITHOUT_COMMIT
    trainer_failures: int = limits.TRAINER_FAILURES
    node_faults: int = limits.NODE_FAULTS
    dollars: float = 0.0
    wall_clock_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """What signs that come before a notice make of the run. An extra checkpoint follows each of them.

    `prewarm`: on a rebalance recommendation a successor boots and parks; it ends after `prewarm_keep_s` if no notice
    has come, and there are no more of them once the stack has started `storm_after` within ten minutes: then the advice
    is a storm. `moves`: a node for which AWS plans maintenance is moved, from `move_lead_s` before the date on.
    """

    prewarm: bool = False
    prewarm_keep_s: float = limits.PREWARM_KEEP_S
    storm_after: int = limits.STORM_AFTER
    moves: bool = True
    move_lead_s: float = limits.MOVE_LEAD_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The stack's own facts that submit pins: template id, version number and subnets (`subnet-id=zone`)."""

    template: str
    template_version: str
    subnets: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """A run, as its nodes and the control plane read it. `image` is pinned by digest.

    Of many nodes: `standby` more are kept, each ready to become a member at once; none of them is special. With
    `elastic` ("least..most", `slots` being the most) the run goes on with fewer when EC2 has had none for a lost node's
    place for `elastic_after_s`; it grows right after a commit, at the earliest `regrow_after_s` after a node has come.
    """

    run: str
    image: str
    command: tuple[str, ...]
    pools: Pools
    slots: int = 1
    standby: int = 0
    elastic: str = ""
    elastic_after_s: float = limits.SHRINK_AFTER_S
    regrow_after_s: float = limits.REGROW_AFTER_S
    checkpoint: CheckpointPolicy = field(default_factory=CheckpointPolicy)
    liveness: Liveness = field(default_factory=Liveness)
    budgets: Budgets = field(default_factory=Budgets)
    signals: Signals = field(default_factory=Signals)
    start_from: str = ""  # a checkpoint of others: the state of step 0
    environment: tuple[str, ...] = ()  # NAME=value
    placement: Placement | None = None

    @property
    def places(self) -> int:
        """How many nodes are kept: the slots and those that stand by."""
        return self.slots + self.standby

    @property
    def least(self) -> int:
        """With how many nodes the run works at the least."""
        return int(self.elastic.partition("..")[0]) if self.elastic else self.slots


def parse(document: object) -> RunSpec:
    """The spec in `document` (from YAML or from the table).

    Raises:
        BadRunSpec: unknown keys, wrong types, or values that cannot be filled; the message names the key.
    """
    spec = _build(RunSpec, document, "")
    _check(spec)
    return spec


def to_document(spec: RunSpec) -> dict[str, Any]:
    """Plain values that `parse` reads back."""
    document: dict[str, Any] = _plain(dataclasses.asdict(spec))
    if spec.placement is None:
        del document["placement"]
    return document


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(content) for key, content in value.items()}
    if isinstance(value, tuple):
        return [_plain(content) for content in value]
    return value.value if isinstance(value, StrEnum) else value


def _check(spec: RunSpec) -> None:
    try:
        ids.run_id(spec.run)
    except ContractError as error:
        raise BadRunSpec(f"run: {error}") from error
    _need(IMAGE_PATTERN.fullmatch(spec.image), "image", spec.image, "pin it by digest: repository@sha256:<64 hex>")
    _need(spec.command, "command", "[]", "give the words of the training command")
    _need(1 <= spec.slots <= limits.ENGAGED_SLOTS_MAX, "slots", spec.slots, f"1 to {limits.ENGAGED_SLOTS_MAX}")
    _check_standby(spec)
    _check_elastic(spec)
    _need(spec.pools.types, "pools.types", "[]", "name at least one instance type")
    for name in spec.pools.types:
        _need(_INSTANCE_TYPE.fullmatch(name), "pools.types", name, "an instance type looks like g5.xlarge")
    for zone in spec.pools.zones:
        _need(_ZONE.fullmatch(zone), "pools.zones", zone, "a zone looks like us-east-1a")
    for entry in spec.environment:
        name, sign, _ = entry.partition("=")
        _need(sign and _ENV_NAME.fullmatch(name), "environment", name, "write NAME=value")
        _need(not name.startswith("SPOTPROOF_"), "environment", name, "SPOTPROOF_ names are ours")
    _check_numbers(spec)
    _check_market(spec)
    _check_signals(spec.signals)


def _check_standby(spec: RunSpec) -> None:
    """A script that does not begin in torchrun's rendezvous would simply train on a node that stands by."""
    _need(spec.standby >= 0, "standby", spec.standby, "0 or more")
    many = spec.slots > 1 or not spec.standby
    _need(many, "standby", spec.standby, "a run of one node has signals.prewarm; standby needs slots of 2 or more")
    room = spec.places <= limits.ENGAGED_SLOTS_MAX
    _need(room, "standby", spec.standby, f"slots and standby together: at most {limits.ENGAGED_SLOTS_MAX}")


def _check_elastic(spec: RunSpec) -> None:
    if not spec.elastic:
        return
    found = _ELASTIC.fullmatch(spec.elastic)
    _need(found, "elastic", spec.elastic, "write least..most, like 2..4")
    least, most = (int(number) for number in spec.elastic.split(".."))
    _need(1 <= least < most == spec.slots, "elastic", spec.elastic, "1 <= least < most, and slots is the most")
    _need(not spec.pools.gang, "elastic", spec.elastic, "a gang works whole or not at all: leave one of them out")
    _need(spec.elastic_after_s >= 0, "elastic_after_s", spec.elastic_after_s, "0 or more")
    _need(spec.regrow_after_s >= 0, "regrow_after_s", spec.regrow_after_s, "0 or more")


def _check_signals(signals: Signals) -> None:
    _need(signals.prewarm_keep_s >= 1, "signals.prewarm_keep_s", signals.prewarm_keep_s, "at least 1")
    _need(signals.storm_after >= 1, "signals.storm_after", signals.storm_after, "at least 1; prewarm: false is none")
    _need(signals.move_lead_s >= 0, "signals.move_lead_s", signals.move_lead_s, "0 or more")


def _check_market(spec: RunSpec) -> None:
    pools, budgets = spec.pools, spec.budgets
    _need(pools.first_on_demand_s >= 0, "pools.first_on_demand_s", pools.first_on_demand_s, "0 or more")
    _need(pools.failback_after_s >= 0, "pools.failback_after_s", pools.failback_after_s, "0 (never) or more")
    _need(1 <= pools.cooldown_s <= limits.POOL_COOLDOWN_MAX_S, "pools.cooldown_s", pools.cooldown_s, "1 s to 2 h")
    _need(pools.deadline_s >= 0, "pools.deadline_s", pools.deadline_s, "0 or more")
    with_step = (pools.deadline_s > 0) == (pools.deadline_step > 0)
    _need(with_step, "pools.deadline_step", pools.deadline_step, "give deadline_s and deadline_step together")
    mixed = pools.market is MarketPolicy.SPOT_THEN_ON_DEMAND
    for key in ("first_on_demand_s", "deadline_s"):
        asked = getattr(pools, key)
        _need(mixed or not asked, f"pools.{key}", asked, "it needs market: spot-then-on-demand")
    _need(pools.gang_patience_s >= 1, "pools.gang_patience_s", pools.gang_patience_s, "at least 1")
    _need(pools.gang or not pools.efa, "pools.efa", pools.efa, "nodes over EFA are a gang: set gang: true")
    memory = pools.accelerator_memory_gib
    _need(memory >= 0, "pools.accelerator_memory_gib", memory, "0 (not checked) or more")
    for entry in pools.on_demand_usd:
        _need(_PRICE.fullmatch(entry), "pools.on_demand_usd", entry, "write type=usd, like g5.xlarge=1.006")
    _need(budgets.node_faults >= 1, "budgets.node_faults", budgets.node_faults, "at least 1")
    _need(budgets.dollars >= 0, "budgets.dollars", budgets.dollars, "0 (no limit) or more")
    _need(budgets.wall_clock_s >= 0, "budgets.wall_clock_s", budgets.wall_clock_s, "0 (no limit) or more")
    priced = {entry.partition("=")[0] for entry in pools.on_demand_usd}
    unpriced = sorted(set(pools.types) - priced) if budgets.dollars else []
    _need(not unpriced, "budgets.dollars", budgets.dollars, f"add {', '.join(unpriced)} to pools.on_demand_usd")


def _check_numbers(spec: RunSpec) -> None:
    checkpoint, liveness, budgets = spec.checkpoint, spec.liveness, spec.budgets
    _need(checkpoint.every_s >= 1, "checkpoint.every_s", checkpoint.every_s, "at least 1")
    _need(checkpoint.every_steps >= 0, "checkpoint.every_steps", checkpoint.every_steps, "0 or more")
    _need(checkpoint.keep >= 1, "checkpoint.keep", checkpoint.keep, "at least 1")
    _need(1 <= checkpoint.arenas <= 4, "checkpoint.arenas", checkpoint.arenas, "1 to 4")
    _need(0 <= checkpoint.chunk_mib <= 512, "checkpoint.chunk_mib", checkpoint.chunk_mib, "0 to 512")
    _need(liveness.heartbeat_s >= 1, "liveness.heartbeat_s", liveness.heartbeat_s, "at least 1")
    silence = liveness.silence_s
    _need(silence >= 3 * liveness.heartbeat_s, "liveness.silence_s", silence, "at least 3 heartbeats")
    first = liveness.first_heartbeat_s
    _need(first >= liveness.heartbeat_s, "liveness.first_heartbeat_s", first, "at least one heartbeat")
    _need(budgets.recoveries >= 1, "budgets.recoveries", budgets.recoveries, "at least 1")
    _need(budgets.trainer_failures >= 1, "budgets.trainer_failures", budgets.trainer_failures, "at least 1")
    _need(spec.pools.fallback_after >= 1, "pools.fallback_after", spec.pools.fallback_after, "at least 1")


def _need(holds: object, key: str, value: object, advice: str) -> None:
    if not holds:
        raise BadRunSpec(f"{key}: {value!r} is not possible", next_step=advice)


T = TypeVar("T")


@functools.cache  # a handler reads a spec several times, and to evaluate annotations costs more than all the rest
def _hints(kind: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(kind)


@functools.cache
def _fields(kind: type[Any]) -> dict[str, dataclasses.Field[Any]]:
    return {one.name: one for one in dataclasses.fields(kind)}


def _build(kind: type[T], document: object, where: str) -> T:
    if not isinstance(document, Mapping):
        raise BadRunSpec(f"{where or 'the run spec'} must be a mapping, not {type(document).__name__}")
    hints = _hints(typing.cast("Any", kind))  # to mypy a class is not hashable
    known = _fields(typing.cast("Any", kind))
    unknown = sorted(str(key) for key in document if key not in known)
    if unknown:
        raise BadRunSpec(f"{where}{unknown[0]}: unknown key", next_step=f"known are {', '.join(sorted(known))}")
    values = {name: _value(document[name], hints[name], f"{where}{name}") for name in known if name in document}
    missing = [
        name
        for name, f in known.items()
        if name not in values and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise BadRunSpec(f"{where}{missing[0]} is missing")
    return kind(**values)


def _value(content: object, hint: Any, where: str) -> Any:
    if type(content) is hint and hint in (str, int, bool):
        return content  # nearly every value
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast("type[Any]", hint), content, f"{where}.")
    if typing.get_origin(hint) is tuple:
        if not isinstance(content, list | tuple) or not all(isinstance(word, str) for word in content):
            raise BadRunSpec(f"{where} must be a list of texts", next_step="quote numbers")
        return tuple(content)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        if not isinstance(content, str) or content not in set(hint):
            raise BadRunSpec(f"{where}: {content!r} is not possible", next_step=f"one of {', '.join(hint)}")
        return hint(content)
    if hint == (Placement | None):
        return None if content is None else _build(Placement, content, f"{where}.")
    wanted = (int, float) if hint is float else hint
    if isinstance(content, bool) is not (hint is bool) or not isinstance(content, wanted):
        raise BadRunSpec(f"{where}: {content!r} is not {hint.__name__}")
    if isinstance(content, float) and not math.isfinite(content):
        raise BadRunSpec(f"{where}: {content!r} is not a number")
    return float(content) if hint is float else content
