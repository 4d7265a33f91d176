"""An agent that a person starts on an instance of their own finds out who it is; what it cannot find out it names."""

from __future__ import annotations

import time
from collections.abc import Mapping

import pytest

from spotproof.agent.identity import completed
from spotproof.agent.imds import Endpoint, Imds
from spotproof.contract.settings import NodeSettings
from spotproof.errors import BadSettings, MetadataUnavailable
from tests.fakes.imds import FakeImds, serving

STACKS = {"SPOTPROOF_TABLE": "table", "SPOTPROOF_BUCKET": "bucket"}
ANSWERS = {
    "instance-id": (200, "i-0ffffffffffffff01"),
    "placement/region": (200, "us-east-1"),
    "tags/instance/spotproof:run": (200, "mini"),
    "tags/instance/spotproof:stack": (200, "prod"),
}


def asked(environ: Mapping[str, str], imds: FakeImds) -> dict[str, str]:
    with serving(imds) as url:
        endpoint = Endpoint.from_env({"AWS_EC2_METADATA_SERVICE_ENDPOINT": url})
        return completed(environ, Imds(endpoint=endpoint, monotonic=time.monotonic, now=time.time))


def test_table_and_bucket_are_enough_on_a_tagged_instance() -> None:
    settings = NodeSettings.from_env(asked(STACKS, FakeImds(answers=dict(ANSWERS))))
    assert (settings.instance, settings.region, settings.run, settings.stack, settings.launch) == (
        "i-0ffffffffffffff01",
        "us-east-1",
        "mini",
        "prod",
        "",
    )


def test_what_is_set_is_not_asked() -> None:
    imds = FakeImds(answers=dict(ANSWERS))
    environ = {**STACKS, "SPOTPROOF_RUN": "other", "SPOTPROOF_INSTANCE": "i-1", "SPOTPROOF_REGION": "eu-west-1"}
    known = asked(environ, imds)
    assert environ.items() <= known.items()
    assert imds.gets == ["tags/instance/spotproof:stack", "tags/instance/spotproof:launch"]


def test_an_instance_without_readable_tags_is_told_what_to_do() -> None:
    answers = {path: answer for path, answer in ANSWERS.items() if not path.startswith("tags/")}
    with pytest.raises(BadSettings, match=r"i-0ffffffffffffff01 has no readable tag spotproof:run and spotproof:stack"):
        asked(STACKS, FakeImds(answers=answers))


def test_without_a_stack_nothing_is_asked() -> None:
    class Nobody:
        def text(self, path: str) -> str | None:
            raise AssertionError(path)

    assert completed({"SPOTPROOF_TABLE": "table"}, Nobody()) == {"SPOTPROOF_TABLE": "table"}


def test_a_service_that_does_not_answer_leaves_it_to_the_settings() -> None:
    class Silent:
        def text(self, path: str) -> str | None:
            raise MetadataUnavailable(path)

    with pytest.raises(BadSettings, match="SPOTPROOF_INSTANCE is not set"):
        NodeSettings.from_env(completed(STACKS, Silent()))
