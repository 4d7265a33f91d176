"""What a decision may know: read first, gathered into one frozen value. A field that was not read is empty."""

from __future__ import annotations

from dataclasses import field

from spotproof.contract.frozen import dataclass
from spotproof.contract.items import (
    NO_INSTANCE,
    CheckpointItem,
    Generation,
    Head,
    Launch,
    Live,
    Member,
    Node,
    PointerItem,
    Pool,
    Slot,
)
from spotproof.contract.runspec import RunSpec
from spotproof.contract.states import Cause, Market

ALIVE = frozenset({"pending", "running"})
ENDED = frozenset({"shutting-down", "terminated"})
FLUSHES_NO_MORE = frozenset({"stopped", "terminated"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """An instance as EC2 describes it. `launch` is None without our launch tag: then it is not ours to end."""

    instance: str
    state: str
    instance_type: str
    zone: str
    market: Market
    launched_at: int
    run: str = ""
    stack: str = ""
    launch: int | None = None
    reservation: str = ""  # the capacity reservation or block that it runs in

    @property
    def is_alive(self) -> bool:
        """Whether it works or will."""
        return self.state in ALIVE

    @property
    def has_ended(self) -> bool:
        """Whether it will never be back; a stopped one may be."""
        return self.state in ENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """How many slots of the whole stack are silent, of how many; and when many were last seen silent at once."""

    silent: int = 0
    slots: int = 0
    mass_at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A run as far as it was read. Claimers read some slots, the launcher all of them, repair everything."""

    run: str
    stack: str
    region: str
    now: int
    head: Head | None = None
    spec: RunSpec | None = None
    slots: tuple[Slot, ...] = ()
    sealed: Generation | None = None  # the newest membership
    nodes: tuple[Node, ...] = ()
    pointer: PointerItem | None = None
    launches: tuple[Launch, ...] = ()  # the newest, oldest first
    pools: tuple[Pool, ...] = ()
    machines: tuple[Machine, ...] = ()
    members: tuple[Member, ...] = ()
    checkpoints: tuple[CheckpointItem, ...] = ()
    live: Live | None = None
    silence: Silence = Silence()
    took_s: int = 0  # to read it all: some of it is younger than `now` by that
    launches_per_hour: int = 0  # of the whole stack; 0: no limit
    launches_made: int | None = None  # of the whole stack, in this hour; None: the hour's count has not begun
    only_spot: bool = False  # of the run's pools only those on Spot were read
    crowded: bool = False  # the batch was full: there are more messages where it came from
    # Runs have a thousand slots, and decisions look things up slot by slot.
    _slots: dict[int, Slot] = field(init=False, repr=False, compare=False)
    _nodes: dict[tuple[int, int, str], Node] = field(init=False, repr=False, compare=False)
    _machines: dict[str, Machine] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_slots", {slot.slot: slot for slot in self.slots})
        nodes = {(node.slot, node.incarnation, node.instance): node for node in self.nodes}
        object.__setattr__(self, "_nodes", nodes)
        object.__setattr__(self, "_machines", {machine.instance: machine for machine in self.machines})

    def slot(self, number: int) -> Slot | None:
        """The slot, if it was read."""
        return self._slots.get(number)

    def machine(self, instance: str) -> Machine | None:
        """What EC2 says of the instance, if it knows it."""
        return self._machines.get(instance)

    def node_of(self, slot: int, incarnation: int | None, instance: str | None) -> Node | None:
        """The newest beat of the instance in this incarnation of the slot."""
        return None if incarnation is None or instance is None else self._nodes.get((slot, incarnation, instance))


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A sign that an instance goes or has gone. `deadline_at` None: it is gone already."""

    instance: str
    slot: int
    cause: Cause
    at: int
    deadline_at: int | None = None
    pool: str | None = None
    action: str = ""
    incarnation: int | None = None  # of the slot that the instance was given


def occupant(instance: str | None) -> str | None:
    """The instance in a place of a slot; None if nobody is there."""
    return None if instance in (None, NO_INSTANCE) else instance


def places(slots: tuple[Slot, ...]) -> frozenset[str]:
    """Every instance that has a place in one of the slots."""
    named = {occupant(one) for slot in slots for one in (slot.holder_instance, slot.successor_instance)}
    return frozenset(one for one in named if one is not None)


def want_of(slot: Slot) -> str:
    """An open claim as launch records name it."""
    return f"{slot.slot}:{slot.successor_incarnation}"


def is_failback(slot: Slot) -> bool:
    """Whether its claim is for a way back to Spot, while its holder goes on."""
    return slot.cause is Cause.FAILBACK and bool(slot.waits_for_notice)


def pool_name(instance_type: str, zone: str, market: Market) -> str:
    """A pool as text, the way launch records and slots name it."""
    return f"{instance_type}#{zone}#{market.value}"


def parse_pool(name: str) -> tuple[str, str, Market] | None:
    """Type, zone and market in a pool's name; None where an answer did not say them."""
    parts = name.split("#")
    if len(parts) != 3 or not parts[0] or parts[2] not in set(Market):
        return None
    return parts[0], parts[1], Market(parts[2])
