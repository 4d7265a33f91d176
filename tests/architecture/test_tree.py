"""Names of folders, and what must never be in a tracked file."""

from __future__ import annotations

import re
from pathlib import Path

from tests.architecture.tree import ROOT, all_files

FORBIDDEN_FOLDERS = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "managers"}
TOP_LEVEL = {
    ".ci", "benchmarks", "cdk_app", "docs", "lambdas", "rehearsal", "spotproof", "tests", "trainer_image",
}  # fmt: skip
# Written apart, so that this file does not find itself.
HOME_FOLDER = re.compile("/" + r"(?:home|Users)/[a-z][\w.-]*/|/" + r"root/|/" + r"work/")
REGISTRY = re.compile(
    r"registry\.npmjs"
    + r"\.org|files\.pythonhosted"
    + r"\.org|pypi\.org/"
    + r"simple|index-"
    + r"url|\"resolved"
    + r"\":"
)

TEXT = {".py", ".md", ".toml", ".json", ".yaml", ".yml", ".lock", ".sh", ".txt", ".cfg", ".html", ".svg", ""}


def lines_that_match(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in all_files()
        if path.suffix in TEXT
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1)
        if pattern.search(line)
    ]


def test_a_folder_is_a_place_or_a_stage() -> None:
    folders = {parent for path in all_files() for parent in path.relative_to(ROOT).parents if parent != Path()}
    assert not [str(folder) for folder in folders if folder.name in FORBIDDEN_FOLDERS]


def test_top_level_folders_are_those_of_the_design() -> None:
    tops = {parts[0] for path in all_files() if len(parts := path.relative_to(ROOT).parts) > 1}
    assert tops <= TOP_LEVEL, f"a new top-level folder needs a decision first: {sorted(tops - TOP_LEVEL)}"


def test_no_file_names_a_folder_of_somebodys_machine() -> None:
    assert not lines_that_match(HOME_FOLDER)


def test_no_file_names_a_package_registry() -> None:
    assert not lines_that_match(REGISTRY)
