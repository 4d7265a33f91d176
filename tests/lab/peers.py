"""The peers' rendezvous beside ours: torch's own DynamicRendezvousHandler with its state in the same table.

What torch keeps in a c10d Store lies in a FileStore here, which no node hosts: the best that the peer could have.
"""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

DYNAMIC = "dynamic-on-table"


def register() -> None:
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry

    rendezvous_handler_registry.register(DYNAMIC, dynamic_handler)


def dynamic_handler(parameters: Any) -> Any:
    from torch.distributed import FileStore  # type: ignore[attr-defined]
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

    from spotproof.store.local import LocalTable

    folder = Path(os.environ["SPOTPROOF_LOCAL_DIR"])
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # with sharing on it never takes a newcomer in
    store = FileStore(str(folder / "filestore"), -1)
    backend: Any = TableBackend(LocalTable(folder / "table.sqlite"), parameters.run_id)  # torch's class is no protocol
    return create_handler(store, backend, parameters)


class TableBackend:
    """torch's RendezvousBackend protocol on one item."""

    name = DYNAMIC

    def __init__(self, table: Any, run: str) -> None:
        from spotproof.contract.keys import Key

        self.table = table
        self.key = Key(pk=f"PEER#{run}", sk="STATE")

    def get_state(self) -> tuple[bytes, int] | None:
        item = self.table.get(self.key)
        return None if item is None else (base64.b64decode(item["state"]), item["version"])

    def set_state(self, state: bytes, token: int | None = None) -> tuple[bytes, int, bool] | None:
        from spotproof.errors import Lost
        from spotproof.store.table import Absent, Eq, Put

        version = (token or 0) + 1
        item = {"state": base64.b64encode(state).decode(), "version": version}
        when = Absent("pk") if token is None else Eq("version", token)
        try:
            self.table.write(Put(key=self.key, item=item, when=when))
        except Lost:
            found = self.get_state()
            return None if found is None else (*found, False)
        return state, version, True
