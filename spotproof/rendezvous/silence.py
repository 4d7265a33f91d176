"""How long something has not changed, by this process's own clock. No two machines' clocks are ever compared."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Silence:
    """Remembers what was last seen of each name and since when it stands."""

    _seen: dict[str, tuple[object, float]] = field(default_factory=dict)

    def see(self, name: str, value: object, now_s: float) -> float:
        """Note what is seen now; return for how many seconds it has been the same. The first look is 0."""
        stands = self._seen.get(name)
        if stands is None or stands[0] != value:
            self._seen[name] = (value, now_s)
            return 0.0
        return now_s - stands[1]

    def forget(self) -> None:
        """Begin anew: while the table did not answer, nobody could be seen to change."""
        self._seen.clear()
