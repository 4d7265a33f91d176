"""An attack that must be refused, beside a twin that is allowed and differs in the one thing that matters.

Without its twin an attack could be refused for a misspelt name and prove nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rehearsal.permissions.estate import Estate
from rehearsal.permissions.evaluate import Statement, decide
from rehearsal.permissions.requests import Request, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """`attack` must be refused to `actor`, `twin` must be allowed. `name` is what the attacker would then do.

    With `whatever_context` it must be refused in every context: no statement may name its action on its resource,
    whatever the conditions say, since nobody knows what an attacker can make true.
    """

    actor: str
    name: str
    attack: Request
    twin: Request
    whatever_context: bool = False

    def fails(self, estate: Estate) -> str:
        """What is wrong, '' when the attack is refused and the twin allowed."""
        statements = estate.statements[self.actor]
        loosest = tuple(_unconditional(one) for one in statements if one.effect == "Allow")
        if decide(loosest if self.whatever_context else statements, self.attack).allowed:
            return f"{self.actor} may {self.name}: {self.attack}"
        if not decide(statements, self.twin).allowed:
            return f"{self.actor} may not even do what it must, so '{self.name}' proves nothing: {self.twin}"
        return ""


def _unconditional(statement: Statement) -> Statement:
    return replace(statement, conditions={})


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """A request that `actor` may make, from which attacks are made by changing one thing."""

    actor: str
    request: Request

    def to(self, name: str, *, action: str = "", resource: str = "") -> Attempt:
        """The same with another action, on another resource, or both."""
        changed = Request(action=action or self.request.action, resource=resource or self.request.resource)
        return Attempt(actor=self.actor, name=name, attack=changed, twin=self.request, whatever_context=True)

    def where(self, name: str, context: dict[str, Value]) -> Attempt:
        """The same with these values in its context."""
        return self._attempt(name, replace(self.request, context={**self.request.context, **context}))

    def lacking(self, name: str, *keys: str) -> Attempt:
        """The same without these keys in its context."""
        left = {key: value for key, value in self.request.context.items() if key not in keys}
        return self._attempt(name, replace(self.request, context=left))

    def _attempt(self, name: str, attack: Request) -> Attempt:
        return Attempt(actor=self.actor, name=name, attack=attack, twin=self.request)
