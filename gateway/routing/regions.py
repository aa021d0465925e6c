"""Chooses the region for an item: the preferred region, or another region if that is busy.

Regions are in order of preference. Overflow pools are spare backends, and come after all regions.
An item goes to the preferred region if it would wait only briefly there. All other items are
divided among the other regions in proportion to the headroom (unused capacity) of each region, so
that no region is overloaded. Items go to an overflow pool only if no region would finish them in
time.
"""

from collections.abc import Sequence
from math import inf
from random import Random

import msgspec

from sluicegate.gateway.routing.choice import ChoiceContext, in_order, sample
from sluicegate.gateway.routing.endpoint_state import EndpointState, Health

Tier = Sequence[EndpointState]


class Availability(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a model's available endpoints, grouped in tiers.

    `is_whole` says whether all endpoints of the preferred region are available. At the time
    `until`, the next ejection ends, and this struct becomes invalid.
    """

    tiers: Sequence[Tier]
    is_whole: bool
    until: float


def availability(tiers: Sequence[Tier], context: ChoiceContext) -> Availability:
    """Return which endpoints of `tiers` are available now."""
    now = context.now
    ends = [endpoint.ejection.until for tier in tiers for endpoint in tier]
    return Availability(
        tiers=available_tiers(tiers, context),
        is_whole=bool(tiers) and all(endpoint.is_available(now) for endpoint in tiers[0]),
        until=min([end for end in ends if end > now], default=inf),
    )


def keeps_all(found: Availability, context: ChoiceContext, random: Random) -> bool:
    """Return whether the preferred region is healthy and can take all items now."""
    if not found.is_whole:
        return False
    # With a single tier, items can go nowhere else.
    return len(found.tiers) == 1 or _has_short_wait(found.tiers[0], context, random)


def available_tiers(tiers: Sequence[Tier], context: ChoiceContext) -> list[Tier]:
    """Return the available endpoints of each tier, without empty tiers.

    If the fraction of available endpoints is below the panic threshold, ejected endpoints count as
    available, too. So many ejections can mean that this process itself has a problem. If it has no
    problem, the few remaining endpoints would be overloaded.
    """
    found = [
        [endpoint for endpoint in tier if endpoint.is_available(context.now)] for tier in tiers
    ]
    undrained = sum(not endpoint.drained for tier in tiers for endpoint in tier)
    if sum(map(len, found)) < context.routing.panic_threshold * undrained:
        found = [[m for m in tier if m.health is Health.READY and not m.drained] for tier in tiers]
    return [in_order(tier) for tier in found if tier]


def choose_tier(tiers: Sequence[Tier], context: ChoiceContext, random: Random) -> Tier:
    """Return the tier that gets an item.

    There must be at least one tier, and no tier may be empty. If an item would wait for more than
    `spill_after` seconds in the first tier, it goes to a tier that would finish it sooner. If every
    tier would need more than `overflow_after` seconds, the item goes to an overflow pool.
    """
    first, routing = tiers[0], context.routing
    if len(tiers) == 1:
        return first
    if first[0].config.overflow:
        return first
    if _has_short_wait(first, context, random):
        return first
    soonest = _finish(first, context, random)
    others = [(tier, _finish(tier, context, random)) for tier in tiers[1:]]
    normal = [(tier, at) for tier, at in others if not tier[0].config.overflow and at < soonest]
    best = min([soonest, *(at for _, at in normal)])
    if best > routing.overflow_after:
        spare = [tier for tier, at in others if tier[0].config.overflow and at < best]
        if spare:
            return spare[0]
    if not normal:
        return first
    rooms = [_headroom(tier, context, random) for tier, _ in normal]
    return random.choices([tier for tier, _ in normal], rooms)[0] if sum(rooms) > 0 else first


def _has_short_wait(tier: Tier, context: ChoiceContext, random: Random) -> bool:
    now, routing = context.now, context.routing
    for endpoint in sample(tier, random):
        if endpoint.wait(now, routing.slow_start) <= routing.spill_after:
            return True
    return False


def _finish(tier: Tier, context: ChoiceContext, random: Random) -> float:
    return min(map(context.finish, sample(tier, random)))


def _headroom(tier: Tier, context: ChoiceContext, random: Random) -> float:
    near, slow_start = sample(tier, random), context.routing.slow_start
    rooms = [endpoint.headroom(context.now, slow_start) for endpoint in near]
    return sum(rooms) * len(tier) / len(near)
