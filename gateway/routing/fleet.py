"""Holds the state of all backends, and decides which backend gets an item.

It decides and makes no calls. A process has one fleet, which only its event loop uses.
"""

from collections.abc import Callable, Iterable, Sequence
from math import ceil
from random import Random

import msgspec

from backends.protocol import Report, ServingState
from gateway.config.document import RoutingConfig
from gateway.routing.catalog import Placement, catalog, tiers
from gateway.routing.choice import WIDE, ChoiceContext, choose, sample, score
from gateway.routing.limit import after_answer
from gateway.routing.member import CallVerdict, Health, Member, ProbeFailure
from gateway.routing.regions import Availability, Tier, availability, choose_tier, keeps_all
from gateway.routing.statistics import EndpointStatistics, endpoint_statistics
from gateway.types import BackendId, Criticality, Endpoint, RegionName, ServedModel

# A request is spread over one backend for every `ITEMS_PER_BACKEND` items.
ITEMS_PER_BACKEND = 16
# The minimum of `Retry-After` in seconds.
_SOONEST = 0.5


class ItemShare(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the items (indexes in the request) that go to one endpoint."""

    endpoint: Endpoint
    items: tuple[int, ...]


class Fleet:
    """Holds the configured endpoints, with the results of probes and calls."""

    def __init__(self, *, clock: Callable[[], float], random: Random) -> None:
        self._clock = clock
        self._random = random
        self._members: dict[BackendId, Member] = {}
        # Rebuilt when it is next needed, because backends often change together.
        self._catalog: dict[str, Placement] | None = None
        self._available: dict[str, Availability] = {}
        self._regions: tuple[RegionName, ...] = ()
        self._drained: frozenset[str] = frozenset()
        self._recovering = 0.0
        self._has_served = False
        self._on_lost: Callable[[Endpoint], None] = lambda _: None
        self.routing = RoutingConfig()

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The endpoints in the order of use."""
        return tuple(member.endpoint for member in self._members.values())

    @property
    def size(self) -> int:
        """The number of endpoints."""
        return len(self._members)

    def on_lost(self, callback: Callable[[Endpoint], None]) -> None:
        """Set a callback that gives up the calls of an endpoint which stops being ready."""
        self._on_lost = callback

    def configure(self, endpoints: Sequence[Endpoint], routing: RoutingConfig) -> None:
        """Use these endpoints from now on, and keep the state of known ones."""
        members: dict[BackendId, Member] = {}
        for endpoint in endpoints:
            member = self._members.get(endpoint.backend)
            if member is None or member.endpoint.url != endpoint.url:
                member = Member(endpoint)
                if self._members:  # a new endpoint among others
                    member.returned = self._clock()
            member.endpoint = endpoint
            members[endpoint.backend] = member
        self._members = members
        self._regions = tuple(dict.fromkeys(endpoint.region for endpoint in endpoints))
        self.routing = routing
        self.drain(self._drained)

    def drain(self, drained: frozenset[str]) -> None:
        """Drain exactly these backends, named by id or entry."""
        self._drained = drained
        now = self._clock()
        for member in self._members.values():
            is_drained = not drained.isdisjoint({member.endpoint.backend, member.endpoint.entry})
            if member.drained and not is_drained:
                member.returned = now
            member.drained = is_drained
        # Draining may change which revision is served.
        self._catalog = None
        self._available.clear()

    def observe(
        self, endpoint: Endpoint, found: ServingState | ProbeFailure, took: float = 0.0
    ) -> None:
        """Record the result of a probe that took `took` seconds. Unknown endpoints are ignored."""
        member = self._member(endpoint)
        if member is None:
            return
        before = (member.health, member.models)
        now = self._clock()
        member.observe(found, now, took)
        if member.health is Health.READY:
            has_recovered = before[0] is Health.NOT_READY and self._has_served
            if has_recovered and self._is_alone(member, now):
                # Callers that waited for its models now arrive all at once.
                self._recovering = now + self.routing.slow_start
            self._has_served = True
        if before != (member.health, member.models):
            self._forget_available(before[1].keys() | member.models.keys())
            if before[1] != member.models or self._has_variants(member):
                self._catalog = None
            if before[0] is Health.READY and member.health is Health.NOT_READY:
                self._on_lost(endpoint)

    def model(self, name: str) -> ServedModel | None:
        """Return a served model; `None` if no backend ever reported it."""
        catalog = self._catalog
        placement = (self._placements if catalog is None else catalog).get(name)
        return None if placement is None else placement.model

    def models(self) -> list[ServedModel]:
        """Return all models, sorted by name."""
        return [placement.model for placement in self._placements.values()]

    def knows_models(self) -> bool:
        """Return whether any backend has ever reported its models."""
        return bool(self._placements)

    def preferred_region(self, model: ServedModel) -> RegionName:
        """Return the first region that serves `model`; empty if none does."""
        placement = self._placements.get(model.info.name)
        tiers = () if placement is None else placement.tiers
        return tiers[0][0].endpoint.region if tiers else RegionName("")

    def candidates(
        self, model: ServedModel, affinity: bytes, *, with_silent: bool = True
    ) -> list[Endpoint]:
        """Return the endpoints that may serve `model` at its revision, in the order to try them.

        The chosen endpoint comes first. Then come the others by region and predicted finish time,
        and then ejected endpoints. Unless `with_silent` is false, endpoints that are leaving or
        have just stopped responding to probes come last. Other endpoints that are not ready are
        left out: a probe notices when they return.
        """
        context = ChoiceContext(self._clock(), self.routing)
        tiers = self._availability(model, context).tiers
        if not tiers:
            return self._last_resort(model, with_silent=with_silent)
        tier = choose_tier(tiers, context, self._random)
        first = choose(tier, affinity, context, self._random)
        found = [first.endpoint]
        for each in [tier, *(other for other in tiers if other is not tier)]:
            near = sample(each, self._random)
            others = sorted([m for m in near if m is not first], key=context.cost)
            found += [member.endpoint for member in others]
        if len(found) > WIDE:
            return found  # more endpoints than are ever tried
        known = {endpoint.backend for endpoint in found}
        last_resort = self._last_resort(model, with_silent=with_silent)
        return found + [endpoint for endpoint in last_resort if endpoint.backend not in known]

    def spread(
        self, model: ServedModel, affinities: Sequence[bytes], *, together: bool = True
    ) -> list[ItemShare]:
        """Return the endpoint that each item is sent to first.

        With `together`, the items of a request go to few backends, and equal items to the same one.
        Otherwise each item is routed as if it were alone.
        """
        tiers, now = self._tiers(model), self._clock()
        everything = tuple(range(len(affinities)))
        if len(tiers) == 1 and len(tiers[0]) == 1 and tiers[0][0].is_available(now):
            # There is only one endpoint.
            return [ItemShare(endpoint=tiers[0][0].endpoint, items=everything)]
        context = ChoiceContext(now, self.routing)
        available = self._availability(model, context)
        usable = available.tiers
        if not usable:
            last_resort = self._last_resort(model)[:1]
            return [ItemShare(endpoint=endpoint, items=everything) for endpoint in last_resort]
        if keeps_all(available, context, self._random):
            usable = usable[:1]
        if not together:
            return self._spread_each(usable, affinities, context)
        tier = choose_tier(usable, context, self._random)
        width = min(ceil(len(affinities) / ITEMS_PER_BACKEND), len(tier))
        first = choose(tier, affinities[0], context, self._random)
        if width == 1:
            return [ItemShare(endpoint=first.endpoint, items=everything)]
        near = sample(tier, self._random)
        others = sorted([m for m in near if m is not first], key=context.cost)
        chosen = [first, *others[: width - 1]]
        items: dict[BackendId, list[int]] = {member.endpoint.backend: [] for member in chosen}
        for position, affinity in enumerate(affinities):
            best = max(chosen, key=lambda member: score(member, affinity, context))
            items[best.endpoint.backend].append(position)
        return [
            ItemShare(endpoint=member.endpoint, items=tuple(items[member.endpoint.backend]))
            for member in chosen
            if items[member.endpoint.backend]
        ]

    def _spread_each(
        self, usable: Sequence[Tier], affinities: Sequence[bytes], context: ChoiceContext
    ) -> list[ItemShare]:
        """Return the endpoint of each item, each routed as if it were alone."""
        items: dict[Member, list[int]] = {}
        try:
            for position, affinity in enumerate(affinities):
                tier = choose_tier(usable, context, self._random)
                member = choose(tier, affinity, context, self._random)
                # The next choice must count this item as sent.
                member.in_flight += 1
                member.sent_since += 1
                items.setdefault(member, []).append(position)
        finally:
            for member, own in items.items():
                member.in_flight -= len(own)
                member.sent_since -= len(own)
        return [
            ItemShare(endpoint=member.endpoint, items=tuple(own)) for member, own in items.items()
        ]

    def shed(self, model: ServedModel, criticality: Criticality) -> float | None:
        """Return the seconds after which to retry; `None` if the request is admitted.

        Sheddable requests are refused while every backend is at its limit. All requests but
        critical ones are refused while all backends are at their limit and in slow start, because
        callers that waited for them arrive all at once. In a large region, a sample represents all
        backends.
        """
        now, slow_start = self._clock(), self.routing.slow_start
        is_sheddable = criticality is Criticality.SHEDDABLE
        if criticality is Criticality.CRITICAL or (now >= self._recovering and not is_sheddable):
            return None
        available = self._availability(model, ChoiceContext(now, self.routing))
        members: list[Member] = []
        for member in (m for tier in available.tiers for m in sample(tier, self._random)):
            if not member.is_available(now):
                continue
            members.append(member)
            if not member.is_full() or not (is_sheddable or member.is_returning(now, slow_start)):
                return None
        if not members:
            return None
        soonest = min(member.finish_time(now, slow_start) for member in members)
        return max(_SOONEST, soonest) * self._random.uniform(1.0, 2.0)

    def started(self, endpoint: Endpoint, items: int, remaining: float = 0.0) -> float:
        """Count a call of `items` items in flight; `ended` must follow.

        Return how many of the `remaining` seconds are left for the backend, after the round trip.
        The result is at least half of `remaining`, because a slow probe says little about calls.
        """
        member = self._member(endpoint)
        if member is None:
            return remaining
        member.in_flight += items
        member.sent_since += items
        member.calls += 1
        return max(remaining - member.round_trip, remaining / 2)

    def queueing(self, endpoint: Endpoint, *, own: int = 0) -> float:
        """Predict how long a backend is busy with other callers' items; `own` do not count."""
        member = self._member(endpoint)
        return 0.0 if member is None else member.queueing(self._clock(), own=own)

    def answered(self, endpoint: Endpoint, requests: int, took: float, *, ended: int = 0) -> None:
        """Record that `requests` single-item requests succeeded, and that `ended` items ended."""
        member = self._member(endpoint)
        if member is None:
            return
        if requests:
            member.limit = after_answer(member.limit, took, member.in_flight, requests)
        # An endpoint that was replaced meanwhile has not counted the start.
        member.in_flight = max(0, member.in_flight - ended)

    def ended(self, endpoint: Endpoint, items: int) -> None:
        """Remove `items` items of a call from the items in flight."""
        member = self._member(endpoint)
        if member is not None:
            # An endpoint that was replaced meanwhile has not counted the start.
            member.in_flight = max(0, member.in_flight - items)

    def record(
        self,
        endpoint: Endpoint,
        verdict: CallVerdict,
        report: Report | None = None,
        *,
        items: int = 0,
        rows: int = 0,
        took: float | None = None,
    ) -> None:
        """Record the outcome of a call to `endpoint`.

        The call returned `items` results with `rows` rows in `took` seconds. `took` is `None` if
        `answered` has recorded the latency.
        """
        member = self._member(endpoint)
        if member is None:
            return
        now = self._clock()
        if report is not None:
            member.record_report(report, now)
        if items:
            member.record_rows(rows, items)
            if items <= ITEMS_PER_BACKEND and took is not None:
                member.record_latency(took)
        if verdict is CallVerdict.OK:
            member.record_success(now, self.routing)
        elif verdict is CallVerdict.FAILED:
            was_until = member.ejection.until
            member.record_failure(now, self.routing, may_eject=lambda: self._may_eject(now))
            if member.ejection.until != was_until:
                self._forget_available(member.models)

    def _forget_available(self, names: Iterable[str]) -> None:
        """Discard the cached availability of endpoints for these models."""
        for name in names:
            self._available.pop(name, None)

    def _is_alone(self, member: Member, now: float) -> bool:
        """Return whether a model of `member` is available on no other endpoint."""
        return any(
            all(
                other is member or name not in other.models or not other.is_available(now)
                for other in self._members.values()
            )
            for name in member.models
        )

    def _has_variants(self, member: Member) -> bool:
        """Return whether backends serve several variants of a model of `member`.

        The health of these backends then decides which variant is used.
        """
        placements = self._placements
        return any(placements[name].has_variants for name in member.models)

    def statistics(self) -> tuple[EndpointStatistics, ...]:
        """Return the statistics of every endpoint."""
        now, slow_start = self._clock(), self.routing.slow_start
        return tuple(
            endpoint_statistics(member, now, slow_start) for member in self._members.values()
        )

    def member(self, backend: BackendId) -> Member | None:
        """Return a backend's state, for reading only."""
        return self._members.get(backend)

    def _member(self, endpoint: Endpoint) -> Member | None:
        member = self._members.get(endpoint.backend)
        return member if member is not None and member.endpoint.url == endpoint.url else None

    @property
    def _placements(self) -> dict[str, Placement]:
        if self._catalog is None:
            self._catalog = catalog(tuple(self._members.values()), self._regions)
        return self._catalog

    def _availability(self, model: ServedModel, context: ChoiceContext) -> Availability:
        """Return which endpoints of `model` are available; cached, because it rarely changes."""
        name = model.info.name
        placement = self._placements.get(name)
        if placement is None or not placement.is_of(model):
            return availability(self._tiers(model), context)
        found = self._available.get(name)
        if found is None or found.until <= context.now:
            found = self._available[name] = availability(placement.tiers, context)
        return found

    def _tiers(self, model: ServedModel) -> tuple[tuple[Member, ...], ...]:
        catalog = self._catalog
        placement = (self._placements if catalog is None else catalog).get(model.info.name)
        if placement is None:
            return ()
        if placement.model is model or placement.is_of(model):
            return placement.tiers
        # The catalog has changed since the request began, which keeps the revision that it began
        # with.
        info = model.info
        serving = [
            member
            for member in self._members.values()
            if (served := member.models.get(info.name)) is not None
            and info.revision in (served.revision, *served.earlier)
            and served.profile == info.profile
        ]
        return tiers(serving, self._regions)

    def _last_resort(self, model: ServedModel, *, with_silent: bool = True) -> list[Endpoint]:
        """Return all ready endpoints, ejected or not, then endpoints that may still respond."""
        serving = [member for tier in self._tiers(model) for member in tier if not member.drained]
        found = [member for member in serving if member.health is not Health.NOT_READY]
        if with_silent:
            found += [member for member in serving if member.may_still_answer()]
        return [member.endpoint for member in found]

    def _may_eject(self, now: float) -> bool:
        """Return whether one more ejection would stay within `max_ejected`."""
        out = sum(other.ejection.holds(now) for other in self._members.values())
        return out + 1 <= ceil(self.routing.max_ejected * len(self._members))
