"""Entry point `spotproof` of the group `torchrun.handlers`: `torchrun --rdzv-backend spotproof`.

torch loads it while its own rendezvous package is being imported, so nothing here may import torch before the creator
is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters

__all__ = ["torchrun_handler"]


def torchrun_handler() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """Return what makes a handler from torchrun's parameters."""
    return _create


def _create(parameters: RendezvousParameters) -> RendezvousHandler:
    from spotproof.rendezvous.handler import create

    return create(parameters)
