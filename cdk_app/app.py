"""What `cdk synth` and `cdk deploy` run: settings file -> stack -> cdk.out, with cdk-nag's findings as errors."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Final

from aws_cdk import App, Validations
from cdk_nag import AwsSolutionsChecks, ServerlessChecks

from cdk_app import settings
from cdk_app.bundling import ROOT
from cdk_app.idle_cost import monthly_note
from cdk_app.stack import SpotproofStack
from spotproof.errors import BadSettings

SETTINGS_CONTEXT: Final = "settings"  # cdk deploy -c settings=team-b.toml


def build(app: App, deployment: settings.StackSettings) -> SpotproofStack:
    """The stack in `app`, checked against AwsSolutions and Serverless when the app is synthesized."""
    stack = SpotproofStack(app, settings=deployment)
    Validations.of(app).add_plugins(AwsSolutionsChecks(app), ServerlessChecks(app))
    return stack


def new_app(outdir: str) -> App:
    """An app that writes to `outdir`, with cdk.json's feature flags also where the CLI is not the caller."""
    context = json.loads((ROOT / "cdk.json").read_text(encoding="utf-8"))["context"]
    return App(outdir=outdir, context=context)


def main() -> int:
    """Synthesizes into the folder that the CLI names, or cdk.out. 1, with one line, for bad settings."""
    app = new_app(os.environ.get("CDK_OUTDIR") or str(ROOT / "cdk.out"))
    path = ROOT / Path(str(app.node.try_get_context(SETTINGS_CONTEXT) or settings.FILE))
    try:
        deployment = settings.load(path)
        build(app, deployment)
    except BadSettings as error:
        print(f"spotproof: {error}", file=sys.stderr)
        return 1
    app.synth()
    if note := monthly_note(deployment):
        print(f"spotproof: {note}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
