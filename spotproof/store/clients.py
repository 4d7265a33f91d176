"""The one place that imports boto3 and makes clients: lazily, once per service, with time-outs chosen for their place.

Endpoints come from AWS_ENDPOINT_URL or AWS_ENDPOINT_URL_<SERVICE>, credentials and region from where boto3 finds them.
DynamoDB and S3 clients try a call once: `store.retry` tries again, with the caller's deadline. The others try two or
three times by themselves, because their callers act once and leave the rest to the sweep.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Any, Final

from spotproof.errors import BadSettings

__all__ = ["ClientSettings", "Clients"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Time-outs and tries of one service's client."""

    connect_s: float
    read_s: float
    tries: int
    connections: int = 10


METADATA_TRIES: Final = 3  # of a second each, where credentials come from the instance's metadata
# A control call has to fit into a Lambda's run several times over; a notice has two minutes in all.
_CONTROL: Final = ClientSettings(connect_s=2, read_s=5, tries=3)
_SETTINGS: Final[dict[str, ClientSettings]] = {
    "dynamodb": ClientSettings(connect_s=2, read_s=5, tries=1),
    # A chunk of 64 MiB on a slow minute; S3 answers a PUT only when it has all of it.
    "s3": ClientSettings(connect_s=2, read_s=20, tries=1, connections=32),
    # An instant fleet answers when it has launched: AWS takes up to half a minute for a large one. The second try has
    # the same token and waits for the same fleet; both together end before the handler does (lambdas.wiring.RESERVE_S).
    "ec2": ClientSettings(connect_s=2, read_s=12, tries=2),
    # A backup path beside the work: it may neither hold the handler's end nor be waited for (effects/errands.py).
    "ssm": ClientSettings(connect_s=1, read_s=3, tries=1),
    "sns": _CONTROL,
    "sqs": _CONTROL,
    "sts": _CONTROL,
    "cloudwatch": _CONTROL,
    "events": _CONTROL,  # drills
    "cloudformation": _CONTROL,  # submit and status read a stack's outputs
}


_UNCHECKED: Final = frozenset({"dynamodb", "ec2"})  # on the way from a notice to its launch


class Clients:
    """Clients of one process, made on first use and shared by its threads.

    `region` overrides what the environment says.
    """

    def __init__(self, *, region: str | None = None) -> None:
        self._region = region
        self._made: dict[str, Any] = {}
        self._session: Any = None
        self._renewed: Any = None  # credentials that took the place of those that the service refused
        self._lock = threading.Lock()

    def get(self, service: str) -> Any:
        """Return the low-level client of a service named in this file; KeyError for another: choose its time-outs.

        Raises BadSettings where no region is set, or a profile that does not exist.
        """
        settings = _SETTINGS[service]
        with self._lock:  # making a client is not thread-safe in boto3, using one is
            if service not in self._made:
                self._made[service] = self._make(service, settings)
            return self._made[service]

    @property
    def dynamodb(self) -> Any:
        """DynamoDB, for `DynamoTable`."""
        return self.get("dynamodb")

    @property
    def s3(self) -> Any:
        """S3, for `S3Objects`."""
        return self.get("s3")

    @property
    def ec2(self) -> Any:
        """EC2."""
        return self.get("ec2")

    @property
    def ssm(self) -> Any:
        """SSM, for the flush order."""
        return self.get("ssm")

    @property
    def sns(self) -> Any:
        """SNS, for notifications."""
        return self.get("sns")

    @property
    def sqs(self) -> Any:
        """SQS, for the repair queue."""
        return self.get("sqs")

    @property
    def sts(self) -> Any:
        """STS, to say who we are."""
        return self.get("sts")

    def credentials(self, anew: bool) -> Any:  # noqa: FBT001 -- the shape that `store.sender` calls
        """Frozen credentials that are good now; with `anew` from where they come from, not from what is remembered.

        Raises NoCredentialsError (of botocore) where there are none.
        """
        import botocore.session
        from botocore.exceptions import NoCredentialsError

        client = self.s3  # makes the session
        with self._lock:
            session = self._session
        found = botocore.session.get_session().get_credentials() if anew else session.get_credentials()
        if anew and found is not None:
            # The clients ask this very object at every signing, so that they have the new ones too.
            client._request_signer._credentials = found  # noqa: SLF001 -- there is no public way to give it new ones
            with self._lock:
                self._renewed = found
        elif not anew:
            found = self._renewed or found
        if found is None:
            raise NoCredentialsError
        return found.get_frozen_credentials()

    def _make(self, service: str, settings: ClientSettings) -> Any:
        import boto3
        import botocore.session
        from botocore.config import Config
        from botocore.exceptions import NoRegionError, ProfileNotFound

        config = Config(
            connect_timeout=settings.connect_s,
            read_timeout=settings.read_s,
            retries={"mode": "standard", "total_max_attempts": settings.tries},
            max_pool_connections=settings.connections,
            tcp_keepalive=True,
            # Requests are built here from typed values and tried in tests; to look through each of them again takes a
            # third of what a call to the table costs us.
            parameter_validation=service not in _UNCHECKED,
        )
        try:
            if self._session is None:
                # Our own: the default one is shared by everybody who imports boto3. One for all clients, because each
                # session reads botocore's endpoints and models anew, which costs more than a client.
                # AWS_REGION is what Lambda and the other SDKs set; boto3 alone reads only AWS_DEFAULT_REGION.
                core = botocore.session.get_session()
                core.set_config_variable("metadata_service_num_attempts", METADATA_TRIES)
                region = self._region or os.environ.get("AWS_REGION")
                self._session = boto3.session.Session(botocore_session=core, region_name=region)
            if service == "dynamodb":
                _leave_attributes_as_they_stand(self._session)
            return _finding_credentials(self._session, self._session.client(service, config=config))
        except NoRegionError as error:
            raise BadSettings("no AWS region is set", next_step="set AWS_REGION, or a region in the profile") from error
        except ProfileNotFound as error:
            raise BadSettings(str(error), next_step="set AWS_PROFILE to one of your profiles, or unset it") from error


def _leave_attributes_as_they_stand(session: Any) -> None:
    """Let the table's client pass typed attributes on: `store.values` makes and reads them.

    Botocore would walk through each of them by its model, which is a third of what a read costs us. Told by the model's
    own word for values without a schema. Where a newer botocore keeps another copy of it nothing changes but the time.
    """
    loader = session._session.get_component("data_loader")  # noqa: SLF001 - the botocore session that we made
    model = loader.load_service_model("dynamodb", "service-2", api_version=None)
    model["shapes"]["AttributeValue"]["document"] = True


def _finding_credentials(session: Any, client: Any) -> Any:
    """`client`, looking for credentials again at each call while it has none.

    A client that is made while a fresh instance's metadata gives none yet would stay without for good.
    """

    def look_again(request_signer: Any, **_: Any) -> None:
        if request_signer._credentials is None:  # noqa: SLF001 -- there is no public way to give a client new ones
            request_signer._credentials = session.get_credentials()  # noqa: SLF001

    client.meta.events.register_first("before-sign", look_again)
    return client
