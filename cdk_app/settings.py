"""The settings file of a deployment: parsed once, every contradiction refused with its key and the next step."""

from __future__ import annotations

import dataclasses
import re
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from spotproof.contract import ids
from spotproof.errors import BadSettings, ContractError

FILE: Final = "spotproof.toml"
MAX_ZONES: Final = 6
RETENTION_DAYS: Final = (1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365)  # what CloudWatch Logs offers up to a year
SMALLEST_ROOT_GIB: Final = 60  # the base Deep Learning image alone fills about 40
_LIST: Final = tuple[str, ...]
_ZONE = re.compile(r"[a-z]{2}(-[a-z]+)+-\d[a-z]")
_PARAMETER = re.compile(r"(/[A-Za-z0-9_.-]+)+")
_DEVICE = re.compile(r"/dev/[a-z0-9]+")
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_TABLE = re.compile(r"[A-Za-z0-9_.-]{3,255}")
_VPC = re.compile(r"vpc-[0-9a-f]{8,17}")
_SUBNET = re.compile(rf"subnet-[0-9a-f]{{8,17}}={_ZONE.pattern}")
_ROUTES = re.compile(r"rtb-[0-9a-f]{8,17}")


class Network(StrEnum):
    """How nodes reach AWS; S3 and DynamoDB always go through gateway endpoints."""

    PUBLIC = "public"
    NAT = "nat"
    ENDPOINTS = "endpoints"


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSettings:
    """One deployment; the comments of spotproof.toml say what each key means."""

    name: str = "spotproof"
    network: Network = Network.PUBLIC
    nat_gateways: int | None = None
    zones: int | tuple[str, ...] = 3
    vpc_id: str = ""
    subnets: tuple[str, ...] = ()
    route_tables: tuple[str, ...] = ()
    existing_gateway_endpoints: bool = False
    attach_table: str = ""
    attach_bucket: str = ""
    deletion_protection: bool = True
    strict_metadata: bool = False
    data_buckets: tuple[str, ...] = ()
    ami_parameter: str = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
    ami_root_device: str = "/dev/sda1"
    root_volume_gib: int = 150
    notify_email: str = ""
    launches_per_hour: int = 200
    log_retention_days: int = 30
    drills: bool = False
    create_spot_role: bool = False

    def zone_count(self) -> int:
        """How many Availability Zones, and so how many node subnets."""
        if self.subnets:
            return len(self.subnets)
        return self.zones if isinstance(self.zones, int) else len(self.zones)

    def given_subnets(self) -> dict[str, str]:
        """Zone by subnet id, of the subnets of an existing network."""
        return {subnet: zone for subnet, _, zone in (one.partition("=") for one in self.subnets)}

    def gateway_count(self) -> int:
        """How many NAT gateways."""
        return (self.nat_gateways or 1) if self.network is Network.NAT else 0


def load(path: Path) -> StackSettings:
    """The settings in `path`.

    Raises:
        BadSettings: no such file, not TOML, an unknown key, a wrong type, or settings that contradict each other.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BadSettings(f"there is no settings file {path}", next_step=f"copy {FILE} and change its name") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSettings(f"{path} is not TOML: {error}", next_step="correct that line") from error
    return parse(document)


def parse(document: Mapping[str, Any]) -> StackSettings:
    """The settings in a parsed file. Raises BadSettings, naming the key and what to do."""
    hints = typing.get_type_hints(StackSettings)
    unknown = sorted(set(document) - set(hints))
    if unknown:
        known = ", ".join(field.name for field in dataclasses.fields(StackSettings))
        raise BadSettings(f"{unknown[0]}: unknown key", next_step=f"known are {known}")
    settings = StackSettings(**{key: _typed(key, content, hints[key]) for key, content in document.items()})
    _check_values(settings)
    _check_contradictions(settings)
    return settings


def _typed(key: str, content: Any, hint: Any) -> Any:
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if Network in kinds:
        _need(content in list(Network), key, content, f"one of {', '.join(Network)}")
        return Network(content)
    if isinstance(content, list):
        listed = _LIST in kinds and all(isinstance(word, str) for word in content)
        _need(listed, key, content, f"give {_spelled(kinds)}")
        return tuple(content)
    _need(type(content) in kinds, key, content, f"give {_spelled(kinds)}")  # exactly: true is no number
    return content


def _spelled(kinds: Sequence[Any]) -> str:
    words = {str: "a text", bool: "true or false", int: "a whole number", _LIST: "a list of texts"}
    return " or ".join(words[kind] for kind in kinds if kind in words)


def _check_values(settings: StackSettings) -> None:
    try:
        ids.stack_name(settings.name)
    except ContractError as error:
        raise BadSettings(f"name: {error.what}", next_step=error.next_step) from error
    count = settings.zone_count()
    _need(1 <= count <= MAX_ZONES, "zones", settings.zones, f"1 to {MAX_ZONES} zones")
    _need(
        _PARAMETER.fullmatch(settings.ami_parameter), "ami_parameter", settings.ami_parameter, "name a parameter: /a/b"
    )
    _need(_DEVICE.fullmatch(settings.ami_root_device), "ami_root_device", settings.ami_root_device, "such as /dev/xvda")
    size = settings.root_volume_gib
    _need(SMALLEST_ROOT_GIB <= size <= 16_384, "root_volume_gib", size, f"{SMALLEST_ROOT_GIB} to 16384")
    mail = settings.notify_email
    _need(not mail or _EMAIL.fullmatch(mail), "notify_email", mail, 'an address, or "" for nobody')
    _need(1 <= settings.launches_per_hour <= 10_000, "launches_per_hour", settings.launches_per_hour, "1 to 10000")
    days = settings.log_retention_days
    _need(days in RETENTION_DAYS, "log_retention_days", days, f"one of {', '.join(map(str, RETENTION_DAYS))}")
    for bucket in settings.data_buckets:
        _need(_BUCKET.fullmatch(bucket), "data_buckets", bucket, "give names of buckets, not ARNs or URLs")
    table, kept = settings.attach_table, settings.attach_bucket
    _need(not table or _TABLE.fullmatch(table), "attach_table", table, "the name that the output Table told")
    _need(not kept or _BUCKET.fullmatch(kept), "attach_bucket", kept, "the name that the output Bucket told")
    vpc = settings.vpc_id
    _need(
        not vpc or _VPC.fullmatch(vpc), "vpc_id", vpc, 'an id such as vpc-0123456789abcdef0, or "" for an own network'
    )
    for subnet in settings.subnets:
        _need(_SUBNET.fullmatch(subnet), "subnets", subnet, "write each as subnet-0123456789abcdef0=us-east-1a")
    for route_table in settings.route_tables:
        _need(_ROUTES.fullmatch(route_table), "route_tables", route_table, "ids such as rtb-0123456789abcdef0")


def _check_contradictions(settings: StackSettings) -> None:
    _check_attached(settings)
    _check_existing_network(settings)
    _check_own_network(settings)
    if settings.strict_metadata and settings.data_buckets:
        raise BadSettings(
            f"data_buckets: {', '.join(settings.data_buckets)} cannot be read by a container without credentials",
            next_step="remove data_buckets, or set strict_metadata = false",
        )


def _check_attached(settings: StackSettings) -> None:
    """A table speaks of checkpoints in its bucket: one without the other is no state."""
    both = bool(settings.attach_table) == bool(settings.attach_bucket)
    lacking = "attach_bucket" if settings.attach_table else "attach_table"
    _need(both, lacking, "", "name the table and the bucket of the same earlier deployment")


def _check_existing_network(settings: StackSettings) -> None:
    if not settings.vpc_id:
        for key in ("subnets", "route_tables", "existing_gateway_endpoints"):
            value = getattr(settings, key)
            _need(not value, key, value, "say which network that is: vpc_id")
        return
    zones = list(settings.given_subnets().values())
    _need(1 <= len(zones) <= MAX_ZONES, "subnets", list(settings.subnets), f"name 1 to {MAX_ZONES} subnets of the VPC")
    _need(len(set(zones)) == len(zones), "subnets", list(settings.subnets), "one per zone: a fleet spans no two of one")
    _need_one_region("subnets", zones)
    _need(
        isinstance(settings.zones, int), "zones", settings.zones, "with vpc_id the subnets say the zones: remove zones"
    )
    _need(settings.nat_gateways is None, "nat_gateways", settings.nat_gateways, "an existing VPC has its own way out")
    found = settings.existing_gateway_endpoints
    _need(
        bool(settings.route_tables) != found,
        "existing_gateway_endpoints" if found else "route_tables",
        found or [],
        "checkpoints must not pay for transfer: name the route tables that get gateway endpoints for S3 and DynamoDB,"
        " or say existing_gateway_endpoints = true where they have them; not both",
    )


def _check_own_network(settings: StackSettings) -> None:
    if settings.vpc_id:
        return
    if settings.nat_gateways is not None:
        fits = settings.network is Network.NAT
        _need(fits, "nat_gateways", settings.nat_gateways, 'set network = "nat", or remove nat_gateways')
        most = settings.zone_count()
        _need(1 <= settings.nat_gateways <= most, "nat_gateways", settings.nat_gateways, f"1 to {most}, one per zone")
    if isinstance(settings.zones, tuple):
        for zone in settings.zones:
            _need(_ZONE.fullmatch(zone), "zones", zone, "a zone looks like us-east-1a")
        _need_one_region("zones", settings.zones)
        _need(len(set(settings.zones)) == len(settings.zones), "zones", list(settings.zones), "name each zone once")


def _need_one_region(key: str, zones: Sequence[str]) -> None:
    regions = {zone[:-1] for zone in zones}
    _need(len(regions) == 1, key, sorted(regions), "a stack is in one region: name zones of that one")


def _need(holds: object, key: str, value: object, advice: str) -> None:
    if not holds:
        raise BadSettings(f"{key}: {value!r} is not possible", next_step=advice)
