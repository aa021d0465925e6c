"""Chooses the region of work: the first with room, then by headroom.

Regions come in order of preference, overflow pools after all of them. The preferred region keeps
work that it finishes soon. Other work is spread over the other regions in proportion to their
headroom, so that no single one is overloaded, and goes to an overflow pool only when no other pool
would finish it in time.
"""

from collections.abc import Sequence
from math import inf
from random import Random

import msgspec

from gateway.routing.choice import ChoiceContext, in_order, sample
from gateway.routing.member import Health, Member

Tier = Sequence[Member]


class Availability(msgspec.Struct, frozen=True, kw_only=True):
    """The available members of a model in tiers, as they are `until` an ejection ends.

    `is_whole` says that all members of the preferred region are among them.
    """

    tiers: Sequence[Tier]
    is_whole: bool
    until: float


def availability(tiers: Sequence[Tier], context: ChoiceContext) -> Availability:
    """Return who of `tiers` is available now."""
    now = context.now
    ends = [member.ejection.until for tier in tiers for member in tier]
    return Availability(
        tiers=available_tiers(tiers, context),
        is_whole=bool(tiers) and all(member.is_available(now) for member in tiers[0]),
        until=min([end for end in ends if end > now], default=inf),
    )


def keeps_all(found: Availability, context: ChoiceContext, random: Random) -> bool:
    """Return whether the preferred region takes whatever comes now: all of it is well."""
    if not found.is_whole or found.tiers[0][0].endpoint.overflow:
        return False
    # Of a single tier work cannot leave.
    return len(found.tiers) == 1 or _has_short_wait(found.tiers[0], context, random)


def available_tiers(tiers: Sequence[Tier], context: ChoiceContext) -> list[Tier]:
    """Return the available members of each tier, without empty tiers.

    Below the panic threshold ejections are ignored: more likely this process has trouble, or the
    few others would be overloaded.
    """
    found = [[member for member in tier if member.is_available(context.now)] for tier in tiers]
    members = sum(not member.drained for tier in tiers for member in tier)
    if sum(map(len, found)) < context.routing.panic_threshold * members:
        found = [[m for m in tier if m.health is Health.READY and not m.drained] for tier in tiers]
    return [in_order(tier) for tier in found if tier]


def choose_tier(tiers: Sequence[Tier], context: ChoiceContext, random: Random) -> Tier:
    """Return one of `tiers`, none of which is empty; there must be one.

    Work leaves the first tier for one that would finish it sooner once it would wait there for
    `spill_after` seconds, and goes to an overflow pool after `overflow_after`.
    """
    first, routing = tiers[0], context.routing
    if len(tiers) == 1:
        return first
    if first[0].endpoint.overflow:
        return first
    if _has_short_wait(first, context, random):
        return first
    soonest = _finish(first, context, random)
    others = [(tier, _finish(tier, context, random)) for tier in tiers[1:]]
    normal = [(tier, at) for tier, at in others if not tier[0].endpoint.overflow and at < soonest]
    best = min([soonest, *(at for _, at in normal)])
    if best > routing.overflow_after:
        spare = [tier for tier, at in others if tier[0].endpoint.overflow and at < best]
        if spare:
            return spare[0]
    if not normal:
        return first
    rooms = [_headroom(tier, context, random) for tier, _ in normal]
    return random.choices([tier for tier, _ in normal], rooms)[0] if sum(rooms) > 0 else first


def _has_short_wait(tier: Tier, context: ChoiceContext, random: Random) -> bool:
    now, routing = context.now, context.routing
    for member in sample(tier, random):
        if member.wait(now, routing.slow_start) <= routing.spill_after:
            return True
    return False


def _finish(tier: Tier, context: ChoiceContext, random: Random) -> float:
    return min(map(context.finish, sample(tier, random)))


def _headroom(tier: Tier, context: ChoiceContext, random: Random) -> float:
    near, slow_start = sample(tier, random), context.routing.slow_start
    rooms = [member.headroom(context.now, slow_start) for member in near]
    return sum(rooms) * len(tier) / len(near)
