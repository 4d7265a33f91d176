"""The host service as on EC2, on a local table: `python -m tests.fakes.node_agent ROOT NODE INSTANCE RUN`."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path

from spotproof.agent.main import Ground, run_on
from spotproof.checkpoint.jobs import Begin
from spotproof.contract.settings import RendezvousSettings
from spotproof.store.folder import FolderObjects
from spotproof.store.local import LocalTable


def main() -> int:
    root, node, instance, run = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4]
    begin = Begin(
        run=run,
        scratch_dir=str(node / "scratch"),
        objects_dir=str(root / "objects"),
        table_file=str(root / "table.sqlite"),
    )
    with ExitStack() as stack, LocalTable(root / "table.sqlite") as table:
        ground = Ground(
            run=run,
            runtime_dir=node / "run",
            scratch_dir=node / "scratch",
            table=table,
            objects=FolderObjects(root / "objects"),
            begin=begin,
            is_local=False,
            instance=instance,
            rendezvous=RendezvousSettings(local_dir=str(root), address=os.environ.get("SPOTPROOF_ADDRESS", "")),
        )
        return run_on(ground, os.environ, stack)


if __name__ == "__main__":
    raise SystemExit(main())
