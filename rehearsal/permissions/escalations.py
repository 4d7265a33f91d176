"""Every attack on an estate: the escalation paths of the threat list, tried against the roles as they are."""

from __future__ import annotations

from rehearsal.permissions import attacks_control, attacks_node
from rehearsal.permissions.attempt import Attempt
from rehearsal.permissions.estate import Estate


def attempts(estate: Estate) -> tuple[Attempt, ...]:
    """All attacks by all roles."""
    return (*attacks_control.attacks(estate), *attacks_node.attacks(estate))
