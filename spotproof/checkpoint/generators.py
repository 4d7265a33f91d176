"""Random generators of a script's own, as objects with a state: the global ones are captured without being tracked.

Their states are plain values, so they need no code to be read; only the class that saved a state takes it back.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch

from spotproof.errors import MismatchedState

_CODE_CHANGED = "track the kind of generator that was saved"


@dataclass(frozen=True, slots=True)
class TorchGenerator:
    """Of any device."""

    generator: torch.Generator

    def state_dict(self) -> dict[str, Any]:
        """Its state as bytes in a tensor."""
        return {"torch": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises MismatchedState if it was another kind of generator."""
        self.generator.set_state(_of("torch", state))


@dataclass(frozen=True, slots=True)
class PythonGenerator:
    """`random.Random`."""

    generator: random.Random

    def state_dict(self) -> dict[str, Any]:
        """Its state as a tuple of numbers."""
        return {"python": self.generator.getstate()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises MismatchedState if it was another kind of generator."""
        self.generator.setstate(_of("python", state))


@dataclass(frozen=True, slots=True)
class NumpyGenerator:
    """`numpy.random.Generator` and `RandomState`, each with the bit generator that it has."""

    generator: Any  # numpy is not imported for its types

    def state_dict(self) -> dict[str, Any]:
        """The state of its bit generator."""
        if hasattr(self.generator, "bit_generator"):
            return {"numpy": self.generator.bit_generator.state}
        return {"numpy": self.generator.get_state(legacy=False)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises MismatchedState if it was another kind of generator, or another bit generator."""
        saved = _of("numpy", state)
        mine = self.state_dict()["numpy"]["bit_generator"]
        if saved.get("bit_generator") != mine:
            raise MismatchedState(
                f"a {saved.get('bit_generator')} was saved, here is a {mine}", next_step=_CODE_CHANGED
            )
        if hasattr(self.generator, "bit_generator"):
            self.generator.bit_generator.state = saved
        else:
            self.generator.set_state(saved)


def as_stateful(thing: object) -> object:
    """`thing` itself, or, of a generator, what gives and takes its state."""
    if isinstance(thing, torch.Generator):
        return TorchGenerator(thing)
    if isinstance(thing, random.Random):
        return PythonGenerator(thing)
    kind = type(thing)
    if kind.__module__.startswith("numpy.random") and kind.__name__ in {"Generator", "RandomState"}:
        return NumpyGenerator(thing)
    return thing


def _of(kind: str, state: dict[str, Any]) -> Any:
    if set(state) != {kind}:
        raise MismatchedState(f"a generator of {', '.join(state)} was saved, here is {kind}", next_step=_CODE_CHANGED)
    return state[kind]
