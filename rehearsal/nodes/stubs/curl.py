"""`curl` for the metadata service: HTTP to loopback only, with the options that boot scripts use."""

from __future__ import annotations

import http.client
import sys
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

VALUED = {
    "-X": "method",
    "--request": "method",
    "-H": "header",
    "--header": "header",
    "-o": "output",
    "--output": "output",
    "-m": "max_time",
    "--max-time": "max_time",
    "--connect-timeout": "connect",
    "--retry": "retry",
    "--retry-delay": "delay",
    "--retry-max-time": "ignored",
    "--noproxy": "ignored",
    "-w": "write_out",
    "--write-out": "write_out",
    "-d": "data",
    "--data": "data",
}
FLAGS = {"-s", "-S", "-f", "-L", "-q", "--silent", "--show-error", "--fail", "--location", "--retry-connrefused"}
FLAGS |= {"--retry-all-errors", "--fail-with-body"}


@dataclass(kw_only=True)
class Asked:
    """The command line, read."""

    url: str = ""
    fail: bool = False
    headers: list[str] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)


class Unknown(Exception):
    """An option that this stub does not play."""


def read(argv: list[str]) -> Asked:
    """Options may be `--name value`, `--name=value`, and short ones may be joined: -sfX PUT."""
    asked, words = Asked(), list(argv)
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            asked.url = word
        elif word.startswith("--"):
            _long(asked, word, words)
        else:
            _short(asked, word, words)
    if not asked.url:
        raise Unknown("no URL")
    return asked


def _long(asked: Asked, word: str, words: list[str]) -> None:
    name, joined, value = word.partition("=")
    if name in VALUED:
        _keep(asked, VALUED[name], value if joined else words.pop(0))
    elif name in FLAGS:
        asked.fail = asked.fail or name.startswith("--fail")
    else:
        raise Unknown(name)


def _short(asked: Asked, word: str, words: list[str]) -> None:
    letters = list(word[1:])
    while letters:
        option = "-" + letters.pop(0)
        if option in VALUED:
            _keep(asked, VALUED[option], "".join(letters) or words.pop(0))
            return
        if option not in FLAGS:
            raise Unknown(option)
        asked.fail = asked.fail or option == "-f"


def _keep(asked: Asked, name: str, value: str) -> None:
    if name == "header":
        asked.headers.append(value)
    else:
        asked.values[name] = value


def fetch(asked: Asked) -> tuple[int, bytes]:
    """(status, body). Raises OSError when nobody answers in time."""
    parts = urlsplit(asked.url)
    timeout = float(asked.values.get("max_time", asked.values.get("connect", 60)))
    if parts.hostname not in ("127.0.0.1", "localhost"):
        # The link-local address and the internet are not there; a real client would wait for its time-out.
        raise TimeoutError(f"no route to {parts.hostname} in the rehearsal")
    connection = http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=timeout)
    headers = {name.strip(): value.strip() for name, _, value in (h.partition(":") for h in asked.headers)}
    data = asked.values.get("data")
    method = asked.values.get("method", "POST" if data is not None else "GET")
    connection.request(method, parts.path + (f"?{parts.query}" if parts.query else ""), body=data, headers=headers)
    response = connection.getresponse()
    return response.status, response.read()


def perform(asked: Asked) -> int:
    """Curl's exit status: 22 for an HTTP error with -f, 7 or 28 when nobody answers."""
    attempts = 1 + int(asked.values.get("retry", 0))
    status, body = 0, b""
    for attempt in range(attempts):
        if attempt:
            time.sleep(float(asked.values.get("delay", min(2**attempt, 8) / 4)))
        try:
            status, body = fetch(asked)
        except (OSError, http.client.HTTPException) as error:
            print(f"curl: {error}", file=sys.stderr)
            status = 0
            continue
        if status not in (408, 429, 500, 502, 503, 504):
            break
    if status == 0:
        return 28
    if asked.fail and status >= 400:
        print(f"curl: (22) The requested URL returned error: {status}", file=sys.stderr)
        return 22
    _write(asked, status, body)
    return 0


def _write(asked: Asked, status: int, body: bytes) -> None:
    output = asked.values.get("output")
    if output and output != "-":
        with open(output, "wb") as file:
            file.write(body)
    else:
        sys.stdout.buffer.write(body)
    sys.stdout.write(asked.values.get("write_out", "").replace("%{http_code}", str(status)))
    sys.stdout.flush()


def main(argv: list[str]) -> int:
    try:
        return perform(read(argv))
    except Unknown as option:
        print(f"curl (rehearsal): {option} is not played", file=sys.stderr)
        return 64


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
