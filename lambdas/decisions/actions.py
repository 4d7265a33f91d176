"""Everything the control plane can do, as values. Decisions return them, in order; `apply` performs them.

An action that races is conditional in the store. `Guarded` is how a decision says what follows from winning: its
`first` is tried, and only where it is won are the actions of `then` performed.
"""

from __future__ import annotations

from typing import TypeAlias

from lambdas.decisions.places import (
    Bind,
    Claim,
    EndMember,
    EnterMember,
    LiftBarrier,
    NoteStorm,
    PlanMove,
    Promote,
    Release,
    SpendPrewarm,
    Vacate,
    Withdraw,
)
from lambdas.decisions.telling import Measure, NoteMeasured, Notify, Tell
from spotproof.contract.frozen import dataclass
from spotproof.contract.items import Head, Launch, Live, Pool
from spotproof.contract.orders import FlushOrder
from spotproof.contract.states import Cause, RunStatus

# Actions on places, and those that only tell, have their own files; whoever acts finds all of them here.
__all__ = [
    "Bind",
    "Claim",
    "EndMember",
    "EnterMember",
    "LiftBarrier",
    "Measure",
    "NoteMeasured",
    "NoteStorm",
    "Notify",
    "PlanMove",
    "Promote",
    "Release",
    "SpendPrewarm",
    "Tell",
    "Vacate",
    "Withdraw",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderFlush:
    """Put the order into HEAD, where agents look; whoever has put it performs `then`.

    Lost: another order was put meanwhile; decide again.
    """

    seen: Head
    order: FlushOrder
    then: tuple[Action, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SendFlush:
    """Send the order to the run's nodes by Run Command: the backup path, never proof of anything."""

    run: str
    order: FlushOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class Expect:
    """Note in HEAD that somebody comes for open claims at `wake_at`. Lost: somebody else has."""

    seen: Head
    wake_at: int
    wake_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ComeBack:
    """Look at the run again in `after_s`, by a message to the repair queue. If it gets lost, the sweep comes."""

    run: str
    after_s: int
    only_fills: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkBad:
    """Note in HEAD that this membership has lost a node: its survivors need not wait for a collective's time-out."""

    run: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRun:
    """Move the run to another status. Lost: somebody else moved it; decide again at the next look."""

    seen: Head
    to: RunStatus
    cause: Cause
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteCommit:
    """A newer commit than HEAD knew: the budgets for recoveries and trainer failures begin anew."""

    run: str
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CountFault:
    """A node (`slot:incarnation`) failed before it joined: it counts once until the next commit."""

    run: str
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFound:
    """A launch brought capacity; `recovered`: for a place that was lost, which the budget counts. Counts once."""

    run: str
    launch: int
    recovered: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFailed:
    """A launch brought nothing: when to try again, whether a Spot attempt failed, how often EC2 said `refused`."""

    run: str
    launch: int
    next_launch_at: int
    spot: bool = False
    refused: str = ""
    refusals: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryAt:
    """No pool can be asked before then."""

    run: str
    next_launch_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Say in HEAD how many nodes an elastic run has or gets, as far as EC2 answered; 0: as many as it has slots."""

    run: str
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteSpend:
    """What the run has cost by now, as far as prices are known. Lost: somebody else has noted it."""

    seen: Head
    usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LookAtMarket:
    """Ask EC2 for Spot prices of these types, and (`nodes` > 0) for the placement scores of so many.

    Lost, or refused: the next look asks again; what is known stays.
    """

    region: str
    types: tuple[str, ...]
    zones: tuple[str, ...]
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendLaunch:
    """A launch of the whole stack in this hour, counted with its record; `begun`: the hour has a count already."""

    region: str
    hour: int
    limit: int
    begun: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Intend:
    """Put the launch record, and count it in the same write. Lost: its number is taken, or the count is; look again."""

    launch: Launch
    spend: SpendLaunch | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replace:
    """Claim, launch record, the hour's count and the flush order, all or none. Lost: nothing is done; decide anew."""

    head: Head
    claim: Claim
    intend: Intend
    order: FlushOrder | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Call CreateFleet with the record's request and token and write what it answered, joined with `adopted`.

    `zones` are the subnets' zones (`subnet-id=zone`), by which an answer is read.
    """

    launch: Launch
    zones: tuple[str, ...]
    adopted: tuple[tuple[str, str], ...] = ()  # (instance, pool) found by the launch tag


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopt:
    """Answer an unfinished launch with what carries its tag, without asking for anything new."""

    launch: Launch
    adopted: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Amend:
    """Add instances that carry the launch's tag and are not in its answer."""

    launch: Launch
    instances: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUpLaunch:
    """Give up a gang's launch that brought too few: none of it will be bound. Lost: more of it has been found."""

    launch: Launch


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseLaunch:
    """Every instance of the launch has its place or has been ended."""

    run: str
    launch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminate:
    """End instances that carry our launch tag."""

    instances: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CoolPool:
    """Do not ask this pool until `to.until`. Losing costs a worse guess."""

    seen: Pool | None
    to: Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class LosePool:
    """A pool has reclaimed instances; `counted_for` (`run#launch`) tells the counts apart."""

    pool: Pool
    losses: int
    counted_for: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteMassSilence:
    """Many nodes of the stack are silent at once."""

    region: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Write the manifest of a complete checkpoint whose agents are gone, then raise the pointer."""

    run: str
    generation: int
    step: int
    world: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reschedule:
    """When the sweep looks at the run again, after a look that has read everything. Lost: somebody hastened it."""

    seen: Live
    due_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """Look at the run seldom: it wants no nodes for now. Lost: somebody hastened it."""

    seen: Live


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Look at the run each minute: it wants nodes and does not stand among those that are watched."""

    run: str
    due_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """Take an ended run out of the sweep's index."""

    run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded:
    """Perform `first`; where its condition is won perform `then`, where it is lost `otherwise`."""

    first: (
        Claim
        | Expect
        | LiftBarrier
        | Promote
        | Vacate
        | MoveRun
        | Intend
        | GiveUpLaunch
        | Withdraw
        | Bind
        | EnterMember
        | EndMember
        | Release
        | PlanMove
        | SpendPrewarm
        | NoteStorm
        | NoteMeasured
    )
    then: tuple[Action, ...] = ()
    otherwise: tuple[Action, ...] = ()


Action: TypeAlias = (
    OrderFlush
    | SendFlush
    | Expect
    | ComeBack
    | Promote
    | Claim
    | Release
    | PlanMove
    | SpendPrewarm
    | NoteStorm
    | NoteMeasured
    | LiftBarrier
    | MarkBad
    | Vacate
    | MoveRun
    | NoteCommit
    | CountFault
    | LaunchFound
    | LaunchFailed
    | RetryAt
    | Reach
    | NoteSpend
    | LookAtMarket
    | GiveUpLaunch
    | Withdraw
    | Intend
    | Replace
    | Ask
    | Adopt
    | Amend
    | Bind
    | EnterMember
    | EndMember
    | CloseLaunch
    | Terminate
    | CoolPool
    | LosePool
    | NoteMassSilence
    | Commit
    | Reschedule
    | Rest
    | Watch
    | Forget
    | Tell
    | Notify
    | Measure
    | Guarded
)
