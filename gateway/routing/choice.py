"""Chooses a backend for an item, from the item's affinity and the backends' finish times.

Rendezvous hashing of the affinity gives each item a preferred backend. Equal items prefer the same
backend, where they share cached rows and computations in flight. A faster backend gets more items.
For each item, two other backends are chosen at random. If the faster of these two would finish the
item clearly sooner than the preferred backend, it gets the item.

The time for a choice does not depend on the size of the fleet. In a large fleet, endpoints are
sorted by their seeds, which are hashes of their ids. Only the few endpoints whose seeds follow the
affinity's hash get a score. A few neighbouring endpoints in this order represent the load of the
whole fleet. The number of scored endpoints falls gradually as the fleet grows. A sudden fall would
send many items to a different endpoint.
"""

import math
from bisect import bisect
from collections.abc import Sequence
from operator import attrgetter
from random import Random

import msgspec
import xxhash

from sluicegate.gateway.config.document import RoutingConfig
from sluicegate.gateway.routing.endpoint_state import EndpointState

# An item goes to its preferred endpoint, unless this endpoint would finish later than a limit. The
# limit is `SLACK` times the alternative endpoint's finish time, plus the time of `FREE_ITEMS`
# items. `FREE_ITEMS` keeps items at their preferred endpoint while load is low.
SLACK = 1.25
FREE_ITEMS = 2
# In a fleet with more endpoints than this, a choice considers only some of them.
WIDE = 64
# The fewest endpoints that are scored for an affinity in a fleet larger than `WIDE`.
_MIN_SCORED = 16
_SPAN = float(1 << 64)
_seed = attrgetter("seed")


class ChoiceContext(msgspec.Struct, frozen=True):
    """Holds the time of a choice, and the routing configuration."""

    now: float
    routing: RoutingConfig

    def finish(self, endpoint: EndpointState) -> float:
        """Return the predicted seconds until `endpoint` finishes an item that is sent now."""
        return endpoint.finish_time(self.now, self.routing.slow_start)

    def cost(self, endpoint: EndpointState) -> float:
        """Return the finish time divided by the endpoint's weight. The lowest cost is preferred."""
        return self.finish(endpoint) / endpoint.config.weight


def score(endpoint: EndpointState, affinity: bytes, context: ChoiceContext) -> float:
    """Return the weighted rendezvous hashing score of `endpoint` for items with this affinity.

    Items prefer the endpoint with the highest score.
    """
    digest = xxhash.xxh3_64_intdigest(affinity, endpoint.seed)
    weight = (
        endpoint.config.weight
        * endpoint.affinity_speed
        * endpoint.share(context.now, context.routing.slow_start)
    )
    return weight / -math.log((digest + 0.5) / _SPAN * (1 - 1e-12))


def in_order(endpoints: list[EndpointState]) -> list[EndpointState]:
    """Return `endpoints` in the order that `favourite` requires for a large fleet."""
    return endpoints if len(endpoints) <= WIDE else sorted(endpoints, key=_seed)


def sample(endpoints: Sequence[EndpointState], random: Random) -> Sequence[EndpointState]:
    """Return `endpoints`. In a large fleet, return a random group of neighbouring endpoints."""
    if len(endpoints) <= WIDE:
        return endpoints
    return _neighbours(endpoints, random.randrange(len(endpoints)), WIDE)


def _neighbours(
    endpoints: Sequence[EndpointState], start: int, count: int
) -> Sequence[EndpointState]:
    found = endpoints[start : start + count]
    missing = count - len(found)
    return [*found, *endpoints[:missing]] if missing else found


def favourite(
    endpoints: Sequence[EndpointState], affinity: bytes, context: ChoiceContext
) -> EndpointState:
    """Return the endpoint that items with this affinity prefer."""
    if len(endpoints) == 1:
        return endpoints[0]
    if len(endpoints) > WIDE:
        start = bisect(endpoints, xxhash.xxh3_64_intdigest(affinity), key=_seed)
        count = max(_MIN_SCORED, WIDE * WIDE // len(endpoints))
        endpoints = _neighbours(endpoints, start, count)
    return max(endpoints, key=lambda endpoint: score(endpoint, affinity, context))


def choose(
    endpoints: Sequence[EndpointState], affinity: bytes, context: ChoiceContext, random: Random
) -> EndpointState:
    """Return the endpoint that gets an item with this affinity.

    The result is usually the favourite. But two endpoints are also chosen at random, and the faster
    of these two is returned if it is clearly faster than the favourite. `endpoints` must not be
    empty.
    """
    if len(endpoints) == 1:
        return endpoints[0]
    first = favourite(endpoints, affinity, context)
    bound = context.cost(first) - FREE_ITEMS * first.item_time()
    drawn = endpoints if len(endpoints) <= 3 else random.sample(endpoints, 3)  # noqa: PLR2004 - two other endpoints
    second = min([endpoint for endpoint in drawn if endpoint is not first][:2], key=context.cost)
    return first if bound <= SLACK * context.cost(second) else second
