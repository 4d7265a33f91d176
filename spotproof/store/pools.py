"""POOL items: what was learned of each capacity pool. All of it is advice; losing a write costs a worse guess."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from spotproof.contract import hours, keys
from spotproof.contract.items import Pool, from_item
from spotproof.errors import Lost
from spotproof.store.table import Absent, AllOf, AnyOf, Eq, Item, Lt, Put, Table, Update, Write

__all__ = ["Pools", "made_in"]

_TRIES: Final = 4
_COUNTS_KEPT: Final = 16  # counts of other launches that may come between a count and its repetition


class Pools:
    """The pools of all regions."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def list(self, region: str) -> tuple[Pool, ...]:
        """Return every pool of which something is known."""
        return tuple(from_item(Pool, item) for item in self._table.query(keys.pool_partition(region)))

    def cool(self, seen: Pool | None, to: Pool) -> Pool:
        """Write a new cool-down (`until`, `cooldown_s`, `verdict` of `to`) in place of the one that was seen.

        Raises Lost if another handler learned something meanwhile: keep that, its cool-down is as good.
        """
        until = 0 if seen is None else seen.until
        unchanged = AnyOf(Absent("until"), Eq("until", until))
        changed = {**_name(to), "until": to.until, "cooldown_s": to.cooldown_s, "verdict": to.verdict}
        return from_item(Pool, self._table.write(Update(key=_key(to), set=changed, when=unchanged)))

    def lost(self, pool: Pool, *, losses: int, counted_for: str, now: int) -> Pool:
        """Count `losses` that the pool has reclaimed, in the hour of `now`; a second time for a launch is success.

        `counted_for` (`run#launch`) tells the counts apart. Raises Lost if other counts came in between again and
        again: this one is missing, which costs a worse guess.
        """
        for _ in range(_TRIES):
            item = self._table.get(_key(pool))
            stands = None if item is None else from_item(Pool, item)
            if stands is not None and counted_for in stands.counted:
                return stands
            try:
                return self._count(stands or pool, losses=losses, counted_for=counted_for, now=now)
            except Lost as lost:
                last = lost
        raise last

    def _count(self, seen: Pool, *, losses: int, counted_for: str, now: int) -> Pool:
        unchanged = AnyOf(Absent("losses"), Eq("losses", 0)) if seen.losses == 0 else Eq("losses", seen.losses)
        changed = {
            **_name(seen),
            "losses": seen.losses + losses,
            "lost_at": now,
            "hours": hours.counted(seen.hours, now, losses),
            "counted": [*seen.counted, counted_for][-_COUNTS_KEPT:],
        }
        return from_item(Pool, self._table.write(Update(key=_key(seen), set=changed, when=unchanged)))

    def told(self, pool: Pool, *, market: Mapping[str, int | float]) -> Pool:
        """Write what EC2 tells of the pool: `price_usd` and `priced_at`, `score` and `scored_at`."""
        changed = {**_name(pool), **market}
        return from_item(Pool, self._table.write(Update(key=_key(pool), set=changed)))

    def look(self, region: str, *, types: Sequence[str], now: int, before: int) -> None:
        """Be the one who looks at the market of these types now. Raises Lost if somebody has looked since `before`."""
        due = AnyOf(Absent("looked_at"), Lt("looked_at", before))
        self._table.write(Update(key=keys.market_look(region, types), set={"looked_at": now}, when=due))

    def launches_made(self, region: str, *, hour: int) -> int | None:
        """How many launches of the whole stack have been counted in this hour (since 1970); None: none yet."""
        return made_in(self._table.get(keys.stack_launches(region, hour)), hour)

    def counting(self, region: str, *, hour: int, limit: int, begun: bool) -> Write:
        """The write that counts one launch of the whole stack in this hour, for a transaction.

        It loses when `limit` launches have been made in this hour, and when the hour was seen not `begun` and is.
        """
        key = keys.stack_launches(region, hour)
        if begun:
            return Update(key=key, increment={"launches": 1}, when=AllOf(Eq("hour", hour), Lt("launches", limit)))
        return Put(key=key, item={"hour": hour, "launches": 1}, when=AnyOf(Absent("pk"), Lt("hour", hour)))

    def note_mass_silence(self, region: str, *, now: int) -> None:
        """Note that the stack's nodes are silent all at once."""
        self._table.write(Put(key=keys.mass_silence(region), item={"seen_at": now}))

    def mass_silence_at(self, region: str) -> int:
        """When that was last seen; 0: never."""
        item = self._table.get(keys.mass_silence(region))
        return 0 if item is None else int(str(item["seen_at"]))


def made_in(item: Item | None, hour: int) -> int | None:
    """The launches of this hour that the item counts; None where it counts another hour's, or is not there."""
    return int(str(item["launches"])) if item is not None and item.get("hour") == hour else None


def _key(pool: Pool) -> keys.Key:
    return keys.pool(pool.region, pool.instance_type, pool.zone, pool.market.value)


def _name(pool: Pool) -> Item:
    return {
        "region": pool.region,
        "instance_type": pool.instance_type,
        "zone": pool.zone,
        "market": pool.market.value,
    }
