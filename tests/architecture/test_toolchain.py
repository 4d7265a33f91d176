"""What the build is made from: exact pins, all recommended flags of CDK, commands that the documents promise."""

from __future__ import annotations

import json
import re
import tarfile
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from spotproof.contract import runspec
from tests.architecture.tree import ROOT

PINNED = re.compile(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+")


def pins(name: str) -> dict[str, str]:
    """Distribution name -> version, of a file whose every line is an exact pin."""
    lines = [line for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#")]
    assert not [line for line in lines if not PINNED.fullmatch(line)]
    return {canonicalize_name(line.split("==")[0]): line.split("==")[1] for line in lines}


def declared() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    own = ("torch", "cdk", "rehearsal", "bench", "dev")
    wanted = [*project["dependencies"], *(one for extra in own for one in extras[extra])]
    return [one for one in map(Requirement, wanted) if one.name != "spotproof"]


@pytest.mark.parametrize("wanted", declared(), ids=lambda one: one.name)
def test_the_lock_satisfies_what_the_project_declares(wanted: Requirement) -> None:
    version = pins("requirements.lock").get(canonicalize_name(wanted.name))
    assert version is not None, f"{wanted.name} is declared but not locked: run `make lock`"
    assert wanted.specifier.contains(version), f"{wanted} is declared, {version} is locked"


def test_the_zip_of_the_functions_has_the_versions_that_are_tested() -> None:
    locked = pins("requirements.lock")
    assert pins("lambdas/requirements.txt").items() <= locked.items()


def test_node_tools_are_pinned_exactly() -> None:
    tools = json.loads((ROOT / "package.json").read_text())["devDependencies"]
    assert {"aws-cdk", "amplify-dynamodb-simulator"} <= tools.keys()
    assert not [version for version in tools.values() if not re.fullmatch(r"\d+\.\d+\.\d+", version)]


def test_every_recommended_flag_of_cdk_is_set() -> None:
    bundle = next(Path(str(files("aws_cdk._jsii"))).glob("aws-cdk-lib@*.jsii.tgz"))
    with tarfile.open(bundle) as archive:
        flags = archive.extractfile("package/recommended-feature-flags.json")
        assert flags is not None
        recommended = json.load(flags)
    context = json.loads((ROOT / "cdk.json").read_text())["context"]
    assert {name: context.get(name) for name in recommended} == recommended


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "docs/decisions/README.md"])
def test_links_of_the_documents_lead_somewhere(document: str) -> None:
    page = ROOT / document
    links = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text())
    assert not [link for link in links if "://" not in link and not (page.parent / link).exists()]


def test_every_decision_page_is_in_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text()
    assert not [page.name for page in folder.glob("*.md") if page.name != "README.md" and f"({page.name})" not in index]


def test_the_run_spec_of_the_readme_is_one() -> None:
    block = re.search(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block is not None
    spec = runspec.parse(yaml.safe_load(block.group(1).replace("<digest>", "0" * 64)))
    assert (ROOT / spec.command[-1]).exists()


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_make_targets_that_the_documents_name_exist(document: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", (ROOT / document).read_text(), re.MULTILINE))
    assert named
    assert named <= targets
