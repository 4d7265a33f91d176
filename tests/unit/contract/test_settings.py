"""Environment of each process: whoever sets it and whoever reads it agree, and every problem is told at once."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

import pytest

from spotproof.contract import settings
from spotproof.contract.settings import (
    ControlSettings,
    LocalSettings,
    NodeSettings,
    RendezvousSettings,
    TrainerSettings,
)
from spotproof.errors import BadSettings

CLASSES: list[Any] = [ControlSettings, NodeSettings, LocalSettings, TrainerSettings, RendezvousSettings]


def full(kind: Any) -> Any:
    hints = typing.get_type_hints(kind)
    values = {int: 7, bool: True, str: "a value, with = and 'quotes'"}
    return kind(**{field.name: values[hints[field.name]] for field in dataclasses.fields(kind)})


def required(kind: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(kind) if field.default is dataclasses.MISSING]


def test_every_class_is_looked_at() -> None:
    found = [
        kind for name, kind in vars(settings).items() if name.endswith("Settings") and dataclasses.is_dataclass(kind)
    ]
    assert set(found) == set(CLASSES)


@pytest.mark.parametrize("kind", CLASSES)
def test_what_is_set_is_what_is_read(kind: Any) -> None:
    assert kind.from_env(full(kind).to_env()) == full(kind)


@pytest.mark.parametrize("kind", CLASSES)
def test_only_what_has_no_default_must_be_set(kind: Any) -> None:
    environ = {settings.variable(name): "7" for name in required(kind)}
    assert kind.from_env({**environ, "PATH": "/bin", "SPOTPROOF_SOMETHING_NEW": "x"})


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if required(kind)])
@pytest.mark.parametrize("value", [None, ""])
def test_all_that_is_missing_is_named_at_once(kind: Any, value: str | None) -> None:
    names = [settings.variable(name) for name in required(kind)]
    with pytest.raises(BadSettings) as caught:
        kind.from_env({} if value is None else dict.fromkeys(names, value))
    assert all(f"{name} is not set" in str(caught.value) for name in names)


def test_a_wrong_value_is_named_beside_what_is_missing() -> None:
    with pytest.raises(BadSettings, match="SPOTPROOF_LAUNCHES_PER_HOUR='many' is not int") as caught:
        ControlSettings.from_env({"SPOTPROOF_LAUNCHES_PER_HOUR": "many"})
    assert "SPOTPROOF_TABLE is not set" in str(caught.value)


@pytest.mark.parametrize("kind", CLASSES)
def test_names_of_variables_have_our_prefix(kind: Any) -> None:
    assert all(name.startswith(settings.PREFIX) and name == name.upper() for name in full(kind).to_env())


def test_one_name_means_one_thing_in_every_process() -> None:
    kinds: dict[str, set[Any]] = {}
    for kind in CLASSES:
        for name, hint in typing.get_type_hints(kind).items():
            kinds.setdefault(name, set()).add(hint)
    assert not {name for name, hints in kinds.items() if len(hints) > 1}


def test_the_trainers_environment_is_part_of_the_agents() -> None:
    # A trainer under an agent finds the same runtime folder and run by the same names.
    trainer = {field.name for field in dataclasses.fields(TrainerSettings)}
    assert trainer - {"hosted"} <= {field.name for field in dataclasses.fields(LocalSettings)}  # the launcher says that
    assert {"run", "runtime_dir"} <= {field.name for field in dataclasses.fields(NodeSettings)}


def test_a_switch_is_true_or_false_and_nothing_else() -> None:
    @dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
    class Switch(settings._Environment):
        on: bool = False

    # A class of this function: its hints are looked up where it stands.
    Switch.__annotations__["on"] = bool
    assert Switch.from_env({"SPOTPROOF_ON": "true"}).on
    assert not Switch.from_env({"SPOTPROOF_ON": "false"}).on
    assert Switch(on=True).to_env() == {"SPOTPROOF_ON": "true"}
    for wrong in ("yes", "1", "True"):
        with pytest.raises(BadSettings, match="is not bool"):
            Switch.from_env({"SPOTPROOF_ON": wrong})
