"""Every grant of every role, with what came of it: the list that a person reads who audits the policies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from rehearsal.permissions.estate import PIPELINE
from rehearsal.permissions.evaluate import Part, Statement, parts_of
from rehearsal.permissions.excuses import excuse_of


class Use(StrEnum):
    """Why a grant may stay, or that it may not."""

    USED = "used"
    SHARED = "shared"  # another function of the pipeline used it: they run the same code, and chance decides which
    EXCUSED = "excused"
    UNUSED = "unused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One piece of one role's Allow statements. `because` is an excuse's reason."""

    actor: str
    part: Part
    use: Use
    because: str = ""

    def __str__(self) -> str:
        return f"{self.actor}: {self.part}"


def entries(parts: Mapping[str, frozenset[Part]], used: Mapping[str, frozenset[Part]]) -> tuple[Entry, ...]:
    """The ledger of all roles, sorted."""
    return tuple(_entry(actor, part, used) for actor in sorted(parts) for part in sorted(parts[actor]))


def _entry(actor: str, part: Part, used: Mapping[str, frozenset[Part]]) -> Entry:
    if part in used.get(actor, frozenset()):
        return Entry(actor=actor, part=part, use=Use.USED)
    if actor in PIPELINE and any(part in used.get(other, frozenset()) for other in PIPELINE):
        return Entry(actor=actor, part=part, use=Use.SHARED)
    excuse = excuse_of(actor, part)
    if excuse is not None:
        return Entry(actor=actor, part=part, use=Use.EXCUSED, because=excuse.because)
    return Entry(actor=actor, part=part, use=Use.UNUSED)


def pieces(statements: Iterable[Statement]) -> frozenset[Part]:
    """Everything that a role's Allow statements could lose."""
    return frozenset(part for one in statements if one.effect == "Allow" for part in parts_of(one))


def lines(ledger: Iterable[Entry]) -> Iterator[str]:
    """The ledger for a terminal."""
    for entry in ledger:
        yield f"  {entry.use:<8} {entry}" + (f"  ({entry.because})" if entry.because else "")
