from __future__ import annotations

import subprocess
import sys

TORCH_FREE = (
    "arena", "channel", "chunks", "commit", "export", "fetch", "images", "inventory", "jobs", "localcopy", "memcopy",
    "meter", "sanity",
    "pull", "tagged", "uploader", "uploads",
)  # fmt: skip


def test_everything_behind_the_arena_runs_without_torch() -> None:
    modules = [f"spotproof.checkpoint.{name}" for name in TORCH_FREE]
    load = f"import importlib, sys\nfor name in {modules!r}: importlib.import_module(name)"
    code = f"{load}\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
