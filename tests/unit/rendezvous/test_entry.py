"""How torchrun finds the handler, and what the environment must say."""

from __future__ import annotations

import subprocess
import sys

import pytest

ROOT_PROGRAM = """
import logging, sys
records = []
logging.Logger.warning = lambda self, *words, **more: records.append(words)
{first}
assert {early!r} == ("torch" in sys.modules)
from torch.distributed.elastic.rendezvous.registry import handler_registry
assert "spotproof" in handler_registry._registry, handler_registry._registry
assert not [one for one in records if "plugin" in str(one)], records
"""


@pytest.mark.torch
@pytest.mark.parametrize(
    ("first", "early"),
    [
        ("import spotproof.rendezvous.entry", False),
        ("import torch.distributed.elastic.rendezvous", True),
        ("import spotproof.rendezvous.handler", True),
    ],
)
def test_pitfall_2_torch_finds_the_handler_whatever_is_imported_first(first: str, early: bool) -> None:
    program = ROOT_PROGRAM.format(first=first, early=early)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
