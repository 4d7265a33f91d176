"""AWS's own public parameters that a template asks for: every Region has them, moto has only some."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from moto.ssm.models import Parameter

from rehearsal.plane.account import Account, utc_now
from rehearsal.plane.failures import EmulationGap


def wanted(cdk_out: Path) -> list[str]:
    """Names of the public parameters that the templates of a synthesized folder take as their defaults."""
    names: list[str] = []
    for path in sorted(cdk_out.glob("*.template.json")):
        parameters: dict[str, Any] = json.loads(path.read_text()).get("Parameters", {})
        names += [
            str(parameter["Default"])
            for parameter in parameters.values()
            if str(parameter.get("Type", "")).startswith("AWS::SSM::Parameter::Value")
            and str(parameter.get("Default", "")).startswith("/aws/service/")
        ]
    return names


def provide(account: Account, names: list[str]) -> None:
    """Makes the image parameters that are not there, each with an AMI id of its own. Other kinds are a gap."""
    with account.lock:
        for name in names:
            if account.documents.get_parameter(name) is not None:
                continue
            if "ami" not in name:
                raise EmulationGap(f"the template asks for the public parameter {name}: its value is not known here")
            account.documents._parameters[name].append(_image(account, name))


def _image(account: Account, name: str) -> Parameter:
    make: Any = Parameter  # moto leaves methods abstract that it never needs
    made: Parameter = make(
        account_id=account.id,
        name=name,
        value=f"ami-{hashlib.sha256(name.encode()).hexdigest()[:17]}",
        parameter_type="String",
        description="",
        allowed_pattern=None,
        keyid=None,
        last_modified_date=utc_now(),
        version=1,
        data_type="aws:ec2:image",
    )
    return made
