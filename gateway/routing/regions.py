"""Chooses the region of work: the first with room, then by headroom.

Regions come in order of preference, overflow pools after all of them. The preferred region keeps
work that it finishes soon. Other work is spread over the other regions in proportion to their
headroom, so that no single one is overloaded, and goes to an overflow pool only when no other pool
would finish it in time.
"""

from collections.abc import Sequence
from random import Random

from gateway.routing.choice import ChoiceContext
from gateway.routing.member import Health, Member

Tier = Sequence[Member]


def healthy_first_tier(tiers: Sequence[Tier], context: ChoiceContext) -> Tier | None:
    """Return the preferred region if all its members are available and one has a short wait."""
    if not tiers or tiers[0][0].endpoint.overflow:
        return None
    first, now, routing = tiers[0], context.now, context.routing
    is_short = len(tiers) == 1  # work cannot leave for another region
    for member in first:
        if not member.is_available(now):
            return None
        is_short = is_short or member.wait(now, routing.slow_start) <= routing.spill_after
    return first if is_short else None


def available_tiers(tiers: Sequence[Tier], context: ChoiceContext) -> list[Tier]:
    """Return the available members of each tier, without empty tiers.

    Below the panic threshold ejections are ignored: more likely this process has trouble, or the
    few others would be overloaded.
    """
    found = [[member for member in tier if member.is_available(context.now)] for tier in tiers]
    members = sum(not member.drained for tier in tiers for member in tier)
    if sum(map(len, found)) < context.routing.panic_threshold * members:
        found = [[m for m in tier if m.health is Health.READY and not m.drained] for tier in tiers]
    return [tier for tier in found if tier]


def choose_tier(tiers: Sequence[Tier], context: ChoiceContext, random: Random) -> Tier:
    """Return one of `tiers`, none of which is empty; there must be one.

    Work leaves the first tier for one that would finish it sooner once it would wait there for
    `spill_after` seconds, and goes to an overflow pool after `overflow_after`.
    """
    first, routing = tiers[0], context.routing
    if len(tiers) == 1:
        return first
    soonest = _finish(first, context)
    waits = min([member.wait(context.now, routing.slow_start) for member in first])
    if waits <= routing.spill_after or first[0].endpoint.overflow:
        return first
    others = [(tier, _finish(tier, context)) for tier in tiers[1:]]
    normal = [(tier, at) for tier, at in others if not tier[0].endpoint.overflow and at < soonest]
    best = min([soonest, *(at for _, at in normal)])
    if best > routing.overflow_after:
        spare = [tier for tier, at in others if tier[0].endpoint.overflow and at < best]
        if spare:
            return spare[0]
    if not normal:
        return first
    rooms = [sum(m.headroom(context.now, routing.slow_start) for m in tier) for tier, _ in normal]
    return random.choices([tier for tier, _ in normal], rooms)[0] if sum(rooms) > 0 else first


def _finish(tier: Tier, context: ChoiceContext) -> float:
    return min(map(context.finish, tier))
