"""Claim, launch record, the hour's count and the flush order of one loss, as one write."""

from __future__ import annotations

from lambdas.decisions.actions import Replace, SpendLaunch
from lambdas.effects.stores import Stores
from spotproof.store.table import Write


def replace_lost(stores: Stores, action: Replace, *, now: int) -> None:
    """Raises Lost if anything has changed since it was seen: nothing has been done."""
    claim, spend, order = action.claim, action.intend.spend, action.order
    stores.replacements.begin(
        action.head,
        stores.slots.claiming(
            claim.seen,
            claim.instance,
            cause=claim.cause,
            now=now,
            deadline_at=claim.deadline_at,
            lost_pool=claim.lost_pool,
        ),
        stores.launches.intending(action.intend.launch),
        order=None if order is None else stores.heads.ordering(action.head, order, now=now),
        count=None if spend is None else counting(stores, spend),
    )


def counting(stores: Stores, spend: SpendLaunch) -> Write:
    """The write that counts a launch of the whole stack."""
    return stores.pools.counting(spend.region, hour=spend.hour, limit=spend.limit, begun=spend.begun)
