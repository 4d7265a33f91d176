"""What is whole on this node's disk, from its agent to its launcher: a file in the folder that both see.

The agent writes it after each local copy; the launcher reads it when it parks, and the sealer sees it in its entry.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from spotproof.store.starts import StagedCopy

__all__ = ["say_staged", "staged_in"]

STAGED_FILE: Final = "staged.json"


def say_staged(runtime_dir: Path, copies: Sequence[StagedCopy]) -> None:
    """Write the list; whole or not there."""
    aside = runtime_dir / f".{STAGED_FILE}-{os.getpid()}"
    aside.write_text(json.dumps([copy.text() for copy in copies]))
    aside.replace(runtime_dir / STAGED_FILE)


def staged_in(runtime_dir: Path) -> tuple[str, ...]:
    """The list as it is now; nothing where the agent has not said anything that can be read."""
    try:
        said = json.loads((runtime_dir / STAGED_FILE).read_text())
    except (OSError, ValueError):
        return ()
    return tuple(str(text) for text in said) if isinstance(said, list) else ()
