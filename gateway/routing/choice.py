"""Chooses an item's backend among available ones: by affinity, or else by predicted finish.

Rendezvous hashing sends equal items to the same backend, where they share its row cache and its
work in flight; a faster backend attracts more of them. Affinity yields to load: where the favourite
would finish clearly later than the better of two others drawn at random, that one is chosen.
"""

import math
from collections.abc import Sequence
from random import Random

import msgspec
import xxhash

from gateway.config.document import RoutingConfig
from gateway.routing.member import Member

# The favourite may finish by so much later than another before affinity yields, ...
SLACK = 1.25
# ... and so many items later, so that affinity holds while there is little to do.
FREE_ITEMS = 2
_SPAN = float(1 << 64)


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


def favourite(members: Sequence[Member], affinity: bytes, context: ChoiceContext) -> Member:
    """Return the member that items of this affinity prefer."""
    if len(members) == 1:
        return members[0]
    return max(members, key=lambda member: score(member, affinity, context))


def choose(
    members: Sequence[Member], affinity: bytes, context: ChoiceContext, random: Random
) -> Member:
    """Return the member that an item of this affinity goes to; there must be some."""
    if len(members) == 1:
        return members[0]
    first = favourite(members, affinity, context)
    bound = context.cost(first) - FREE_ITEMS * first.item_time()
    others = [member for member in members if member is not first]
    drawn = others if len(others) <= 2 else random.sample(others, 2)  # noqa: PLR2004 - two choices
    second = min(drawn, key=context.cost)
    return first if bound <= SLACK * context.cost(second) else second
