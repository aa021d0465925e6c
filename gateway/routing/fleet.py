"""Keeps the state of all backends, and decides where work goes.

It decides and never calls. One process has one fleet, used from its event loop only.
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

# A request is spread over one backend per so many items.
ITEMS_PER_BACKEND = 16
# The least seconds of `Retry-After`.
_SOONEST = 0.5


class ItemShare(msgspec.Struct, frozen=True, kw_only=True):
    """Items (positions in the request) that go to one endpoint."""

    endpoint: Endpoint
    items: tuple[int, ...]


class Fleet:
    """The configured endpoints, with the results of probes and calls to each."""

    def __init__(self, *, clock: Callable[[], float], random: Random) -> None:
        self._clock = clock
        self._random = random
        self._members: dict[BackendId, Member] = {}
        # Made again when it is next asked for, as backends change many at a time.
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
        """The endpoints in order of use."""
        return tuple(member.endpoint for member in self._members.values())

    @property
    def size(self) -> int:
        """How many endpoints there are."""
        return len(self._members)

    def on_lost(self, callback: Callable[[Endpoint], None]) -> None:
        """Call `callback` with each endpoint that stops being ready, to give up its calls."""
        self._on_lost = callback

    def configure(self, endpoints: Sequence[Endpoint], routing: RoutingConfig) -> None:
        """Use these endpoints from now on, keeping the state of those that stay."""
        members: dict[BackendId, Member] = {}
        for endpoint in endpoints:
            member = self._members.get(endpoint.backend)
            if member is None or member.endpoint.url != endpoint.url:
                member = Member(endpoint)
                if self._members:  # a newcomer among others
                    member.returned = self._clock()
            member.endpoint = endpoint
            members[endpoint.backend] = member
        self._members = members
        self._regions = tuple(dict.fromkeys(endpoint.region for endpoint in endpoints))
        self.routing = routing
        self.drain(self._drained)

    def drain(self, drained: frozenset[str]) -> None:
        """Drain exactly these backends, by id or entry; all others are not drained."""
        self._drained = drained
        now = self._clock()
        for member in self._members.values():
            is_drained = not drained.isdisjoint({member.endpoint.backend, member.endpoint.entry})
            if member.drained and not is_drained:
                member.returned = now
            member.drained = is_drained
        # Which revision is served may depend on it.
        self._catalog = None
        self._available.clear()

    def observe(
        self, endpoint: Endpoint, found: ServingState | ProbeFailure, took: float = 0.0
    ) -> None:
        """Record the result of a probe that took `took` seconds; unknown endpoints are ignored."""
        member = self._member(endpoint)
        if member is None:
            return
        before = (member.health, member.models)
        now = self._clock()
        member.observe(found, now, took)
        if member.health is Health.READY:
            has_recovered = before[0] is Health.NOT_READY and self._has_served
            if has_recovered and self._is_alone(member, now):
                # Callers that waited for one of its models come now, all at once.
                self._recovering = now + self.routing.slow_start
            self._has_served = True
        if before != (member.health, member.models):
            self._forget_available(before[1].keys() | member.models.keys())
            if before[1] != member.models or self._has_variants(member):
                self._catalog = None
            if before[0] is Health.READY and member.health is Health.NOT_READY:
                self._on_lost(endpoint)

    def model(self, name: str) -> ServedModel | None:
        """Return the model as served, or `None` when no backend ever reported it."""
        catalog = self._catalog
        placement = (self._placements if catalog is None else catalog).get(name)
        return None if placement is None else placement.model

    def models(self) -> list[ServedModel]:
        """Return all models, by name."""
        return [placement.model for placement in self._placements.values()]

    def knows_models(self) -> bool:
        """Return whether any backend has ever reported its models."""
        return bool(self._placements)

    def preferred_region(self, model: ServedModel) -> RegionName:
        """Return the region that `model` is served in first; empty where it is nowhere."""
        placement = self._placements.get(model.info.name)
        tiers = () if placement is None else placement.tiers
        return tiers[0][0].endpoint.region if tiers else RegionName("")

    def candidates(
        self, model: ServedModel, affinity: bytes, *, with_silent: bool = True
    ) -> list[Endpoint]:
        """Return the endpoints that may serve `model` at its revision, in the order to try them.

        After the first come the others by region and predicted finish, then ejected ones, and last,
        unless `with_silent` is false, those that are leaving or have only just stopped answering
        probes. Others that are not ready are left out: a probe notices their return.
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
            return found  # more than anything is tried at
        known = {endpoint.backend for endpoint in found}
        last_resort = self._last_resort(model, with_silent=with_silent)
        return found + [endpoint for endpoint in last_resort if endpoint.backend not in known]

    def spread(
        self, model: ServedModel, affinities: Sequence[bytes], *, together: bool = True
    ) -> list[ItemShare]:
        """Return where items go first.

        Those of one request go `together`: to few backends, equal items to one. Others go where
        each would go alone.
        """
        tiers, now = self._tiers(model), self._clock()
        everything = tuple(range(len(affinities)))
        if len(tiers) == 1 and len(tiers[0]) == 1 and tiers[0][0].is_available(now):
            # There is nothing to choose.
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
        """Return where items go that are chosen a backend for one by one."""
        items: dict[Member, list[int]] = {}
        try:
            for position, affinity in enumerate(affinities):
                tier = choose_tier(usable, context, self._random)
                member = choose(tier, affinity, context, self._random)
                # The next one is chosen as if this one had been sent.
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
        """Return the seconds after which to retry; `None` where the work is admitted.

        Sheddable work is refused while every backend is at its limit. All but critical work is
        refused while all backends are at their limit and in their slow start, since callers that
        waited for them come all at once. Of a large region a sample speaks for all.
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
        """Count a call of so many items in flight; `ended` must follow.

        Return how many of the `remaining` seconds the backend has, without the round trip: half of
        them at least, as a slow probe says little of calls.
        """
        member = self._member(endpoint)
        if member is None:
            return remaining
        member.in_flight += items
        member.sent_since += items
        member.calls += 1
        return max(remaining - member.round_trip, remaining / 2)

    def queueing(self, endpoint: Endpoint, *, own: int = 0) -> float:
        """Predict for how long others keep a backend busy; `own` are the asker's items there."""
        member = self._member(endpoint)
        return 0.0 if member is None else member.queueing(self._clock(), own=own)

    def answered(self, endpoint: Endpoint, requests: int, took: float, *, ended: int = 0) -> None:
        """Note answers to so many requests of one item, and that `ended` are in flight no more."""
        member = self._member(endpoint)
        if member is None:
            return
        if requests:
            member.limit = after_answer(member.limit, took, member.in_flight, requests)
        # A member replaced since then has not counted the start.
        member.in_flight = max(0, member.in_flight - ended)

    def ended(self, endpoint: Endpoint, items: int) -> None:
        """Remove so many items of a call from those in flight."""
        member = self._member(endpoint)
        if member is not None:
            # A member replaced since then has not counted the start.
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
        """Judge `endpoint` by a call that ended.

        It answered `items`, which had so many `rows`, in `took` seconds; `None` where `answered`
        was told.
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
        """Find out anew who of the members of these models is available when it is next asked."""
        for name in names:
            self._available.pop(name, None)

    def _is_alone(self, member: Member, now: float) -> bool:
        """Return whether some model of `member` is available nowhere else."""
        return any(
            all(
                other is member or name not in other.models or not other.is_available(now)
                for other in self._members.values()
            )
            for name in member.models
        )

    def _has_variants(self, member: Member) -> bool:
        """Return whether the health of `member` may decide which revision is served."""
        placements = self._placements
        return any(placements[name].has_variants for name in member.models)

    def statistics(self) -> tuple[EndpointStatistics, ...]:
        """Return the statistics of every endpoint."""
        now, slow_start = self._clock(), self.routing.slow_start
        return tuple(
            endpoint_statistics(member, now, slow_start) for member in self._members.values()
        )

    def member(self, backend: BackendId) -> Member | None:
        """Return a backend's state, for others to read."""
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
        """Return who of the members of `model` is available; that is kept, as it changes rarely."""
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
        # The catalog moved on since the request began: it keeps the revision it began with.
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
        """Return all that are ready, ejected or not, then those that may still answer."""
        serving = [member for tier in self._tiers(model) for member in tier if not member.drained]
        found = [member for member in serving if member.health is not Health.NOT_READY]
        if with_silent:
            found += [member for member in serving if member.may_still_answer()]
        return [member.endpoint for member in found]

    def _may_eject(self, now: float) -> bool:
        """Return whether one more ejection stays within `max_ejected`."""
        out = sum(other.ejection.holds(now) for other in self._members.values())
        return out + 1 <= ceil(self.routing.max_ejected * len(self._members))
