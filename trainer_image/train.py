"""The reference trainer: a small character-level transformer, made to be copied.

What makes it survive interruptions is `Run`: the `with`, `track`, `batches` and `report` of `train`; the rest is plain
torch. `--untracked` trains the same without spotproof, and every loss is the same to the last bit.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import chain, islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

if TYPE_CHECKING:
    from spotproof import Run

CORPUS = Path(__file__).with_name("corpus.txt")
CONTEXT, WIDTH, HEADS, BLOCKS, DROPOUT = 128, 128, 4, 3, 0.1
BATCH, PEAK_RATE, WARM_UP_STEPS = 8, 3e-3, 20


def windows() -> TensorDataset:
    """The text as (number of the window, its characters, the characters that follow each of them)."""
    pieces = torch.tensor(list(CORPUS.read_bytes())).unfold(0, CONTEXT + 1, CONTEXT)
    return TensorDataset(torch.arange(len(pieces)), pieces[:, :-1], pieces[:, 1:])


class Transformer(nn.Module):
    """Guesses the next character at every place of a window."""

    def __init__(self) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(128, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        block = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, DROPOUT, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, BLOCKS, enable_nested_tensor=False)
        self.guess = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 128))

    def forward(self, text: Tensor) -> Tensor:
        """Logits, (batch, place, character)."""
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT, device=text.device)
        hidden = self.blocks(self.characters(text) + self.places.weight, mask=mask, is_causal=True)
        return self.guess(hidden)  # type: ignore[no-any-return]


class Untracked:
    """What the loop needs of a `Run`, without spotproof."""

    def track(self, **_: object) -> None: ...
    def report(self, **_: object) -> None: ...
    def batches(self, loader: DataLoader[Any], *, steps: int, **_: object) -> Iterator[Any]:
        return islice(chain.from_iterable(repeat(loader)), steps)


def share_of_peak(step: int, steps: int) -> float:
    """Learning rate of `step`, as a share of the peak: a linear warm-up, then half a cosine down to a tenth."""
    if step < WARM_UP_STEPS:
        return (step + 1) / WARM_UP_STEPS
    return 0.55 + 0.45 * math.cos(math.pi * min(1.0, (step - WARM_UP_STEPS) / max(1, steps - WARM_UP_STEPS)))


def train(opened: AbstractContextManager[Run | Untracked], *, steps: int, seed: int, loss_log: Path | None) -> None:
    """Train for `steps` optimizer steps, over as many epochs as that takes."""
    torch.manual_seed(seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    order = torch.Generator().manual_seed(seed)
    loader = DataLoader(windows(), batch_size=BATCH, shuffle=True, drop_last=True, generator=order)
    model = Transformer().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: share_of_peak(step, steps))
    with opened as run:
        run.track(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader)
        for samples, text, following in run.batches(loader, epochs=None, steps=steps):
            logits = model(text.to(device))
            loss = cross_entropy(logits.flatten(0, 1), following.to(device).flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            run.report(loss=loss.item())
            tell(loss_log, step=scheduler.last_epoch, loss=loss.item(), samples=samples.tolist())


def tell(loss_log: Path | None, *, step: int, loss: float, samples: list[int]) -> None:
    """Print now and then; append every step to the log, the loss exactly (float.hex), with the windows it saw."""
    if step % 10 == 0 or step == 1:
        print(f"step {step}  loss {loss:.4f}", flush=True)
    if loss_log:
        line = {"step": step, "loss": loss.hex(), "samples": samples, "at": time.time(), "pid": os.getpid()}
        with loss_log.open("a") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a small transformer on corpus.txt.")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of torch on the CPU; other numbers, other last bits")
    parser.add_argument("--loss-log", type=Path, help="append a JSON line per step to this file")
    parser.add_argument("--untracked", action="store_true", help="without spotproof")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    opened: AbstractContextManager[Run | Untracked] = nullcontext(Untracked())
    if not chosen.untracked:
        from spotproof import Run

        opened = Run.from_env()  # off AWS: a local folder, same behaviour
    train(opened, steps=chosen.steps, seed=chosen.seed, loss_log=chosen.loss_log)
