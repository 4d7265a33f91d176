"""What an image would contain, read from its Dockerfile: entrypoint, command, environment, and where files went."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


@dataclass(kw_only=True)
class Image:
    """The last stage of a Dockerfile. `copied` maps paths in the image to paths in the build context."""

    workdir: str = "/"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    copied: dict[str, Path] = field(default_factory=dict)

    def locate(self, path: str) -> Path | None:
        """Where the file or folder at `path` of the image lies in the context; None when nothing was copied there.

        A folder that only holds copied things is found too, when all of them come from one folder of the context.
        """
        for target in sorted(self.copied, key=len, reverse=True):
            if path == target or path.startswith(target.rstrip("/") + "/"):
                return self.copied[target] / path[len(target) :].lstrip("/")
        return None


def read(text: str, context: Path) -> Image:
    """The image that `text` describes. Instructions that only build (RUN, ARG, ...) leave no trace here."""
    image = Image()
    for line in _instructions(text):
        word, _, rest = line.partition(" ")
        rest = rest.strip()
        match word.upper():
            case "FROM":
                image = Image()
            case "WORKDIR":
                image.workdir = str(PurePosixPath(image.workdir) / _filled(rest, image.env))
            case "ENV":
                image.env |= _assignments(rest, image.env)
            case "ENTRYPOINT":
                image.entrypoint = _argv(rest)
            case "CMD":
                image.command = _argv(rest)
            case "COPY" | "ADD":
                _copy(image, _filled(rest, image.env), context)
            case _:
                continue
    return image


def _instructions(text: str) -> list[str]:
    joined = re.sub(r"\\\n", " ", re.sub(r"(?m)^\s*#.*\n", "", text))
    return [line.strip() for line in joined.splitlines() if line.strip()]


def _argv(text: str) -> list[str]:
    return [str(word) for word in json.loads(text)] if text.startswith("[") else ["/bin/sh", "-c", text]


def _filled(text: str, env: dict[str, str]) -> str:
    return VARIABLE.sub(lambda found: env.get(found.group(1) or found.group(2), ""), text)


def _assignments(text: str, env: dict[str, str]) -> dict[str, str]:
    if "=" not in text.split(" ", 1)[0]:
        name, _, value = text.partition(" ")
        return {name: _filled(value, env)}
    pairs = re.findall(r'(\w+)=("(?:[^"\\]|\\.)*"|\S+)', text)
    return {name: _filled(value.strip('"'), env) for name, value in pairs}


def _copy(image: Image, text: str, context: Path) -> None:
    words = [word for word in text.split() if not word.startswith("--")]
    if "--from" in text or len(words) < 2:
        return
    *sources, target = words
    into = str(PurePosixPath(image.workdir) / target)
    for source in sources:
        origin = context / source
        is_folder_target = target.endswith("/") or target in (".", "./") or len(sources) > 1
        lands = f"{into.rstrip('/')}/{origin.name}" if is_folder_target and not origin.is_dir() else into.rstrip("/")
        image.copied[lands or "/"] = origin
