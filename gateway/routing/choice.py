"""Chooses an item's backend among available ones, by affinity and predicted finish time.

Rendezvous hashing sends equal items to the same backend, where they share its row cache and its
computations in flight. A faster backend attracts more items. Load overrides affinity: if the
preferred backend would finish clearly later than the better of two others chosen at random, the
item goes to that one.

The cost of a choice does not depend on the size of the fleet. In a large fleet, endpoints are
sorted by their seeds, and only endpoints next to the affinity's hash are scored. A few neighbours
represent the whole fleet. The number of scored endpoints falls gradually with the size of the
fleet, so that few items move when it grows.
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

# An item goes to its preferred endpoint unless that would finish later than `SLACK` times another's
# finish time plus the time of `FREE_ITEMS` items. The latter keeps affinity under low load.
SLACK = 1.25
FREE_ITEMS = 2
# In a fleet with more endpoints, a choice considers only some of them.
WIDE = 64
# The fewest endpoints that are scored for an affinity in such a fleet.
_MIN_SCORED = 16
_SPAN = float(1 << 64)
_seed = attrgetter("seed")


class ChoiceContext(msgspec.Struct, frozen=True):
    """Holds the time of a choice, and the routing configuration."""

    now: float
    routing: RoutingConfig

    def finish(self, member: Member) -> float:
        """Return the predicted seconds until `member` finishes an item sent now."""
        return member.finish_time(self.now, self.routing.slow_start)

    def cost(self, member: Member) -> float:
        """Return the finish time divided by the weight. The lowest cost is preferred."""
        return self.finish(member) / member.endpoint.weight


def score(member: Member, affinity: bytes, context: ChoiceContext) -> float:
    """Return the weighted rendezvous score. The highest score is preferred."""
    digest = xxhash.xxh3_64_intdigest(affinity, member.seed)
    weight = (
        member.endpoint.weight
        * member.affinity_speed
        * member.share(context.now, context.routing.slow_start)
    )
    return weight / -math.log((digest + 0.5) / _SPAN * (1 - 1e-12))


def in_order(members: list[Member]) -> list[Member]:
    """Return `members` in the order that `favourite` requires for a large fleet."""
    return members if len(members) <= WIDE else sorted(members, key=_seed)


def sample(members: Sequence[Member], random: Random) -> Sequence[Member]:
    """Return `members`, or in a large fleet a random run of neighbours."""
    if len(members) <= WIDE:
        return members
    return _neighbours(members, random.randrange(len(members)), WIDE)


def _neighbours(members: Sequence[Member], start: int, count: int) -> Sequence[Member]:
    found = members[start : start + count]
    missing = count - len(found)
    return [*found, *members[:missing]] if missing else found


def favourite(members: Sequence[Member], affinity: bytes, context: ChoiceContext) -> Member:
    """Return the endpoint that items with this affinity prefer."""
    if len(members) == 1:
        return members[0]
    if len(members) > WIDE:
        start = bisect(members, xxhash.xxh3_64_intdigest(affinity), key=_seed)
        count = max(_MIN_SCORED, WIDE * WIDE // len(members))
        members = _neighbours(members, start, count)
    return max(members, key=lambda member: score(member, affinity, context))


def choose(
    members: Sequence[Member], affinity: bytes, context: ChoiceContext, random: Random
) -> Member:
    """Return the endpoint for an item with this affinity. `members` must not be empty."""
    if len(members) == 1:
        return members[0]
    first = favourite(members, affinity, context)
    bound = context.cost(first) - FREE_ITEMS * first.item_time()
    drawn = members if len(members) <= 3 else random.sample(members, 3)  # noqa: PLR2004 - two other endpoints
    second = min([member for member in drawn if member is not first][:2], key=context.cost)
    return first if bound <= SLACK * context.cost(second) else second
