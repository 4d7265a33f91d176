"""Reads, gathered into one frozen value. Claimers read little; only the launcher and repair query a run.

A read that fails raises (Unavailable, Denied): the message comes again.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from lambdas.decisions.adoption import hand_tagged
from lambdas.decisions.facts import Facts, Loss, Machine, Silence, occupant, places
from lambdas.decisions.losses import TOLD
from lambdas.decisions.pools import covers
from lambdas.decisions.silence import late
from lambdas.decisions.sorting import asks_of
from lambdas.effects.machines import Machines
from lambdas.effects.stores import Stores
from spotproof.contract.frozen import dataclass
from spotproof.contract.items import Generation, Member, Slot
from spotproof.contract.limits import SWEEP_PERIOD_S
from spotproof.contract.messages import BlockExpiry, Message
from spotproof.contract.states import LaunchState
from spotproof.store.many import Asked, ForLaunch, Read

RUNS_AT_MOST: Final = 40  # whose beats are read beside a silent run's; a share of a fifth is told from a sample
POOLS_AT_ONCE: Final = 60  # beside a run in one BatchGetItem of 100 keys; with more all pools are queried


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Gathers facts for the decisions of one stack."""

    stores: Stores
    machines: Machines
    stack: str
    region: str
    launches_per_hour: int = 0

    def members(self, instances: Sequence[str]) -> dict[str, Member]:
        """What each instance is to us; those that the table does not know are left out, and cost no EC2 call."""
        return self.stores.many.members(instances)

    def machines_of(self, messages: Iterable[Message], members: Mapping[str, Member]) -> dict[str, Machine]:
        """What EC2 says now of the instances and reservations that the messages cannot be understood without."""
        asked = [(asks_of(message, members), isinstance(message, BlockExpiry)) for message in messages]
        instances = tuple(dict.fromkeys(name for name, is_block in asked if name and not is_block))
        blocks = tuple(dict.fromkeys(name for name, is_block in asked if name and is_block))
        described = self.machines.described(instances) if instances else ()
        inside = self.machines.in_reservations(self.stack, blocks) if blocks else ()
        return {machine.instance: machine for machine in (*described, *inside)}

    def of_head(self, run: str, *, now: int) -> Facts:
        """The head alone: for an extra checkpoint, and for runs of hand-tagged instances."""
        return Facts(run=run, stack=self.stack, region=self.region, now=now, head=self.stores.heads.read(run))

    def of_losses(self, losses: Mapping[str, Sequence[Loss]], *, now: int) -> dict[str, Facts]:
        """What a claimer needs, of many runs at once: head, pointer, the slots concerned and the last words.

        The membership is read where it matters: for a lost successor, who may have joined; and for a holder's first
        notice after it was claimed, because its successor may have joined, and the slot's order would mean that one.
        """
        found = self.stores.many.runs([_asked(run, of_run) for run, of_run in losses.items()])
        return {run: self._of_losses(run, found[run], of_run, now=now) for run, of_run in losses.items()}

    def of_loss(self, run: str, losses: Sequence[Loss], member: Member, *, now: int) -> Facts:
        """What a claimer of one place needs, and with it what a launch for that place needs (decisions.express).

        The run's pools on Spot are read beside it, where the member says which they are; else all that are known.
        """
        launch = ForLaunch(region=self.region, hour=now // 3600, pools=_pools_of(member))
        read = self.stores.many.runs([replace(_asked(run, losses), launch=launch)])[run]
        facts = self._of_losses(run, read, losses, now=now)
        if read.basis is None or read.basis.spec is None:
            return facts
        only_spot = covers(launch.pools, read.basis.spec)
        return replace(
            facts,
            spec=read.basis.spec,
            pools=read.pools if only_spot else self.stores.pools.list(self.region),
            only_spot=only_spot,
            launches_per_hour=self.launches_per_hour,
            launches_made=read.basis.made,
        )

    def _of_losses(self, run: str, read: Read, losses: Sequence[Loss], *, now: int) -> Facts:
        lost = frozenset(loss.instance for loss in losses)
        joining = any(occupant(slot.successor_instance) in lost or _may_be_left(slot, lost) for slot in read.slots)
        return Facts(
            run=run,
            stack=self.stack,
            region=self.region,
            now=now,
            head=read.head,
            slots=read.slots,
            sealed=self._sealed(run) if joining or _has_spares(read) or _is_broken(read, losses, now) else None,
            nodes=read.nodes,
            pointer=read.pointer,
            live=read.live,
        )

    def of_slots(self, run: str, numbers: Iterable[int], *, now: int, spec: bool = True) -> Facts:
        """Head and some slots, for what concerns nodes that are there; the membership if a successor may be in it."""
        found = (self.stores.slots.read(run, number) for number in sorted(set(numbers)))
        slots = tuple(slot for slot in found if slot is not None)
        joining = any(occupant(slot.successor_instance) for slot in slots)
        return replace(
            self.of_head(run, now=now),
            spec=self.stores.specs.read(run) if spec else None,
            slots=slots,
            sealed=self._sealed(run) if joining else None,
        )

    def of_adoption(self, run: str, *, now: int) -> Facts:
        """Every place of the run, and what is being launched for some of them."""
        return replace(
            self.of_head(run, now=now),
            spec=self.stores.specs.read(run),
            launches=self.stores.launches.recent(run),
            slots=self.stores.slots.list(run),
        )

    def of_launch(self, run: str, *, now: int, own: frozenset[int]) -> Facts:
        """What the launcher needs. EC2 is asked only about launches that this handler did not make itself (`own`)."""
        launches = self.stores.launches.recent(run)
        unfinished = [launch for launch in launches if launch.state is not LaunchState.CLOSED]
        foreign = any(launch.launch not in own for launch in unfinished)
        read = self.stores.many.basis(run, region=self.region, hour=now // 3600)
        spec = None if read.basis is None else read.basis.spec
        is_gang = spec is not None and spec.pools.gang  # what it lacks is asked for where its nodes are
        return Facts(
            run=run,
            stack=self.stack,
            region=self.region,
            now=now,
            head=read.head,
            spec=spec,
            slots=self.stores.slots.list(run),
            launches=launches,
            pools=self.stores.pools.list(self.region),
            pointer=read.pointer,
            machines=self.machines.of_run(self.stack, run) if foreign or is_gang else (),
            launches_per_hour=self.launches_per_hour,
            launches_made=None if read.basis is None else read.basis.made,
        )

    def of_order(self, run: str, *, now: int) -> Facts:
        """What the launcher needs, and who has joined: for an order that names leavers later than their claims."""
        return replace(self.of_launch(run, now=now, own=frozenset()), sealed=self._sealed(run))

    def of_repair(self, run: str, *, now: int) -> Facts:
        """The whole run. Launches before slots: what a launch that is closed has bound is then seen in its slot."""
        head = self.stores.heads.read(run)
        launches = self.stores.launches.recent(run)
        slots = self.stores.slots.list(run)
        facts = Facts(
            run=run,
            stack=self.stack,
            region=self.region,
            now=now,
            head=head,
            spec=self.stores.specs.read(run),
            slots=slots,
            sealed=self._sealed(run),
            nodes=self.stores.nodes.list(run, slots=max(1, len(slots))),
            pointer=self.stores.pointers.read(run),
            launches=launches,
            checkpoints=self.stores.checkpoints.newest(run, limit=1),
            live=self.stores.live.read(run),
            machines=self.machines.of_run(self.stack, run),
            pools=self.stores.pools.list(self.region),
        )
        facts = replace(facts, machines=(*facts.machines, *self._untagged(facts)))
        loose = hand_tagged(facts.machines, self.stack, slots)
        facts = replace(facts, members=tuple(self.members(loose).values())) if loose else facts
        facts = self._with_hour(facts) if _may_fall_back(facts) else facts
        return replace(facts, silence=self._stack_silence(facts)) if late(facts, slots, now=now) else facts

    def _with_hour(self, facts: Facts) -> Facts:
        """With the stack's launches of this hour."""
        made = self.stores.pools.launches_made(self.region, hour=facts.now // 3600)
        return replace(facts, launches_per_hour=self.launches_per_hour, launches_made=made)

    def _untagged(self, facts: Facts) -> tuple[Machine, ...]:
        """Instances in slots that carry the run's tags no more: asked for by id, and only where one is missed."""
        missed = sorted(places(facts.slots) - {machine.instance for machine in facts.machines})
        return self.machines.described(missed) if missed else ()

    def _sealed(self, run: str) -> Generation | None:
        newest = self.stores.memberships.newest(run)
        return None if newest is None else self.stores.memberships.generation(run, newest.generation)

    def _stack_silence(self, own: Facts) -> Silence:
        """How much of the whole stack is silent: read only when a run has a node that is late, which is rare.

        When all are silent every run's look asks, so each reads a sample of the others, another one each minute.
        """
        others = sorted(live.run for live in self.stores.live.watched() if live.run != own.run)
        sample = _sample(others, own)
        read = [self._beating(run, now=own.now) for run in sample]
        scale = len(others) / max(1, len(sample))
        silents = sum(len(late(facts, facts.slots, now=own.now)) for facts in read) * scale
        slots = sum(len(facts.slots) for facts in read) * scale
        return Silence(
            silent=round(silents) + len(late(own, own.slots, now=own.now)),
            slots=round(slots) + len(own.slots),
            mass_at=self.stores.pools.mass_silence_at(self.region),
        )

    def _beating(self, run: str, *, now: int) -> Facts:
        slots = self.stores.slots.list(run)
        return Facts(
            run=run,
            stack=self.stack,
            region=self.region,
            now=now,
            spec=self.stores.specs.read(run),
            slots=slots,
            nodes=self.stores.nodes.list(run, slots=max(1, len(slots))),
        )


def _sample(runs: Sequence[str], own: Facts) -> Sequence[str]:
    """All of them, or so many that are spread by a hash: runs of one submitter are named alike, and may die alike."""
    if len(runs) <= RUNS_AT_MOST:
        return runs
    salt = f"{own.run}|{own.now // SWEEP_PERIOD_S}|"
    return sorted(runs, key=lambda run: zlib.crc32((salt + run).encode()))[:RUNS_AT_MOST]


def _asked(run: str, losses: Sequence[Loss]) -> Asked:
    return Asked(
        run=run,
        slots=tuple(sorted({loss.slot for loss in losses})),
        nodes=tuple(sorted({(loss.slot, loss.incarnation) for loss in losses if loss.incarnation is not None})),
    )


def _pools_of(member: Member) -> tuple[tuple[str, str], ...]:
    pools = tuple((kind, zone) for kind in member.types for zone in member.zones)
    return pools if len(pools) <= POOLS_AT_ONCE else ()


def _may_be_left(slot: Slot, lost: frozenset[str]) -> bool:
    # Whoever waits for a notice joins without it when the date has passed.
    is_first = bool(slot.waits_for_notice) or slot.cause not in TOLD
    return slot.holder_instance in lost and is_first and occupant(slot.successor_instance) is not None


def _may_fall_back(facts: Facts) -> bool:
    """Whether nodes of the run may go back to Spot without being asked."""
    return facts.spec is not None and facts.spec.pools.failback_after_s > 0


def _has_spares(read: Read) -> bool:
    """Whether only the membership tells if the lost node works."""
    return read.head is not None and (read.head.standby > 0 or read.head.least > 0)


def _is_broken(read: Read, losses: Sequence[Loss], now: int) -> bool:
    """Whether a run of many nodes has lost one that has no time left: then its membership has to be marked."""
    is_gone = any(loss.deadline_at is None or loss.deadline_at <= now for loss in losses)
    return is_gone and read.head is not None and read.head.slots > 1
