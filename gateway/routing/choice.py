"""Chooses an item's backend among available ones: by affinity, or else by predicted finish.

Rendezvous hashing sends equal items to the same backend, where they share its row cache and its
work in flight; a faster backend attracts more of them. Affinity yields to load: where the favourite
would finish clearly later than the better of two others drawn at random, that one is chosen.

A choice costs the same however large a fleet is: of many members, which are in the order of their
seeds then, those next to the affinity's hash are scored, and a few neighbours speak for all.
How many are scored falls gradually with the size of the fleet, so that few items move at each step.
"""

import math
from bisect import bisect
from collections.abc import Sequence
from operator import attrgetter
from random import Random

import msgspec
import xxhash

from gateway.config.document import RoutingConfig
from gateway.routing.member import Member

# The favourite may finish by so much later than another before affinity yields, ...
SLACK = 1.25
# ... and so many items later, so that affinity holds while there is little to do.
FREE_ITEMS = 2
# Of more members than this a part is looked at, ...
WIDE = 64
# ... and so many at least are scored for an affinity.
_LEAST_SCORED = 16
_SPAN = float(1 << 64)
_seed = attrgetter("seed")


class ChoiceContext(msgspec.Struct, frozen=True):
    """The time of a choice, and the configured bounds."""

    now: float
    routing: RoutingConfig

    def finish(self, member: Member) -> float:
        """Return the seconds after which `member` should answer."""
        return member.finish_time(self.now, self.routing.slow_start)

    def cost(self, member: Member) -> float:
        """Return the finish time divided by the weight; the member of least cost is chosen."""
        return self.finish(member) / member.endpoint.weight


def score(member: Member, affinity: bytes, context: ChoiceContext) -> float:
    """Return the weighted rendezvous score; the highest of all members wins."""
    digest = xxhash.xxh3_64_intdigest(affinity, member.seed)
    weight = (
        member.endpoint.weight
        * member.affinity_speed
        * member.share(context.now, context.routing.slow_start)
    )
    return weight / -math.log((digest + 0.5) / _SPAN * (1 - 1e-12))


def in_order(members: list[Member]) -> list[Member]:
    """Return `members` in the order that `favourite` needs of many."""
    return members if len(members) <= WIDE else sorted(members, key=_seed)


def sample(members: Sequence[Member], random: Random) -> Sequence[Member]:
    """Return `members`, or neighbours drawn at random that speak for many."""
    if len(members) <= WIDE:
        return members
    return _neighbours(members, random.randrange(len(members)), WIDE)


def _neighbours(members: Sequence[Member], start: int, count: int) -> Sequence[Member]:
    found = members[start : start + count]
    missing = count - len(found)
    return [*found, *members[:missing]] if missing else found


def favourite(members: Sequence[Member], affinity: bytes, context: ChoiceContext) -> Member:
    """Return the member that items of this affinity prefer."""
    if len(members) == 1:
        return members[0]
    if len(members) > WIDE:
        start = bisect(members, xxhash.xxh3_64_intdigest(affinity), key=_seed)
        count = max(_LEAST_SCORED, WIDE * WIDE // len(members))
        members = _neighbours(members, start, count)
    return max(members, key=lambda member: score(member, affinity, context))


def choose(
    members: Sequence[Member], affinity: bytes, context: ChoiceContext, random: Random
) -> Member:
    """Return the member that an item of this affinity goes to; there must be some."""
    if len(members) == 1:
        return members[0]
    first = favourite(members, affinity, context)
    bound = context.cost(first) - FREE_ITEMS * first.item_time()
    drawn = members if len(members) <= 3 else random.sample(members, 3)  # noqa: PLR2004 - two others
    second = min([member for member in drawn if member is not first][:2], key=context.cost)
    return first if bound <= SLACK * context.cost(second) else second
