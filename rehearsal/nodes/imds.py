"""One instance's metadata service, version 2, on a port of its own."""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from rehearsal.plane.account import Credentials, utc_now, wire_time

TTL_HEADER = "X-aws-ec2-metadata-token-ttl-seconds"
TOKEN_HEADER = "X-aws-ec2-metadata-token"  # noqa: S105  the header's name
MAX_TTL_S = 21_600


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What never changes about an instance."""

    instance_id: str
    instance_type: str
    lifecycle: str
    zone: str
    region: str
    account: str
    image_id: str
    user_data: str
    role: str  # '' when the instance has no profile
    profile_arn: str
    tags_allowed: bool  # InstanceMetadataTags=enabled
    address: str = "127.0.0.1"  # its own on this machine's loopback: nodes listen on equal ports


@dataclass(kw_only=True)
class Notices:
    """What EC2 has announced to the instance; None is a 404. `scheduled` is the list of maintenance events."""

    action: dict[str, str] | None = None
    rebalance: dict[str, str] | None = None
    scheduled: list[dict[str, str]] = field(default_factory=list)


class Imds:
    """Answers as EC2 does: 401 without a valid token, 404 for what is not so, 400 for a bad token request.

    `trouble` makes it fail: an HTTP status that every request gets, or "hang", which never answers.
    """

    def __init__(
        self,
        identity: Identity,
        *,
        tags: Callable[[], dict[str, str]],
        keys: Callable[[], Credentials],
        power_off: Callable[[], None],
    ) -> None:
        self.identity = identity
        self.notices = Notices()
        self.trouble: int | str | None = None
        self.requests: list[str] = []
        self._tags = tags
        self._keys = keys
        self._power_off = power_off
        self._minted: Credentials | None = None
        self._tokens: dict[str, float] = {}
        self._ended = threading.Event()
        handler = type("BoundMetadata", (Metadata,), {"imds": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def stop_once(self) -> None:
        """Ends the service; runs any number of times."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()

    def hang(self) -> None:
        """Blocks until the instance is gone."""
        self._ended.wait(60)

    def new_token(self, ttl: str) -> str | None:
        """A session token, None when the wanted life time is not 1..21600 seconds."""
        if not ttl.isdigit() or not 1 <= int(ttl) <= MAX_TTL_S:
            return None
        token = secrets.token_urlsafe(24)
        self._tokens[token] = time.monotonic() + int(ttl)
        return token

    def knows(self, token: str) -> bool:
        return self._tokens.get(token, 0.0) > time.monotonic()

    def power_off(self) -> None:
        self._power_off()

    def page(self, path: str) -> str | None:
        """The text of one page under /latest/, None for 404."""
        if path.startswith("meta-data/tags/instance"):
            return self._tag_page(path.removeprefix("meta-data/tags/instance").strip("/"))
        if path.startswith("meta-data/iam/"):
            return self._iam_page(path.removeprefix("meta-data/iam/").strip("/"))
        page = self._pages().get(path.rstrip("/"))
        return page() if callable(page) else page

    def _tag_page(self, key: str) -> str | None:
        if not self.identity.tags_allowed:
            return None
        tags = self._tags()
        return tags.get(key) if key else "\n".join(sorted(tags))

    def _iam_page(self, name: str) -> str | None:
        identity = self.identity
        if not identity.role:
            return None
        if name == "info":
            return json.dumps({"Code": "Success", "InstanceProfileArn": identity.profile_arn})
        if name == "security-credentials":
            return identity.role
        return self._credentials() if name == f"security-credentials/{identity.role}" else None

    def _credentials(self) -> str:
        if self._minted is None or (self._minted.expires_at - utc_now()).total_seconds() < 600:
            self._minted = self._keys()
        keys = self._minted
        return json.dumps(
            {
                "Code": "Success",
                "Type": "AWS-HMAC",
                "LastUpdated": wire_time(utc_now()),
                "AccessKeyId": keys.access_key,
                "SecretAccessKey": keys.secret_key,
                "Token": keys.token,
                "Expiration": wire_time(keys.expires_at),
            }
        )

    def _pages(self) -> dict[str, Any]:
        identity, notices = self.identity, self.notices
        return {
            "user-data": identity.user_data or None,
            "meta-data/instance-id": identity.instance_id,
            "meta-data/instance-type": identity.instance_type,
            "meta-data/instance-life-cycle": identity.lifecycle,
            "meta-data/ami-id": identity.image_id,
            "meta-data/local-ipv4": identity.address,
            "meta-data/local-hostname": "localhost",
            "meta-data/hostname": "localhost",
            "meta-data/placement/availability-zone": identity.zone,
            "meta-data/placement/region": identity.region,
            "meta-data/services/domain": "amazonaws.com",
            "meta-data/spot/instance-action": notices.action and json.dumps(notices.action),
            "meta-data/spot/termination-time": notices.action and notices.action["time"],
            "meta-data/events/recommendations/rebalance": notices.rebalance and json.dumps(notices.rebalance),
            "meta-data/events/maintenance/scheduled": json.dumps(notices.scheduled),
            "meta-data/events/maintenance/history": "[]",
            "dynamic/instance-identity/document": self._document,
        }

    def _document(self) -> str:
        identity = self.identity
        return json.dumps(
            {
                "accountId": identity.account,
                "availabilityZone": identity.zone,
                "imageId": identity.image_id,
                "instanceId": identity.instance_id,
                "instanceType": identity.instance_type,
                "region": identity.region,
                "version": "2017-09-30",
            }
        )


class Metadata(BaseHTTPRequestHandler):
    """One client connection to the metadata service."""

    protocol_version = "HTTP/1.1"
    imds: Imds

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class's name
        del format, args

    def do_PUT(self) -> None:
        if self._troubled():
            return
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/rehearsal/power-off":
            self.imds.power_off()
            self._reply(200, "")
        elif self.headers.get("X-Forwarded-For"):
            self._reply(403, "")
        elif self.path != "/latest/api/token":
            self._reply(404, "")
        else:
            token = self.imds.new_token(self.headers.get(TTL_HEADER, ""))
            self._reply(400 if token is None else 200, token or "")

    def do_GET(self) -> None:
        if self._troubled():
            return
        if not self.imds.knows(self.headers.get(TOKEN_HEADER, "")):
            self._reply(401, "")
            return
        path = unquote(self.path.split("?", 1)[0]).removeprefix("/latest/")
        page = self.imds.page(path)
        self._reply(404 if page is None else 200, page or "")

    def _troubled(self) -> bool:
        self.imds.requests.append(f"{self.command} {self.path}")
        trouble = self.imds.trouble
        if trouble is None:
            return False
        if isinstance(trouble, int):
            self._reply(trouble, "")
        else:
            self.imds.hang()
            self.close_connection = True
        return True

    def _reply(self, status: int, text: str) -> None:
        body = text.encode()
        self.send_response_only(status)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        # A node that was frozen or killed in the middle of its request does not hear the answer any more.
        with contextlib.suppress(ConnectionError):
            self.end_headers()
            self.wfile.write(body)
