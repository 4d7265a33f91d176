"""A fine-tuning with a frozen base and small adapters, and what a backup tool makes of its second checkpoint."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

TOOLS = {"restic": "restic", "borg": "borgbackup"}  # and their Debian packages


class Lora(nn.Module):
    """Frozen layers, each with a small adapter that is trained: 1.2 % of the weights."""

    def __init__(self, base_mib: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        for _ in range(max(4, base_mib // 16)):
            base = nn.Linear(2048, 2048, bias=False).requires_grad_(False)
            self.layers.append(nn.ModuleList([base, nn.Linear(2048, 12, bias=False), nn.Linear(12, 2048, bias=False)]))


@dataclass(slots=True)
class Tuning:
    """The fine-tuning that is saved."""

    model: Lora
    optimizer: torch.optim.Optimizer

    @property
    def objects(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer}

    def trained(self) -> list[nn.Parameter]:
        """The adapters."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def moving(self) -> list[Tensor]:
        """All that a step changes."""
        return self.trained() + [value for state in self.optimizer.state.values() for value in state.values()]

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


def tuned(base_mib: int) -> Tuning:
    """After its first step."""
    model = Lora(base_mib)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.grad = torch.rand_like(parameter)
    tuning = Tuning(model, torch.optim.AdamW(trained))
    tuning.optimizer.step()
    return tuning


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Together."""
    return sum(value.numel() * value.element_size() for value in tensors)


def backed_up(name: str, tuning: Tuning, folder: Path, *, repeats: int) -> dict[str, float] | str:
    """The second backup of the same states by a backup tool, which has torch.save's file to read."""
    if shutil.which(name) is None:
        return f"not installed here (Debian: apt install {TOOLS[name]})"
    data, repository = folder / "data", folder / "repository"
    data.mkdir()
    env = {**os.environ, "RESTIC_PASSWORD": "bench", "HOME": str(folder), "BORG_BASE_DIR": str(folder)}
    started = {
        "restic": ["restic", "-q", "-r", str(repository), "init"],
        "borg": ["borg", "init", "-e", "none", str(repository)],
    }
    subprocess.run(started[name], env=env, check=True, capture_output=True)
    sizes, seconds = [folder_bytes(repository)], []
    for turn in range(2 + repeats):
        tuning.optimizer.step()
        torch.save(tuning.state(), data / "state.pt")
        argv = {
            "restic": ["restic", "-q", "-r", str(repository), "backup", str(data)],
            "borg": ["borg", "create", "-C", "none", f"{repository}::{turn}", str(data)],
        }
        begun = time.perf_counter()
        subprocess.run(argv[name], env=env, check=True, capture_output=True)
        seconds.append(time.perf_counter() - begun)
        sizes.append(folder_bytes(repository))
    added = [after - before for before, after in pairwise(sizes[1:])]
    return {"seconds": statistics.median(seconds[1:]), "sent_bytes": statistics.median(added)}


def folder_bytes(folder: Path) -> int:
    """Bytes of the files below."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
