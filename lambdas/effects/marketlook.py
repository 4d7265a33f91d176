"""One look at the Spot market, kept in the POOL items: for the order of pools and the estimate of what runs cost."""

from __future__ import annotations

from collections.abc import Sequence

from lambdas.effects.quotes import Quote, Quotes
from lambdas.effects.stores import Stores
from spotproof.contract.items import Pool
from spotproof.contract.limits import MARKET_LOOK_S
from spotproof.contract.states import Market


def look(stores: Stores, quotes: Quotes, *, region: str, types: Sequence[str], nodes: int, now: int) -> int:
    """Write what EC2 says of these types, and of their zones where `nodes` > 0; return how many pools it knew.

    Raises Lost if somebody has looked at them within the hour, StoreError where EC2 does not answer.
    """
    stores.pools.look(region, types=types, now=now, before=now - MARKET_LOOK_S)
    found = quotes.prices(types, now=now)
    scores = quotes.scores(types, nodes=nodes, region=region) if nodes else {}
    for quote in found:
        stores.pools.told(_pool(region, quote), market=_told(quote, scores, now))
    return len(found)


def _pool(region: str, quote: Quote) -> Pool:
    return Pool(region=region, instance_type=quote.instance_type, zone=quote.zone, market=Market.SPOT)


def _told(quote: Quote, scores: dict[str, int], now: int) -> dict[str, int | float]:
    priced: dict[str, int | float] = {"price_usd": quote.usd, "priced_at": now}
    score = scores.get(quote.zone_id)
    return priced if score is None else {**priced, "score": score, "scored_at": now}
