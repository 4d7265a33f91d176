"""What is made at its first use: a handler pays only for the services that it calls."""

from __future__ import annotations

from typing import Any

from spotproof.store.clients import Clients


class Lazy:
    """A client that is made at its first call: a handler pays only for the services that it uses."""

    def __init__(self, clients: Clients, service: str) -> None:
        self._clients = clients
        self._service = service

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clients.get(self._service), name)


class LazyObjects:
    """The bucket, made at its first use: repair alone commits for the dead, and seldom."""

    def __init__(self, clients: Clients, bucket: str) -> None:
        self._clients = clients
        self._bucket = bucket

    def __getattr__(self, name: str) -> Any:
        from spotproof.store.s3 import Checksum, S3Objects

        return getattr(S3Objects(self._clients.s3, self._bucket, checksum=Checksum.CRC32), name)
