"""Which region work goes to: the first that has room, then where there is most of it.

Regions come in order of preference, overflow pools after all of them. The preferred region keeps
what it finishes soon. What it would finish too late is spread over the others in proportion to
their headroom, so that none is dragged down by a neighbour's trouble, and goes to an overflow pool
only when no other pool would finish it in time.
"""

from collections.abc import Sequence
from random import Random

from gateway.routing.choice import Moment
from gateway.routing.member import Member

Tier = Sequence[Member]


def choose_tier(
    tiers: Sequence[Tier],
    moment: Moment,
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
    if soonest <= spill_after or first[0].endpoint.overflow:
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


def _finish(tier: Tier, moment: Moment) -> float:
    return min(map(moment.finish, tier))
