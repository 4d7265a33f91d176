"""`aws`: any operation of any service that botocore knows, with JSON arguments, --query and --output json|text."""

from __future__ import annotations

import base64
import json
import os
import sys
from typing import Any

import jmespath  # type: ignore[import-untyped]
from botocore import xform_name
from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import Session

GLOBAL_VALUES = {"--region", "--query", "--output", "--endpoint-url", "--cli-read-timeout", "--cli-connect-timeout"}
GLOBAL_FLAGS = {"--no-cli-pager", "--no-paginate", "--debug"}


class Usage(Exception):
    """The command line is not one that the CLI would take."""


def split(argv: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    """(positional words, option -> its values)."""
    positional: list[str] = []
    options: dict[str, list[str]] = {}
    current: list[str] = positional
    for word in argv:
        if word.startswith("--"):
            name, joined, value = word.partition("=")
            current = options.setdefault(name, [])
            if joined:
                current.append(value)
        else:
            current.append(word)
    return positional, options


def arguments(operation: Any, options: dict[str, list[str]]) -> dict[str, Any]:
    """The operation's parameters, by the types of its input shape."""
    members = operation.input_shape.members if operation.input_shape else {}
    by_option = {"--" + xform_name(name, "-"): name for name in members}
    given: dict[str, Any] = {}
    for option, values in options.items():
        negated = "--" + option.removeprefix("--no-")
        if option in GLOBAL_VALUES | GLOBAL_FLAGS:
            continue
        if option in by_option:
            given[by_option[option]] = _value(members[by_option[option]], values)
        elif option.startswith("--no-") and negated in by_option:
            given[by_option[negated]] = False
        else:
            raise Usage(f"Unknown options: {option}")
    return given


def _value(shape: Any, values: list[str]) -> Any:
    if shape.type_name == "boolean":
        return True
    if not values:
        raise Usage("expected one argument")
    if shape.type_name in ("structure", "map"):
        return _json(values[0])
    if shape.type_name == "list":
        return _json(values[0]) if values[0].lstrip().startswith(("[", "{")) else values
    if shape.type_name in ("integer", "long"):
        return int(values[0])
    if shape.type_name in ("float", "double"):
        return float(values[0])
    return values[0]


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise Usage(f"Error parsing parameter: {text!r}: {error}") from error


def printed(value: Any, output: str) -> str:
    """As the CLI prints it: `text` spells null None and joins lists by tabs."""
    if output == "json":
        return json.dumps(value, indent=4, default=str)
    if isinstance(value, list):
        return (
            "\n".join(printed(part, output) for part in value)
            if any(isinstance(part, (list, dict)) for part in value)
            else "\t".join(printed(part, output) for part in value)
        )
    if isinstance(value, dict):
        return "\t".join(printed(value[name], output) for name in sorted(value))
    return "None" if value is None else str(value)


def call(positional: list[str], options: dict[str, list[str]]) -> Any:
    if len(positional) != 2:
        raise Usage("aws SERVICE OPERATION [--option value]")
    service, command = positional
    region = (options.get("--region") or [os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION", "")])[0]
    if not region:
        raise Usage('You must specify a region. You can also configure your region by running "aws configure".')
    session = Session()
    if (service, command) == ("ecr", "get-login-password"):
        client: Any = session.create_client("ecr", region_name=region)
        token = client.get_authorization_token()["authorizationData"][0]["authorizationToken"]
        return base64.b64decode(token).decode().partition(":")[2]
    model = session.get_service_model(service)
    names = {xform_name(name, "-"): name for name in model.operation_names}
    if command not in names:
        raise Usage(f"Invalid choice: '{command}'")
    client = session.create_client(service, region_name=region)
    given = arguments(model.operation_model(names[command]), options)
    answer = getattr(client, xform_name(names[command]))(**given)
    answer.pop("ResponseMetadata", None)
    return answer


def main(argv: list[str]) -> int:
    positional, options = split(argv)
    try:
        answer = call(positional, options)
    except Usage as error:
        print(f"aws: {error}", file=sys.stderr)
        return 252
    except ClientError as error:
        print(f"\n{error}", file=sys.stderr)
        return 254
    except BotoCoreError as error:
        print(f"\n{error}", file=sys.stderr)
        return 253
    query = (options.get("--query") or [""])[0]
    if query:
        answer = jmespath.search(query, answer)
    output = (options.get("--output") or ["json"])[0]
    print(answer if isinstance(answer, str) and "get-login-password" in argv else printed(answer, output))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
