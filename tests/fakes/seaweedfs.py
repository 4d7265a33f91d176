"""SeaweedFS on loopback: a real S3 server, the only one at hand that refuses a body with a wrong checksum.

`weed mini` opens many ports and listens on all interfaces unless told otherwise, and reports to an outside host unless
told otherwise: every port is chosen free, every address is loopback, telemetry is off.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

ACCESS_KEY, SECRET_KEY = "testing", "testing"
READY_WITHIN_S = 40
PORTS = (
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "s3.port",
    "s3.port.grpc",
    "admin.port",
    "admin.port.grpc",
)
IDENTITIES = {
    "identities": [
        {
            "name": "tests",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "List", "Tagging", "Write"],
        }
    ]
}


class NotHere(Exception):
    """This machine cannot run it; the message says why, for the reason of a skip."""


def free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


def command_in(folder: Path, binary: Path) -> tuple[list[str], str]:
    ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    config = folder / "identities.json"
    config.write_text(json.dumps(IDENTITIES))
    (folder / "data").mkdir()
    command = [
        str(binary),
        "mini",
        f"-dir={folder / 'data'}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        f"-s3.config={config}",
        f"-filer.localSocket={folder / 'filer.sock'}",
        f"-s3.localSocket={folder / 's3.sock'}",
        "-master.telemetry=false",
        "-admin.ui=false",
        "-webdav=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        *(f"-{name}={port}" for name, port in ports.items()),
    ]
    return command, f"http://127.0.0.1:{ports['s3.port']}"


def wait_until_it_answers(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    give_up_at = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < give_up_at:
        if process.poll() is not None:
            raise NotHere(f"weed ended at once with status {process.returncode}: {log.read_text()[-500:]}")
        try:
            with urllib.request.urlopen(f"{url}/healthz", timeout=2):
                return
        except urllib.error.HTTPError:
            return  # it answers
        except OSError:
            time.sleep(0.05)
    raise NotHere(f"weed did not answer within {READY_WITHIN_S} s: {log.read_text()[-500:]}")


@contextmanager
def seaweedfs() -> Iterator[str]:
    """Yield the endpoint URL of an empty SeaweedFS; end it with the block. Raises NotHere where it cannot run."""
    binary = Path(sys.executable).parent / "weed"
    if not binary.exists():
        raise NotHere("no `weed` beside the interpreter: run `make setup`")
    with tempfile.TemporaryDirectory(prefix="weed-") as name:
        folder = Path(name)
        command, url = command_in(folder, binary)
        log = folder / "log"
        environment = {"PATH": os.environ["PATH"], "HOME": name, "TMPDIR": name}
        with (
            log.open("wb") as output,
            subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=name) as process,
        ):
            try:
                wait_until_it_answers(url, process, log)
                yield url
            finally:
                process.kill()  # it takes ten seconds to end politely, and nothing of it is kept
