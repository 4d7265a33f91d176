"""What a node's torchrun is told by its environment: torchrun reads each of its options from PET_<OPTION>.

What a person writes on the command line wins over it, so `spotproof run -- torchrun train.py` is enough.
"""

from __future__ import annotations

from typing import Final

from spotproof.contract.limits import REGROW_AFTER_S
from spotproof.contract.settings import RendezvousSettings

__all__ = ["torchrun_environment"]

MAX_RESTARTS: Final = 1_000_000  # each loss of another node costs a survivor one; failures are counted by the agent
EXIT_S: Final = 120  # torchrun kills its workers this long after SIGTERM; its own 30 s cut saves short (CW-13)


def torchrun_environment(
    settings: RendezvousSettings,
    *,
    run: str,
    smallest: int,
    largest: int,
    shutdown_s: int = EXIT_S,
    regrow_s: float = REGROW_AFTER_S,
) -> dict[str, str]:
    """The variables for a run of `smallest` to `largest` nodes; `settings` says where the table and our place are."""
    nodes = str(largest) if smallest == largest else f"{smallest}:{largest}"
    return {
        "PET_RDZV_BACKEND": "spotproof",
        "PET_RDZV_ID": run,
        "PET_NNODES": nodes,
        **({} if smallest == largest else {"PET_RDZV_CONF": f"regrow={regrow_s:g}"}),
        "PET_MAX_RESTARTS": str(MAX_RESTARTS),
        "PET_SHUTDOWN_TIMEOUT": str(shutdown_s),
        **{name: text for name, text in settings.to_env().items() if text},
    }
