"""Sabotages name real verdicts and reach into what the product really has; conditions are stripped whole."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from rehearsal import sabotage, verdicts
from rehearsal.sabotage import ALL, without_condition
from rehearsal.spoilt import sitecustomize

NAMES = {value for name, value in vars(verdicts).items() if name.isupper() and isinstance(value, str)}
# What each patch replaces: if the product renames it, the patch would change nothing and prove nothing.
REPLACED = [
    ("spotproof.store.s3", "checked"),
    ("spotproof.agent.membership", "waiting_for"),
    ("spotproof.agent.loop", "is_superseded"),
    ("spotproof.agent.heartbeat", "Heart"),
    ("spotproof.agent.imds", "Imds"),
    ("lambdas.decisions.failback", "due"),
    ("spotproof.store.storms", "Storms"),
    ("spotproof.rendezvous.consensus", "StopConsensus"),
    ("spotproof.rendezvous.consensus", "Wish"),
    ("lambdas.decisions.silence", "silent"),
    ("lambdas.decisions.silence", "_mute"),
    ("lambdas.decisions.silence", "_liveness"),
    ("lambdas.effects.machines", "Machines"),
    ("spotproof.checkpoint.restore", "_restore_rng"),
    ("spotproof.rendezvous.consensus", "StopConsensus"),
]


def test_each_sabotage_names_the_verdict_that_must_notice() -> None:
    assert len(ALL) >= 8
    assert len({known.name for known in ALL}) == len(ALL)
    assert all(set(known.breaks) <= NAMES and known.breaks for known in ALL)


@pytest.mark.torch
@pytest.mark.parametrize(("module", "attribute"), REPLACED)
def test_what_a_patch_replaces_is_there(module: str, attribute: str) -> None:
    assert hasattr(importlib.import_module(module), attribute)


def test_every_patched_module_is_covered_by_the_list_above() -> None:
    patched = {module for patches in sitecustomize.PATCHES.values() for module in patches}
    assert patched == {module for module, _ in REPLACED}


def test_an_unknown_sabotage_is_answered_with_the_known_ones() -> None:
    with pytest.raises(FileNotFoundError, match="flush-order-dropped"):
        sabotage.find("nothing")


def test_a_stripped_write_keeps_only_the_words_that_it_still_uses() -> None:
    update: dict[str, Any] = {
        "Key": {"pk": {"S": "a"}},
        "UpdateExpression": "SET #a = :a",
        "ConditionExpression": "#b = :b",
        "ExpressionAttributeNames": {"#a": "x", "#b": "y"},
        "ExpressionAttributeValues": {":a": {"N": "1"}, ":b": {"N": "2"}},
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }
    assert without_condition(update) == {
        "Key": {"pk": {"S": "a"}},
        "UpdateExpression": "SET #a = :a",
        "ExpressionAttributeNames": {"#a": "x"},
        "ExpressionAttributeValues": {":a": {"N": "1"}},
    }
