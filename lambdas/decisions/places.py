"""Actions on places: who holds a slot, who succeeds, and which instance is whose. Each is one conditional write."""

from __future__ import annotations

from spotproof.contract.frozen import dataclass
from spotproof.contract.items import Member, Slot
from spotproof.contract.states import Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Open the place of `instance` for a successor. Lost: a duplicate, nothing to do."""

    seen: Slot
    instance: str
    cause: Cause
    deadline_at: int | None = None
    lost_pool: str | None = None
    waits_for_notice: bool = False  # the holder is well: its successor gets ready and parks


@dataclass(frozen=True, slots=True, kw_only=True)
class LiftBarrier:
    """The holder has ended before its deadline: its successor waits for it no more. Lost: nobody waits for it."""

    seen: Slot
    instance: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteStorm:
    """People are told of a storm of advice. Lost: they have been, less than an hour ago."""

    region: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanMove:
    """Note in the slot that its holder has to be moved. Lost: an earlier date stands, or it holds the slot no more."""

    seen: Slot
    instance: str
    at: int
    before: int
    cause: Cause = Cause.MAINTENANCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Promote:
    """Make the successor the holder: the newest sealed membership names it."""

    slot: Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The holder leaves: the successor that was ready for that takes over. Lost: it waits no more, or was withdrawn."""

    seen: Slot
    deadline_at: int
    cause: Cause | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendPrewarm:
    """Count a node that the stack starts for advice alone. Lost: so many within minutes are a storm."""

    region: str
    window: int
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacate:
    """Take `instance` out of its slot without asking for a successor, before we terminate it."""

    seen: Slot
    instance: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """Give an open claim its instance. Lost: the claim is open no more, the instance is surplus."""

    run: str
    slot: int
    incarnation: int
    instance: str
    launch: int | None  # None: hand-tagged


@dataclass(frozen=True, slots=True, kw_only=True)
class EndMember:
    """Note that an instance has ended. Lost: noted already."""

    instance: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EnterMember:
    """Write the INSTANCE item by which the instance finds its place."""

    member: Member


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdraw:
    """Take back the open claim for a planned move: its holder stays. Lost: the move goes on, or the holder leaves."""

    seen: Slot
