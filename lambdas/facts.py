"""Reads, gathered into one frozen value. Claimers read little; only the launcher and repair query a run.

A read that fails raises (Unavailable, Denied): the message comes again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lambdas.decisions.facts import Facts, Loss, Silence, occupant
from lambdas.decisions.silence import late, silent
from lambdas.effects.machines import Machines
from lambdas.effects.stores import Stores
from spotproof.contract.items import Generation, Member, Node, Slot
from spotproof.contract.states import LaunchState


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
        found = [self.stores.members.read(instance) for instance in dict.fromkeys(instances)]
        return {member.instance: member for member in found if member is not None}

    def of_head(self, run: str, *, now: int) -> Facts:
        """The head alone: for an extra checkpoint, and for runs of hand-tagged instances."""
        return Facts(run=run, stack=self.stack, region=self.region, now=now, head=self.stores.heads.read(run))

    def of_losses(self, run: str, losses: Sequence[Loss], *, now: int) -> Facts:
        """What a claimer needs: head, pointer, the slots concerned and the last words; membership where it matters."""
        facts = self.of_head(run, now=now)
        numbers = sorted({loss.slot for loss in losses})
        slots = tuple(slot for slot in (self.stores.slots.read(run, number) for number in numbers) if slot is not None)
        joining = any(occupant(slot.successor_instance) for slot in slots)
        lost = frozenset(loss.instance for loss in losses)
        return replace(
            facts,
            slots=slots,
            sealed=self._sealed(run) if joining else None,
            nodes=self._beats(run, slots, lost),
            pointer=self.stores.pointers.read(run),
        )

    def of_launch(self, run: str, *, now: int, own: frozenset[int]) -> Facts:
        """What the launcher needs. EC2 is asked only about launches that this handler did not make itself (`own`)."""
        launches = self.stores.launches.recent(run)
        unfinished = [launch for launch in launches if launch.state is not LaunchState.CLOSED]
        foreign = any(launch.launch not in own for launch in unfinished)
        return replace(
            self.of_head(run, now=now),
            spec=self.stores.specs.read(run),
            slots=self.stores.slots.list(run),
            launches=launches,
            pools=self.stores.pools.list(self.region),
            pointer=self.stores.pointers.read(run),
            machines=self.machines.of_run(self.stack, run) if foreign else (),
            launches_per_hour=self.launches_per_hour,
        )

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
        )
        return replace(facts, silence=self._stack_silence(facts)) if silent(facts, slots) else facts

    def _sealed(self, run: str) -> Generation | None:
        newest = self.stores.memberships.newest(run)
        return None if newest is None else self.stores.memberships.generation(run, newest.generation)

    def _beats(self, run: str, slots: Sequence[Slot], lost: frozenset[str]) -> tuple[Node, ...]:
        """The last words of nodes that are gone or will go."""
        wanted = [
            (slot.slot, incarnation)
            for slot in slots
            for instance, incarnation in (
                (slot.holder_instance, slot.holder_incarnation),
                (slot.successor_instance, slot.successor_incarnation),
            )
            if instance in lost and incarnation is not None
        ]
        found = (self.stores.nodes.read(run, slot, incarnation) for slot, incarnation in wanted)
        return tuple(node for node in found if node is not None)

    def _stack_silence(self, own: Facts) -> Silence:
        """How much of the whole stack is silent: read only when a run has a silent node, which is rare."""
        silents, slots = 0, 0
        for live in self.stores.live.due(now=2**40):
            facts = own if live.run == own.run else self._beating(live.run, now=own.now)
            silents += len(late(facts, facts.slots))
            slots += len(facts.slots)
        return Silence(silent=silents, slots=slots, mass_at=self.stores.pools.mass_silence_at(self.region))

    def _beating(self, run: str, *, now: int) -> Facts:
        slots = self.stores.slots.list(run)
        return replace(
            self.of_head(run, now=now),
            spec=self.stores.specs.read(run),
            slots=slots,
            nodes=self.stores.nodes.list(run, slots=max(1, len(slots))),
        )
