"""Request files: what the SSM document drops. A file that has its final name is complete; each is read once."""

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
    _read: set[str] = field(default_factory=set)

    def open(self) -> None:
        """Make the folder; only this user may write to it. Files from before this start have been answered."""
        folder = self.runtime_dir / REQUESTS
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def poll(self) -> list[FlushOrder]:
        """Orders that were dropped since the last poll, oldest name first."""
        folder = self.runtime_dir / REQUESTS
        try:
            names = sorted(path.name for path in folder.iterdir() if path.name.startswith(REQUEST_PREFIX))
        except FileNotFoundError:
            return []
        fresh = [name for name in names if name not in self._read]
        self._read.update(fresh)
        orders = [self._order(folder / name) for name in fresh]
        return [order for order in orders if order is not None]

    def _order(self, path: Path) -> FlushOrder | None:
        try:
            with path.open("rb") as file:
                line = file.read(_LINE_MAX_BYTES).decode("ascii")
            return parse_request(line)
        except (OSError, UnicodeDecodeError, ContractError) as error:
            self.refused.append(f"{path}: {error}")
            return None
