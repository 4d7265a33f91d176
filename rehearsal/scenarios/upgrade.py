"""Version 1 is deployed and a run submitted; version 2 is deployed while it trains; then the node is interrupted.

Version 2 differs in everything that an upgrade may touch: the functions' code and environment, the SSM document (which
has another name then), the node's boot script (a new version of the launch template). The run stays with the template
version that it was submitted with; the functions of version 2 read what those of version 1 wrote.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rehearsal import acts, verdicts
from rehearsal.evidence import DepartureKind, Evidence
from rehearsal.scenarios.scenario import Scenario, Spoil
from rehearsal.stage import Stage
from rehearsal.verdicts import Verdict
from spotproof.contract import names

UPGRADED: Final = "upgrade"
SINCE: Final = "upgraded"
BEFORE: Final = "document of version 1"
TEMPLATE: Final = "spotproof.template.json"
ASSETS: Final = "spotproof.assets.json"
SAYS: Final = "agent and trainer started"
DOCUMENT: Final = re.compile(r"DocumentFlush[0-9a-f]{8}[0-9A-F]{8}")


class NoSuchStack(Exception):
    """The synthesized folder is not as it was when this was written; the text says what is missing."""


def script(stage: Stage) -> None:
    acts.begin(stage)
    stage.wait_for_step(20)
    (stage.noted[BEFORE],) = _documents(stage)
    stage.say(f"step {stage.step()}: version 2 is deployed over version 1")
    stage.upgrade(next_version(stage.cdk_out, stage.region.workdir / "v2"))
    stage.mark(SINCE)
    stage.say(f"    deployed at step {stage.step()}; the run is still on {stage.holder()}")
    acts.open_pools(stage, ("g6.xlarge", "us-east-1b"))
    instance, pieces = stage.holder(), stage.pieces()
    stage.departs("after the upgrade", DepartureKind.NOTICE, instance, good_step=0)
    stage.region.hosts.interrupt(instance, notice_s=stage.plan.notice_s)
    stage.wait_for_replacement(pieces)
    acts.end(stage)


def next_version(cdk_out: Path, target: Path) -> Path:
    """`cdk_out` as the next version of the stack would synthesize: other code, other document, other boot script.

    Raises NoSuchStack where what it changes is not there.
    """
    shutil.copytree(cdk_out, target)
    template, assets = target / TEMPLATE, target / ASSETS
    text, listed = template.read_text(), json.loads(assets.read_text())
    text = _other_code(text, listed, target)
    text = _other_document(text)
    text = _replaced(text, SAYS, "agent and trainer of version 2 started")
    text = _replaced(text, '"SPOTPROOF_LAUNCHES_PER_HOUR": "200"', '"SPOTPROOF_LAUNCHES_PER_HOUR": "300"')
    template.write_text(text)
    _other_template(listed, target, hashlib.sha256(text.encode()).hexdigest())
    assets.write_text(json.dumps(listed, indent=1))
    return target


def _replaced(text: str, old: str, new: str) -> str:
    if old not in text:
        raise NoSuchStack(f"{old!r} is not in {TEMPLATE}: mend {Path(__file__).name}")
    return text.replace(old, new)


def _other_code(text: str, listed: dict[str, Any], target: Path) -> str:
    """Every zip of the template with one file more, under a hash of its own."""
    zips = [key for key, asset in listed["files"].items() if asset["source"]["packaging"] == "zip"]
    for old in zips:
        new = hashlib.sha256(f"version 2 of {old}".encode()).hexdigest()
        folder = shutil.move(target / f"asset.{old}", target / f"asset.{new}")
        (Path(folder) / "version").write_text("2\n")
        listed["files"][new] = json.loads(json.dumps(listed["files"].pop(old)).replace(old, new))
        text = _replaced(text, old, new)
    return text


def _other_document(text: str) -> str:
    found = DOCUMENT.search(text)
    if found is None:
        raise NoSuchStack(f"no flush document in {TEMPLATE}: mend {Path(__file__).name}")
    text = text.replace(found.group(), "DocumentFlushOfVersionTwo")
    return _replaced(text, "Ask the spotproof agent to flush", "Ask the spotproof agent to flush, version 2")


def _other_template(listed: dict[str, Any], target: Path, digest: str) -> None:
    """The template is an asset too: its hash is its name in the bucket."""
    old = next(key for key, asset in listed["files"].items() if asset["source"]["path"] == TEMPLATE)
    listed["files"][digest] = json.loads(json.dumps(listed["files"].pop(old)).replace(old, digest))
    manifest = target / "manifest.json"
    manifest.write_text(_replaced(manifest.read_text(), old, digest))


def promises(stage: Stage, evidence: Evidence) -> Iterator[Verdict]:
    del evidence
    since = stage.moments.get(SINCE)
    if since is None:
        yield Verdict(name=UPGRADED, passed=False, says="the upgrade was not deployed")
        return
    calls = stage.region.calls
    sent = {a.call.params["DocumentName"] for a in calls.of("ssm", "SendCommand") if a.call.at > since and not a.error}
    documents = _documents(stage)
    asked = [a.call.params for a in calls.of("ec2", "CreateFleet") if a.call.at > since]
    versions = [_template_version(params) for params in asked]
    yield upgraded(
        sent=sent, documents=documents, versions=versions, newest=stage.outputs[names.OUTPUT_TEMPLATE_VERSION]
    )


def _documents(stage: Stage) -> set[str]:
    """The documents that the functions send now, as they are deployed."""
    deployed = stage.region.deployed.of("AWS::Lambda::Function")
    variables = [one.properties.get("Environment", {}).get("Variables", {}) for one in deployed]
    return {str(one["SPOTPROOF_DOCUMENT"]) for one in variables if "SPOTPROOF_DOCUMENT" in one} - {
        stage.noted.get(BEFORE, "")
    }


def _template_version(params: dict[str, Any]) -> str:
    return str(params["LaunchTemplateConfigs"][0]["LaunchTemplateSpecification"]["Version"])


def upgraded(*, sent: set[str], documents: set[str], versions: list[str], newest: str) -> Verdict:
    """The functions of version 2 sent their own document, and launched what the run was submitted with."""
    passed = len(sent) == 1 and sent <= documents and bool(versions) and set(versions) == {"1"} and newest == "2"
    told = "its own document" if sent and sent <= documents else f"the documents {sorted(sent)}"
    says = f"version 2 sent {told} and launched from template version {', '.join(versions) or '?'} (newest {newest})"
    return Verdict(name=UPGRADED, passed=passed, says=says)


def _lose_version(stage: Stage) -> None:
    """After the upgrade launches name a template version that EC2 does not have."""

    def gone(params: dict[str, Any]) -> dict[str, Any]:
        changed: dict[str, Any] = json.loads(json.dumps(params))
        for config in changed["LaunchTemplateConfigs"]:
            config["LaunchTemplateSpecification"]["Version"] = "99"
        return changed

    stage.region.faults.rewrite("ec2", "CreateFleet", gone, when=lambda _: SINCE in stage.moments)


SCENARIO: Final = Scenario(
    name="upgrade",
    says="version 2 of the stack is deployed over version 1 while a run trains, then it is interrupted",
    script=script,
    promises=promises,
    sabotage=Spoil(
        name="template-version-lost",
        says="the template version that the run was submitted with is gone after the upgrade",
        act=_lose_version,
        breaks=(verdicts.ONE_REPLACEMENT, verdicts.FINISHED),
    ),
)
