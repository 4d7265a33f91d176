"""Python runs this at the start of every process of a sabotaged container or function. It breaks one thing.

`REHEARSAL_SPOILS` names it. A module is patched right after the product itself has imported it, so that a process that
never uses it pays nothing and behaves as ever.
"""

from __future__ import annotations

import dataclasses
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

Patch = Callable[[Any], None]


def _no_digest_check(module: Any) -> None:
    module.checked = lambda _key, data, **_: data


def _no_join_barrier(module: Any) -> None:
    module.waiting_for = lambda **_: ""


def _never_superseded(module: Any) -> None:
    module.is_superseded = lambda *_, **__: False


def _deaf_heart(module: Any) -> None:
    told = module.Heart.__init__

    def begin(self: Any, *words: Any, **named: Any) -> None:
        told(self, *words, **(named | {"on_superseded": lambda _: None}))

    module.Heart.__init__ = begin


def _no_rng(module: Any) -> None:
    module._restore_rng = lambda _: None  # noqa: SLF001 -- a sabotage reaches where no caller may


def _no_metadata(module: Any) -> None:
    module.Imds.poll = lambda _: []


def _no_failback(module: Any) -> None:
    module.due = lambda *_: ()


def _no_breaker(module: Any) -> None:
    module.Storms.spend = lambda *_, **__: 1


def _counts_outages(module: Any) -> None:
    """Whoever has not beaten for long enough is silent, whether anybody could have heard it or not."""

    def silent(facts: Any, slots: Any) -> Any:
        liveness = module._liveness(facts)  # noqa: SLF001 -- a sabotage reaches where no caller may
        return module._mute(facts, slots, now=facts.now, for_s=liveness.silence_s)  # noqa: SLF001

    module.silent = silent


def _believes_events(module: Any) -> None:
    """Whoever an event names has opted in, whatever EC2 says of its tags."""
    described = module.Machines.described

    def believed(self: Any, instances: Sequence[str]) -> tuple[Any, ...]:
        found = described(self, instances)
        return tuple(one if one.run else dataclasses.replace(one, run="rehearsal", stack="spotproof") for one in found)

    module.Machines.described = believed


def _no_consensus(module: Any) -> None:
    """A rank that has its notice saves and stops; the others do not hear of it."""
    stop, nothing = module.Wish.STOP, module.Wish.NOTHING
    module.StopConsensus.agree = lambda _, wish: stop if wish is stop else nothing


PATCHES: dict[str, dict[str, Patch]] = {
    "digest-check": {"spotproof.store.s3": _no_digest_check},
    "join-barrier": {"spotproof.agent.membership": _no_join_barrier},
    "generation": {"spotproof.agent.loop": _never_superseded, "spotproof.agent.heartbeat": _deaf_heart},
    "metadata-poll": {"spotproof.agent.imds": _no_metadata},
    "failback": {"lambdas.decisions.failback": _no_failback},
    "storm-breaker": {"spotproof.store.storms": _no_breaker},
    "silence": {"lambdas.decisions.silence": _counts_outages},
    "opt-in": {"lambdas.effects.machines": _believes_events},
    "consensus": {"spotproof.rendezvous.consensus": _no_consensus},
    "rng": {"spotproof.checkpoint.restore": _no_rng},
}


class _Spoiler(importlib.abc.MetaPathFinder):
    """Finds the modules that are to be patched as ever, and patches them once they have run."""

    def __init__(self, patches: dict[str, Patch]) -> None:
        self._patches = patches

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        patch = self._patches.pop(name, None)
        if patch is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            raise ImportError(f"the sabotage does not find {name}: mend rehearsal/spoilt")
        run = spec.loader.exec_module

        def run_and_patch(module: ModuleType) -> None:
            run(module)
            patch(module)

        spec.loader.exec_module = run_and_patch  # type: ignore[method-assign]  # on this one loader only
        return spec


if (_chosen := os.environ.get("REHEARSAL_SPOILS", "")) in PATCHES:
    sys.meta_path.insert(0, _Spoiler(dict(PATCHES[_chosen])))
