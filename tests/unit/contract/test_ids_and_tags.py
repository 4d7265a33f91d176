"""Ids, tag keys, exit codes: what never reaches a key, a tag or a request unless it has the agreed form."""

from __future__ import annotations

import re

import pytest

from spotproof.contract import ids, tags
from spotproof.contract.exits import ExitCode
from spotproof.errors import ContractError


@pytest.mark.parametrize("text", ["a", "0", "a-b", "mini-gpt-7", "a" * 63, "0-0"])
def test_these_are_run_ids(text: str) -> None:
    assert ids.run_id(text) == text
    assert ids.is_run_id(text)


@pytest.mark.parametrize(
    "text", ["", "-a", "a-", "A", "a_b", "a b", "a" * 64, "a#b", "a/b", "a\n", "é", "..", "a.b", "runs/../x", "$(id)"]
)
def test_these_are_no_run_ids(text: str) -> None:
    assert not ids.is_run_id(text)
    with pytest.raises(ContractError, match=re.escape(repr(text))) as caught:
        ids.run_id(text)
    assert caught.value.next_step


@pytest.mark.parametrize("text", ["s", "demo", "team-a-2", "s" * 32])
def test_these_are_stack_names(text: str) -> None:
    assert ids.stack_name(text) == text


@pytest.mark.parametrize("text", ["", "9a", "-a", "a-", "Demo", "s" * 33, "a\n", "a.b"])
def test_these_are_no_stack_names(text: str) -> None:
    with pytest.raises(ContractError, match="not a stack name"):
        ids.stack_name(text)


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("i-0a1b2c3d4e5f60718", True),
        ("i-12345678", True),
        ("i-0A1b2c3d4e5f60718", False),
        ("i-123456789", False),
        ("i-0a1b2c3d4e5f60718\n", False),
        ("mi-0a1b2c3d4e5f60718", False),
        ("none", False),
        ("", False),
    ],
)
def test_an_instance_id_has_8_or_17_hex_digits(text: str, is_one: bool) -> None:
    assert ids.is_instance_id(text) is is_one


def test_a_digest_has_64_hex_digits() -> None:
    assert ids.is_digest("0f" * 32)
    assert not any(ids.is_digest(text) for text in ("0f" * 31, "0F" * 32, "0g" * 32, "0f" * 32 + "\n", ""))


def test_tag_keys_may_be_shown_in_instance_metadata() -> None:
    # EC2 refuses keys with a slash or a blank once instance tags are visible there.
    assert len(set(tags.ALL)) == len(tags.ALL)
    assert all(re.fullmatch(r"[A-Za-z0-9+\-=.,_:@]{1,128}", key) for key in tags.ALL)


def test_a_launch_tags_all_that_says_whose_it_is() -> None:
    made = tags.of_launch(stack="demo", run="night", launch=7)
    assert set(made) == set(tags.ALL)
    assert (made[tags.STACK], made[tags.RUN], made[tags.LAUNCH]) == ("demo", "night", "7")


def test_an_opt_in_never_claims_that_we_launched_it() -> None:
    # What carries the launch tag may be terminated by us.
    assert set(tags.of_opt_in(stack="demo", run="night")) == {tags.STACK, tags.RUN}


def test_exit_codes_are_apart_from_signals_and_the_shells_own() -> None:
    assert len({code.value for code in ExitCode}) == len(ExitCode)
    assert all(code < 126 for code in ExitCode)
    assert {code.name: code.value for code in ExitCode if code > 1} == {
        "PREEMPTED_FLUSHED": 75,
        "PREEMPTED_LOST": 76,
        "PAUSED_BUDGET": 77,
        "BAD_CONFIGURATION": 78,
    }
