"""What needs a GPU. `make gpu-check` runs it; without one every test here is skipped with that reason."""

from __future__ import annotations

import pytest
import torch

NO_GPU = "there is no GPU here: torch.cuda.is_available() is False"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if "tests/gpu" in item.path.as_posix():
            item.add_marker(pytest.mark.skip(reason=NO_GPU))
