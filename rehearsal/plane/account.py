"""The account itself: moto's state, the one lock that guards it, and typed ways to reach its parts."""

from __future__ import annotations

import datetime
import itertools
import threading
from dataclasses import dataclass
from typing import Any, cast

from moto.backends import get_backend
from moto.core.base_backend import BackendDict

# Each region of a process is an account of its own: moto's state is global and told apart by account.
NUMBERS = itertools.count(111_122_223_333)
OPERATOR_KEY = "AKIAOPERATOR00000000"  # twenty characters, as AWS's are: moto reads keys by that shape
OPERATOR_SECRET = "operator"  # noqa: S105  a fixed word of an account that exists on loopback only
GLOBAL = ("iam", "sts", "s3")  # moto keeps these by partition, the others by Region


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Temporary keys of a role, as STS gives them."""

    access_key: str
    secret_key: str
    token: str
    expires_at: datetime.datetime
    role: str

    def as_env(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_SESSION_TOKEN": self.token,
        }


class Account:
    """moto's backends of one account and Region. Hold `lock` while you touch anything that a property returns.

    moto loses acknowledged writes under threads; behind this one re-entrant lock it does not.
    """

    def __init__(self, region: str) -> None:
        self.region = region
        self.id = str(next(NUMBERS))
        self.lock = threading.RLock()
        self._roles: dict[str, Credentials] = {}

    def backend(self, service: str) -> Any:
        """moto's state of one service in this Region (or partition)."""
        backends: BackendDict[Any] = get_backend(cast(Any, service))
        return backends[self.id]["aws" if service in GLOBAL else self.region]

    @property
    def ec2(self) -> Any:
        return self.backend("ec2")

    @property
    def functions(self) -> Any:
        return self.backend("lambda")

    @property
    def queues(self) -> Any:
        return self.backend("sqs")

    @property
    def events(self) -> Any:
        return self.backend("events")

    @property
    def documents(self) -> Any:
        return self.backend("ssm")

    @property
    def buckets(self) -> Any:
        return self.backend("s3")

    def forget(self) -> None:
        """Drops everything that the account holds."""
        registry: Any = BackendDict
        with self.lock:
            for backends in list(registry._instances):
                backends.pop(self.id, None)

    def assume(self, role_arn: str, session: str) -> Credentials:
        """Keys of a deployed role. Raises moto's NotFound when the role does not exist: nothing is minted for it."""
        with self.lock:
            self.backend("iam").get_role_by_arn(role_arn)
            minted = self.backend("sts").assume_role(
                region_name=self.region,
                role_session_name=session,
                role_arn=role_arn,
                policy="",
                duration=3600,
                external_id="",
            )
            keys = Credentials(
                access_key=minted.access_key_id,
                secret_key=minted.secret_access_key,
                token=minted.session_token,
                expires_at=minted.expiration.replace(tzinfo=datetime.UTC),
                role=role_arn.rsplit("/", 1)[-1],
            )
            self._roles[keys.access_key] = keys
            return keys

    def credentials(self, access_key: str) -> Credentials | None:
        """What `assume` gave out under this key; None for other keys."""
        return self._roles.get(access_key)

    def role_of(self, access_key: str) -> str:
        """Name of the role behind an access key, also one that a client assumed itself; '' when there is none."""
        if access_key in self._roles:
            return self._roles[access_key].role
        with self.lock:
            assumed = self.backend("sts").get_assumed_role_from_access_key(access_key)
        return "" if assumed is None else str(assumed.role_arn).rsplit("/", 1)[-1]


def utc_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def wire_time(at: datetime.datetime) -> str:
    """AWS's event and IMDS time: UTC, whole seconds, Z."""
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
