"""The product's uploader process, with its table in a file beside the bucket: a benchmark has no DynamoDB."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

from spotproof.checkpoint.jobs import Begin
from spotproof.checkpoint.uploader import Uploader
from spotproof.store.clients import Clients
from spotproof.store.local import LocalTable
from spotproof.store.objects import Objects
from spotproof.store.s3 import S3Objects
from spotproof.store.sender import Sender, address_of
from spotproof.store.table import Table


def stores(begin: Begin) -> tuple[Objects, Table]:
    """The bucket by the product's own sender; the table of a file."""
    clients = Clients(region="us-east-1")
    client = clients.s3
    sender = Sender(
        address=lambda: address_of(client, begin.bucket),
        region="us-east-1",
        find_credentials=clients.credentials,
    )
    return S3Objects(client, begin.bucket, sender=sender), LocalTable(Path(begin.table_file))


def spawn(sock: socket.socket) -> subprocess.Popen[bytes]:
    """As `uploads.spawn_uploader`, of this module."""
    argv = [sys.executable, "-m", "benchmarks.checkpointing.uploader", str(sock.fileno())]
    return subprocess.Popen(argv, pass_fds=(sock.fileno(),), start_new_session=True)


def main() -> int:
    """The process."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as sock, Uploader(sock, open_stores=stores) as uploader:
        uploader.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
