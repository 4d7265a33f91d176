"""Fills cdk_app/userdata.sh: contract names, and what the deployment knows. The shell adds what the instance knows."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from spotproof.contract import ids, keys, orders, tags
from spotproof.contract.settings import NodeSettings, TrainerSettings

TEMPLATE: Final = Path(__file__).with_name("userdata.sh")
AGENT_CONTAINER: Final = "spotproof-agent"
TRAINER_CONTAINER: Final = "spotproof-trainer"
_WORD = re.compile(r"@([a-z_]+)@")


def render(*, stack: str, table: str, bucket: str, region: str, log_group: str, strict_metadata: bool) -> str:
    """The script that every instance runs at boot. Values may be CloudFormation tokens.

    With `strict_metadata` the trainer gets a network namespace of its own, from which a hop limit of 1 keeps the
    metadata service out of reach; else it shares the host's, which collectives between nodes want.
    """
    node = NodeSettings(
        stack=stack,
        table=table,
        bucket=bucket,
        region=region,
        run="$run",
        instance="$instance",
        launch="$launch",
        runtime_dir="$runtime",
        scratch_dir="$scratch",
    )
    trainer = TrainerSettings(runtime_dir="$runtime", run="$run").to_env()
    spec = keys.spec("$run")
    return fill(
        TEMPLATE.read_text(encoding="utf-8"),
        {
            "agent_container": AGENT_CONTAINER,
            "agent_environment": _lines(node.to_env()),
            "log_group": log_group,
            "region": region,
            "requests": orders.REQUESTS,
            "run_id_pattern": ids.RUN_ID_PATTERN,
            "runtime_dir": orders.RUNTIME_DIR,
            "scratch_dir": next(
                str(one.default) for one in dataclasses.fields(NodeSettings) if one.name == "scratch_dir"
            ),
            "spec_key": json.dumps({keys.PK: {"S": spec.pk}, keys.SK: {"S": spec.sk}}).replace('"', '\\"'),
            "table": table,
            "tag_launch": tags.LAUNCH,
            "tag_run": tags.RUN,
            "trainer_container": TRAINER_CONTAINER,
            "trainer_environment": _lines({**trainer, "AWS_DEFAULT_REGION": region}),
            "trainer_network": "bridge" if strict_metadata else "host",
        },
    )


def fill(template: str, words: Mapping[str, str]) -> str:
    """`template` with every `@word@` replaced. Raises KeyError for a word that has no value."""
    comments_gone = "\n".join(line for line in template.splitlines() if not line.startswith("# ")) + "\n"
    return _WORD.sub(lambda match: words[match[1]], comments_gone)


def _lines(environment: Mapping[str, str]) -> str:
    return "\n".join(f"{name}={value}" for name, value in environment.items() if value)
