"""One zygote and one answer about namespaces for the session; each test gets a lab of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.lab.nodes import Lab, Plan, Zygote, may_make_namespaces


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    with Zygote() as made:
        yield made


@pytest.fixture(scope="session")
def namespaces() -> bool:
    """Whether nodes are namespaces here; else they are 127.0.0.x, and no link can be taken down."""
    return may_make_namespaces()


@pytest.fixture
def make_lab(zygote: Zygote, namespaces: bool, tmp_path: Path) -> Iterator[Callable[..., Lab]]:
    """Makes labs that end with the test."""
    with ExitStack() as stack:

        def make(name: str = "lab", **plan: object) -> Lab:
            folder = tmp_path / name
            folder.mkdir()
            settled = Plan(**plan)  # type: ignore[arg-type]
            return stack.enter_context(Lab(folder, zygote, namespaces=namespaces, plan=settled))

        yield make
