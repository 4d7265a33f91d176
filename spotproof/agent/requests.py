"""Request files: what the SSM document drops. A file that has its final name is complete; each is read once and gone.

An agent that dies between reading and acting still hears of the interruption from the metadata and from HEAD.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from spotproof.contract.orders import REQUEST_PREFIX, REQUESTS, FlushOrder, parse_request
from spotproof.errors import ContractError

_LINE_MAX_BYTES = 1024


@dataclass(slots=True)
class Requests:
    """The folder `<runtime>/requests`. `refused` tells of files that are no requests, once each."""

    runtime_dir: Path
    refused: list[str] = field(default_factory=list)

    def open(self) -> None:
        """Make the folder; only this user may write to it."""
        folder = self.runtime_dir / REQUESTS
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def poll(self) -> list[FlushOrder]:
        """Orders that were dropped since the last poll, oldest name first."""
        folder = self.runtime_dir / REQUESTS
        try:
            names = sorted(path.name for path in folder.iterdir() if path.name.startswith(REQUEST_PREFIX))
        except FileNotFoundError:
            return []
        orders = [self._order(folder / name) for name in names]
        return [order for order in orders if order is not None]

    def _order(self, path: Path) -> FlushOrder | None:
        try:
            with path.open("rb") as file:
                line = file.read(_LINE_MAX_BYTES).decode("ascii")
            path.unlink()
            return parse_request(line)
        except (OSError, UnicodeDecodeError, ContractError) as error:
            self.refused.append(f"{path}: {error}")
            return None
