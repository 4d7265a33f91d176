"""What an EC2 error code means for launching. The one home: nobody else looks at a code, nobody looks at a message."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from spotproof.contract.states import Cause


class Verdict(StrEnum):
    """What to do after an error."""

    CAPACITY = "capacity"  # this pool has nothing now: it cools down
    NOT_OFFERED = "not-offered"  # this pool never has this type: for a day
    THROTTLED = "throttled"  # nothing was learned of the pool: same request, later
    QUOTA = "quota"  # that class of pools is used up for this account
    FLEET_QUOTA = "fleet-quota"  # too many fleets: wait, the pools are fine
    PRICE = "price"  # below the market price
    DENIED = "denied"  # a policy forbids this type: the others may go
    CONFIGURATION = "configuration"  # no retry helps before a person changes something
    NO_ROLE = "no-role"  # the account never used Spot and may not make its service-linked role
    MISMATCH = "mismatch"  # the token was used with other parameters: what it launched carries our tag
    REFUSED = "refused"  # the whole request, for a reason that we do not know, again and again
    UNKNOWN = "unknown"  # a code that we do not know: treated as capacity, so that the others are tried


VERDICTS: Final[Mapping[str, Verdict]] = {
    "InsufficientInstanceCapacity": Verdict.CAPACITY,
    "InsufficientHostCapacity": Verdict.CAPACITY,
    "InsufficientReservedInstanceCapacity": Verdict.CAPACITY,
    "InsufficientCapacity": Verdict.CAPACITY,
    "InsufficientFreeAddressesInSubnet": Verdict.CAPACITY,
    "UnfulfillableCapacity": Verdict.CAPACITY,
    "ReservationCapacityExceeded": Verdict.CAPACITY,
    "Unsupported": Verdict.NOT_OFFERED,
    "UnsupportedOperation": Verdict.NOT_OFFERED,
    "InvalidFleetConfiguration": Verdict.NOT_OFFERED,
    "RequestLimitExceeded": Verdict.THROTTLED,
    "Throttling": Verdict.THROTTLED,
    "ThrottlingException": Verdict.THROTTLED,
    "EC2ThrottledException": Verdict.THROTTLED,
    "ResourceCountExceeded": Verdict.THROTTLED,
    "InternalError": Verdict.THROTTLED,
    "InternalFailure": Verdict.THROTTLED,
    "ServiceUnavailable": Verdict.THROTTLED,
    "Unavailable": Verdict.THROTTLED,
    "MaxSpotInstanceCountExceeded": Verdict.QUOTA,
    "SpotInstanceCountLimitExceeded": Verdict.QUOTA,
    "VcpuLimitExceeded": Verdict.QUOTA,
    "InstanceLimitExceeded": Verdict.QUOTA,
    "MaxFleetCountExceeded": Verdict.FLEET_QUOTA,
    "SpotMaxPriceTooLow": Verdict.PRICE,
    "UnauthorizedOperation": Verdict.DENIED,
    "AccessDenied": Verdict.DENIED,
    "OptInRequired": Verdict.DENIED,
    "PendingVerification": Verdict.DENIED,
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted": Verdict.NO_ROLE,
    "AuthFailure": Verdict.CONFIGURATION,
    "InvalidLaunchTemplateId.NotFound": Verdict.CONFIGURATION,
    "InvalidLaunchTemplateId.VersionNotFound": Verdict.CONFIGURATION,
    "InvalidLaunchTemplateName.NotFoundException": Verdict.CONFIGURATION,
    "InvalidUserData.Malformed": Verdict.CONFIGURATION,
    "InvalidAMIID.NotFound": Verdict.CONFIGURATION,
    "InvalidAMIID.Unavailable": Verdict.CONFIGURATION,
    "InvalidSubnetID.NotFound": Verdict.CONFIGURATION,
    "InvalidGroup.NotFound": Verdict.CONFIGURATION,
    "InvalidParameter": Verdict.CONFIGURATION,
    "InvalidParameterValue": Verdict.CONFIGURATION,
    "InvalidParameterCombination": Verdict.CONFIGURATION,
    "MissingParameter": Verdict.CONFIGURATION,
    "IdempotentParameterMismatch": Verdict.MISMATCH,
}

CAUSES: Final[Mapping[Verdict, Cause]] = {
    Verdict.CAPACITY: Cause.CAPACITY,
    Verdict.NOT_OFFERED: Cause.CONFIGURATION,
    Verdict.THROTTLED: Cause.THROTTLE,
    Verdict.QUOTA: Cause.QUOTA,
    Verdict.FLEET_QUOTA: Cause.QUOTA,
    Verdict.PRICE: Cause.CONFIGURATION,
    Verdict.DENIED: Cause.CONFIGURATION,
    Verdict.CONFIGURATION: Cause.CONFIGURATION,
    Verdict.NO_ROLE: Cause.CONFIGURATION,
    Verdict.MISMATCH: Cause.CONFIGURATION,
    Verdict.REFUSED: Cause.CONFIGURATION,
    Verdict.UNKNOWN: Cause.CAPACITY,
}

ADVICE: Final[Mapping[Verdict, str]] = {
    Verdict.NOT_OFFERED: "none of the run's instance types is sold in its zones: change pools.types or pools.zones",
    Verdict.QUOTA: "raise the account's vCPU quota for these families (Service Quotas), or allow on-demand",
    Verdict.PRICE: "the maximum price is below the market price: remove it",
    Verdict.DENIED: "a policy forbids these instance types: compare service control policies, or change pools.types",
    Verdict.CONFIGURATION: "the launch request was refused: check launch template, subnets and image of the stack",
    Verdict.REFUSED: "EC2 refused the launch request again and again: look its code up, change what it names, resume",
    Verdict.NO_ROLE: "make the role once: aws iam create-service-linked-role --aws-service-name spot.amazonaws.com",
}


PARAMETERS: Final = ("Invalid", "Malformed", "Missing", "UnknownParameter", "ParamValidation", "AuthFailure.")


def verdict_of(code: str) -> Verdict:
    """What this code means. One that we do not know and that names the request's own words is for a person."""
    known = VERDICTS.get(code)
    if known is not None:
        return known
    return Verdict.CONFIGURATION if code.startswith(PARAMETERS) else Verdict.UNKNOWN


def cause_of(verdict: Verdict) -> Cause:
    """The cause under which a verdict is counted."""
    return CAUSES[verdict]


def advice_on(verdict: Verdict) -> str:
    """What a person should do about it; '' where nothing is needed."""
    return ADVICE.get(verdict, "")
