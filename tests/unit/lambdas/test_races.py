"""Losing orders that are forced: another handler acts between two reads of this one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from spotproof.contract import keys
from spotproof.contract.items import NO_INSTANCE
from spotproof.contract.parse import repair_body
from spotproof.contract.states import LaunchState
from tests.fakes.control import World


@dataclass(slots=True)
class Interrupted:
    """A table that lets somebody else act after the first query of a kind of item."""

    table: Any
    prefix: str
    act: Callable[[], None]
    acted: bool = field(default=False)

    def query(self, pk: str, **how: Any) -> Any:
        found = self.table.query(pk, **how)
        if how.get("prefix") == self.prefix and not self.acted:
            self.acted = True
            self.act()
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.table, name)


def test_a_node_that_another_handler_binds_while_repair_reads_is_no_orphan() -> None:
    world = World()
    world.submit()
    world.ec2.fail("create_fleet", "timeout")
    world.tick()
    [launched] = world.ec2.instances
    assert world.slot().successor_instance == NO_INSTANCE
    world.clock.advance(700)
    repair = {"other": json.dumps(repair_body("mini"))}

    def other() -> None:
        assert world.control.handle(repair, until=world.clock() + 60) == {}
        assert world.slot().successor_instance == launched
        assert world.stores.launches.recent("mini")[-1].state is LaunchState.CLOSED

    table = Interrupted(world.table, keys.SLOT_PREFIX, other)
    control = world.make_control(table, world.ec2, world.ssm, world.sqs)
    control.handle(repair, until=world.clock() + 60)
    assert table.acted
    assert world.ec2.terminated == []
