"""Which backend an item goes to: by affinity while that costs little, else by predicted finish.

Rendezvous hashing sends equal items to the same backend, where they meet in its row cache and its
work in flight; a faster backend draws more of them. Affinity yields to load: where the favourite
would finish clearly later than the better of two others drawn at random, that one is taken.
"""

import math
from collections.abc import Sequence
from random import Random

import xxhash

from gateway.routing.member import Member

# The favourite may finish by so much later than another before affinity yields, ...
SLACK = 1.25
# ... and so many items later, so that affinity holds while there is little to do.
FREE_ITEMS = 2
_SPAN = float(1 << 64)


class ChoiceContext:
    """The time of a choice, and how long a backend that came back is spared."""

    __slots__ = ("now", "slow_start")

    def __init__(self, now: float, slow_start: float) -> None:
        self.now = now
        self.slow_start = slow_start

    def finish(self, member: Member) -> float:
        """Return the seconds after which `member` should answer."""
        return member.finish_time(self.now, self.slow_start)

    def wait(self, member: Member) -> float:
        """Return the seconds of that which are not the item's own: it takes those anywhere."""
        own = member.item_time() / member.share(self.now, self.slow_start)
        return self.finish(member) - own

    def cost(self, member: Member) -> float:
        """Return that, more for a lesser weight: the member of least cost is chosen."""
        return self.finish(member) / member.endpoint.weight


def score(member: Member, affinity: bytes, moment: ChoiceContext) -> float:
    """Return the weighted rendezvous score; the highest of all members wins."""
    digest = xxhash.xxh3_64_intdigest(affinity, member.seed)
    weight = member.endpoint.weight * member.pull * member.share(moment.now, moment.slow_start)
    return weight / -math.log((digest + 0.5) / _SPAN * (1 - 1e-12))


def favourite(members: Sequence[Member], affinity: bytes, moment: ChoiceContext) -> Member:
    """Return the member that items of this affinity should meet in."""
    if len(members) == 1:
        return members[0]
    return max(members, key=lambda member: score(member, affinity, moment))


def choose(
    members: Sequence[Member], affinity: bytes, moment: ChoiceContext, random: Random
) -> Member:
    """Return the member that an item of this affinity goes to; there must be some."""
    first = favourite(members, affinity, moment)
    if len(members) == 1:
        return first
    bound = moment.cost(first) - FREE_ITEMS * first.item_time()
    others = [member for member in members if member is not first]
    drawn = others if len(others) <= 2 else random.sample(others, 2)  # noqa: PLR2004 - two choices
    second = min(drawn, key=moment.cost)
    return first if bound <= SLACK * moment.cost(second) else second
