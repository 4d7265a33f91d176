"""What stands in the checkout, as git sees it: tracked files and new ones that are not ignored."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT_ROOMS = ("spotproof", "lambdas", "cdk_app", "trainer_image", "rehearsal", "benchmarks")


@cache
def all_files() -> tuple[Path, ...]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    paths = (ROOT / name for name in listed.stdout.decode().split("\0") if name)
    return tuple(path for path in paths if path.is_file())


def product_files() -> tuple[Path, ...]:
    """Python files that are not tests."""
    return tuple(
        path for path in all_files() if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in PRODUCT_ROOMS
    )


def in_room(room: str) -> tuple[Path, ...]:
    """Python files of a package or module given as a path from the root."""
    base = ROOT / room
    return tuple(path for path in product_files() if path == base or base in path.parents)
