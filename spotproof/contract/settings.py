"""Environment of each process: one class each, `from_env` and `to_env`, so that who sets it and who reads it agree.

`from_env` takes a mapping (a composition root passes os.environ) and raises BadSettings, naming every variable that is
missing or wrong. Unknown variables are ignored.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Final, Self

from spotproof.contract import orders
from spotproof.contract.frozen import dataclass
from spotproof.errors import BadSettings

PREFIX: Final = "SPOTPROOF_"
NOTICE_FILE_VARIABLE: Final = "SPOTPROOF_NOTICE_FILE"
START_FROM_VARIABLE: Final = "SPOTPROOF_START_FROM"  # to the trainer: the run spec's `start_from`


@dataclass(frozen=True, slots=True, kw_only=True)
class _Environment:
    """Fields are variables: `table` is SPOTPROOF_TABLE. A field with a default is optional."""

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Self:
        """Read the variables. Raises BadSettings with every problem in one message."""
        values: dict[str, object] = {}
        problems: list[str] = []
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            name = variable(field.name)
            text = environ.get(name)
            if text is None or text == "":
                if field.default is dataclasses.MISSING:
                    problems.append(f"{name} is not set")
                continue
            try:
                values[field.name] = _parsed(text, hints[field.name])
            except ValueError:
                problems.append(f"{name}={text!r} is not {hints[field.name].__name__}")
        if problems:
            raise BadSettings("; ".join(problems), next_step=f"see the settings page for {cls.__name__}")
        return cls(**values)

    def to_env(self) -> dict[str, str]:
        """The variables that make from_env return an equal value."""
        return {variable(f.name): _text(getattr(self, f.name)) for f in dataclasses.fields(self)}


def variable(field: str) -> str:
    """Name of a field's variable."""
    return PREFIX + field.upper()


def _parsed(text: str, hint: object) -> object:
    if hint is int:
        return int(text)
    if hint is bool:
        if text not in {"true", "false"}:
            raise ValueError(text)
        return text == "true"
    return text


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlSettings(_Environment):
    """What every function of a stack gets."""

    stack: str
    table: str
    bucket: str
    region: str
    account: str
    document: str  # name of the SSM document
    document_version: str
    topic: str  # ARN
    repair_queue: str = ""  # URL; the sweep's only
    launches_per_hour: int = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings(_Environment):
    """What user data gives to the agent on an instance; the rest is read from the table."""

    stack: str
    run: str
    table: str
    bucket: str
    region: str
    instance: str
    launch: str = ""  # empty: a hand-tagged instance
    runtime_dir: str = orders.RUNTIME_DIR
    scratch_dir: str = "/var/lib/spotproof"  # local copies of checkpoints: the node's NVMe


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSettings(_Environment):
    """Off AWS: a folder stands for table and bucket."""

    local_dir: str
    run: str = "local"
    runtime_dir: str = ""  # empty: `<local_dir>/run`
    scratch_dir: str = ""  # empty: `<local_dir>/scratch`
    checkpoint_every_s: int = 180
    checkpoint_every_steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings(_Environment):
    """What a trainer process gets from the agent's launcher; absent variables mean: start a local agent."""

    runtime_dir: str = ""
    local_dir: str = ""
    run: str = "local"
    hosted: bool = False  # the agent in `runtime_dir` is there, whatever else (for a rendezvous, say) is set


@dataclass(frozen=True, slots=True, kw_only=True)
class RendezvousSettings(_Environment):
    """What a node's torchrun gets for `--rdzv-backend spotproof`: a table (or a folder off AWS), and its place.

    `instance` empty: the launcher makes up a name. `slot` -1: the sealer gives it a place.
    """

    table: str = ""
    bucket: str = ""  # with it the sealer sees what is committed and not pointed at
    region: str = ""
    local_dir: str = ""
    instance: str = ""
    slot: int = -1
    incarnation: int = 0
    address: str = ""  # empty: --local-addr, else the address of the default route
    runtime_dir: str = ""  # where this node's agent says what is on its disk
