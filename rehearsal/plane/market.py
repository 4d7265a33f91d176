"""The capacity market: which pools have room, and what AWS answers where there is none."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

INSUFFICIENT = "InsufficientInstanceCapacity"

PoolKey = tuple[str, str] | tuple[str, str, str]
"""(instance type, Availability Zone) or, to tell the markets apart, (type, zone, "spot" | "on-demand")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One launch that was asked of a pool; `refusal` is '' when it was granted."""

    instance_type: str
    zone: str
    lifecycle: str
    refusal: str


class Market:
    """Slots of each pool. A pool that is not listed answers InsufficientInstanceCapacity.

    `set({("g5.xlarge", "us-east-1a"): 2, ("g6.xlarge", "us-east-1b"): "InsufficientInstanceCapacity"})`: a number is
    how many more instances the pool will launch, a text is the error code it answers with. A launch takes a slot,
    an instance that its owner terminates gives it back, an interrupted one does not: that capacity went elsewhere.
    """

    def __init__(self) -> None:
        self._pools: dict[tuple[str, ...], int | str] = {}
        self._prices: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()
        self.attempts: list[Attempt] = []

    def set(self, pools: Mapping[PoolKey, int | str]) -> None:
        """Replaces the state of these pools; others stay as they are."""
        with self._lock:
            self._pools.update(dict(pools.items()))

    def price(self, prices: Mapping[tuple[str, str], float]) -> None:
        """Spot prices in USD per hour, by (type, zone): price-capacity-optimized asks cheaper pools first."""
        with self._lock:
            self._prices.update(prices)

    def price_of(self, instance_type: str, zone: str) -> float:
        """The pool's Spot price, 1.0 where none was set."""
        return self._prices.get((instance_type, zone), 1.0)

    def room(self, instance_type: str, zone: str, lifecycle: str) -> int:
        """Slots that are left; 0 for a pool that refuses."""
        state = self._pools.get(self._key(instance_type, zone, lifecycle), INSUFFICIENT)
        return state if isinstance(state, int) else 0

    def refusal(self, instance_type: str, zone: str, lifecycle: str) -> str:
        """The error code that this pool would answer with now, '' if it would launch."""
        state = self._pools.get(self._key(instance_type, zone, lifecycle), INSUFFICIENT)
        if isinstance(state, str):
            return state
        return "" if state > 0 else INSUFFICIENT

    def take(self, instance_type: str, zone: str, lifecycle: str) -> str:
        """Asks the pool for one instance: '' and one slot fewer, or the error code."""
        with self._lock:
            refusal = self.refusal(instance_type, zone, lifecycle)
            if not refusal:
                key = self._key(instance_type, zone, lifecycle)
                state = self._pools[key]
                self._pools[key] = int(state) - 1
            self.attempts.append(Attempt(instance_type=instance_type, zone=zone, lifecycle=lifecycle, refusal=refusal))
            return refusal

    def give_back(self, instance_type: str, zone: str, lifecycle: str) -> None:
        """An owner terminated an instance of this pool."""
        with self._lock:
            key = self._key(instance_type, zone, lifecycle)
            state = self._pools.get(key)
            if isinstance(state, int):
                self._pools[key] = state + 1

    def _key(self, instance_type: str, zone: str, lifecycle: str) -> tuple[str, ...]:
        exact = (instance_type, zone, lifecycle)
        return exact if exact in self._pools else (instance_type, zone)
