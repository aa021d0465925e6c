"""Which region work goes to: the first that has room, then where there is most of it.

Regions come in order of preference, overflow pools after all of them. The preferred region keeps
what it finishes soon. What it would finish too late is spread over the others in proportion to
their headroom, so that none is dragged down by a neighbour's trouble, and goes to an overflow pool
only when no other pool would finish it in time.
"""

from collections.abc import Sequence
from random import Random

from gateway.routing.choice import ChoiceContext
from gateway.routing.member import Member

Tier = Sequence[Member]


def easy_tier(tiers: Sequence[Tier], moment: ChoiceContext, spill_after: float) -> Tier | None:
    """Return the preferred region where all is well with it, as it is most of the time."""
    if not tiers or tiers[0][0].endpoint.overflow:
        return None
    first = tiers[0]
    if not all(member.is_available(moment.now) for member in first):
        return None
    return first if any(moment.wait(member) <= spill_after for member in first) else None


def available_tiers(tiers: Sequence[Tier], now: float, panic_threshold: float) -> list[Tier]:
    """Return what of the tiers can be used, without those of which nothing can.

    Where hardly any backend is left that is not ejected, ejections count for nothing: more likely
    it is us, or the rest would break under the load of all.
    """
    found = [[member for member in tier if member.is_available(now)] for tier in tiers]
    members = sum(not member.drained for tier in tiers for member in tier)
    if sum(map(len, found)) < panic_threshold * members:
        found = [[member for member in tier if member.is_in_use()] for tier in tiers]
    return [tier for tier in found if tier]


def choose_tier(
    tiers: Sequence[Tier],
    moment: ChoiceContext,
    random: Random,
    *,
    spill_after: float,
    overflow_after: float,
) -> Tier:
    """Return one of `tiers`, none of which is empty; there must be one.

    Work leaves the first for another that would finish it sooner once it would wait there for
    `spill_after` seconds, and the regions' pools for one of overflow after `overflow_after`.
    """
    first = tiers[0]
    if len(tiers) == 1:
        return first
    soonest = _finish(first, moment)
    waits = min(map(moment.wait, first))
    if waits <= spill_after or first[0].endpoint.overflow:
        return first
    others = [(tier, _finish(tier, moment)) for tier in tiers[1:]]
    normal = [(tier, at) for tier, at in others if not tier[0].endpoint.overflow and at < soonest]
    best = min([soonest, *(at for _, at in normal)])
    if best > overflow_after:
        spare = [tier for tier, at in others if tier[0].endpoint.overflow and at < best]
        if spare:
            return spare[0]
    if not normal:
        return first
    rooms = [sum(m.headroom(moment.now, moment.slow_start) for m in tier) for tier, _ in normal]
    return random.choices([tier for tier, _ in normal], rooms)[0] if sum(rooms) > 0 else first


def _finish(tier: Tier, moment: ChoiceContext) -> float:
    return min(map(moment.finish, tier))
