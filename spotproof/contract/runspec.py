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
"""

from __future__ import annotations

import dataclasses
import math
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeVar

from spotproof.contract import ids, limits
from spotproof.errors import BadRunSpec, ContractError

_INSTANCE_TYPE = re.compile(r"[a-z][a-z0-9-]*\.[a-z0-9-]+")
_ZONE = re.compile(r"[a-z]{2}(-[a-z0-9]+)+-\d[a-z]|[a-z]{2}(-[a-z]+)+-\d[a-z](-[a-z0-9]+)*")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
IMAGE_PATTERN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*@sha256:[0-9a-f]{64}")


class MarketPolicy(StrEnum):
    """Which market a run may use."""

    SPOT = "spot"
    ON_DEMAND = "on-demand"
    SPOT_THEN_ON_DEMAND = "spot-then-on-demand"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """Where nodes may come from. `zones` empty: every zone of the stack."""

    types: tuple[str, ...]
    zones: tuple[str, ...] = ()
    market: MarketPolicy = MarketPolicy.SPOT
    fallback_after: int = limits.FALLBACK_AFTER


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPolicy:
    """When to commit. `every_steps` 0: by time only. `chunk_mib` 0: from the network rate."""

    every_s: float = 180.0
    every_steps: int = 0
    keep: int = 3
    arenas: int = 2
    chunk_mib: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Liveness:
    """How fast a node beats and when its silence counts (DESIGN section 10)."""

    heartbeat_s: float = limits.HEARTBEAT_S
    silence_s: float = limits.SILENCE_S
    first_heartbeat_s: float = limits.FIRST_HEARTBEAT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """What pauses the run when it is spent."""

    recoveries: int = limits.RECOVERIES_WITHOUT_COMMIT
    trainer_failures: int = limits.TRAINER_FAILURES


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The stack's own facts that submit pins: template id, version number and subnets (`subnet-id=zone`)."""

    template: str
    template_version: str
    subnets: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """A run, as its nodes and the control plane read it. `image` is pinned by digest."""

    run: str
    image: str
    command: tuple[str, ...]
    pools: Pools
    slots: int = 1
    checkpoint: CheckpointPolicy = field(default_factory=CheckpointPolicy)
    liveness: Liveness = field(default_factory=Liveness)
    budgets: Budgets = field(default_factory=Budgets)
    environment: tuple[str, ...] = ()  # NAME=value
    placement: Placement | None = None


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


def _build(kind: type[T], document: object, where: str) -> T:
    if not isinstance(document, Mapping):
        raise BadRunSpec(f"{where or 'the run spec'} must be a mapping, not {type(document).__name__}")
    hints = typing.get_type_hints(kind)
    known = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
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
    if isinstance(content, bool) or not isinstance(content, wanted):
        raise BadRunSpec(f"{where}: {content!r} is not {hint.__name__}")
    if isinstance(content, float) and not math.isfinite(content):
        raise BadRunSpec(f"{where}: {content!r} is not a number")
    return float(content) if hint is float else content
