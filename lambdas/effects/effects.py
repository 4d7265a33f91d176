"""Everything that acts, made once by the composition root."""

from __future__ import annotations

from dataclasses import dataclass, field

from lambdas.effects.errands import AtOnce, Errands
from lambdas.effects.fleet import Fleet
from lambdas.effects.machines import Machines
from lambdas.effects.meter import Meter
from lambdas.effects.notify import Notices
from lambdas.effects.queue import RepairQueue
from lambdas.effects.quotes import Quotes
from lambdas.effects.ssm import Commands
from lambdas.effects.stores import Stores


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """Each of them performs one action."""

    stores: Stores
    fleet: Fleet
    machines: Machines
    quotes: Quotes
    commands: Commands
    notices: Notices
    meter: Meter
    queue: RepairQueue
    errands: Errands = field(default_factory=AtOnce)
