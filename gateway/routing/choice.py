"""The order in which equal backends are tried: affinity, bounded by load.

Rendezvous hashing sends equal items to the same backend, where they meet in its row cache and its
work in flight. Affinity yields to load: a backend with more than its share in flight is passed by
for the better of two others drawn at random.
"""

import math
from collections.abc import Sequence
from random import Random

import xxhash

from gateway.routing.member import Member

# A backend may have so much more than its fair share in flight before affinity yields, ...
SLACK = 1.25
# ... and so many items whatever the share is, so that affinity holds while there is little to do.
FREE_ITEMS = 8
_SPAN = float(1 << 64)


def score(member: Member, affinity: bytes) -> float:
    """Return the weighted rendezvous score; the highest of all members wins."""
    digest = xxhash.xxh3_64_intdigest(affinity, member.seed)
    return member.endpoint.weight / -math.log((digest + 0.5) / _SPAN * (1 - 1e-12))


def ranked(members: Sequence[Member], affinity: bytes) -> list[Member]:
    """Return `members` by rendezvous score, best first."""
    if len(members) == 1:
        return list(members)
    return sorted(members, key=lambda member: score(member, affinity), reverse=True)


def has_room(member: Member, members: Sequence[Member]) -> bool:
    """Tell whether `member` has no more in flight than its share among `members` allows."""
    total = sum(other.in_flight for other in members) + 1
    weights = sum(other.endpoint.weight for other in members)
    share = total * member.endpoint.weight / weights if weights else total
    return member.in_flight < FREE_ITEMS + SLACK * share


def order(members: Sequence[Member], affinity: bytes, random: Random) -> list[Member]:
    """Return `members` in the order in which to try them for an item of this affinity."""
    by_affinity = ranked(members, affinity)
    if len(members) == 1 or has_room(by_affinity[0], members):
        return by_affinity
    free = [member for member in by_affinity if has_room(member, members)]
    # Some member is always below its share, unless weights were set to nothing.
    drawn = random.sample(free, min(2, len(free))) or by_affinity[:1]
    first = min(drawn, key=Member.finish_time)
    return [first, *(member for member in by_affinity if member is not first)]
