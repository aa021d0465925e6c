"""Holds the state of all backends, and decides which backend gets an item.

This module sends no requests. A process has one fleet, and only the process's event loop uses it.
"""

from collections.abc import Callable, Iterable, Sequence
from math import ceil
from random import Random

import msgspec

from sluicegate.gateway.config.document import RoutingConfig
from sluicegate.gateway.routing.catalog import Placement, catalog, tiers
from sluicegate.gateway.routing.choice import WIDE, ChoiceContext, choose, sample, score
from sluicegate.gateway.routing.endpoint_state import (
    CallVerdict,
    EndpointState,
    Health,
    ProbeFailure,
)
from sluicegate.gateway.routing.limit import after_answer
from sluicegate.gateway.routing.regions import (
    Availability,
    Tier,
    availability,
    choose_tier,
    keeps_all,
)
from sluicegate.gateway.routing.statistics import EndpointStatistics, endpoint_statistics
from sluicegate.gateway.types import BackendId, Criticality, Endpoint, RegionName, ServedModel
from sluicegate.wire.protocol import ModelInfo, Report, ServingState

# The number of backends among which a request's items are divided is the number of items divided by
# `ITEMS_PER_BACKEND`, rounded up.
ITEMS_PER_BACKEND = 16
# The shortest `Retry-After` in seconds.
_SOONEST = 0.5


class ItemShare(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the items that go to one endpoint. Each is an index in the request's list of items."""

    endpoint: Endpoint
    items: tuple[int, ...]


class Fleet:
    """Holds the configured endpoints, and what probes and calls have shown about their health."""

    def __init__(self, *, clock: Callable[[], float], random: Random) -> None:
        self._clock = clock
        self._random = random
        self._states: dict[BackendId, EndpointState] = {}
        # After a change, the catalog is rebuilt only when it is next needed, because many backends
        # often change at once.
        self._catalog: dict[str, Placement] | None = None
        self._models_version = 0
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
        return tuple(state.config for state in self._states.values())

    @property
    def size(self) -> int:
        """The number of endpoints."""
        return len(self._states)

    def on_lost(self, callback: Callable[[Endpoint], None]) -> None:
        """Set a callback that aborts the calls to an endpoint that stops being ready."""
        self._on_lost = callback

    def configure(self, endpoints: Sequence[Endpoint], routing: RoutingConfig) -> None:
        """Use these endpoints from now on. Endpoints that are known already keep their state."""
        states: dict[BackendId, EndpointState] = {}
        for endpoint in endpoints:
            state = self._states.get(endpoint.backend)
            if state is None or state.config.url != endpoint.url:
                state = EndpointState(endpoint)
                if self._states:  # a new endpoint is added to others
                    state.returned = self._clock()
            state.config = endpoint
            states[endpoint.backend] = state
        self._states = states
        self._regions = tuple(dict.fromkeys(endpoint.region for endpoint in endpoints))
        self.routing = routing
        self.drain(self._drained)

    def drain(self, drained: frozenset[str]) -> None:
        """Drain exactly the backends in `drained`, so that they get no new items.

        `drained` contains ids of single backends, and ids of DNS entries in the configuration. The
        id of a DNS entry drains all backends of the entry.
        """
        self._drained = drained
        now = self._clock()
        for state in self._states.values():
            is_drained = not drained.isdisjoint({state.config.backend, state.config.entry})
            if state.drained and not is_drained:
                state.returned = now
            state.drained = is_drained
        # Draining may change which revision of a model is used.
        self._forget_catalog()
        self._available.clear()

    def observe(
        self, endpoint: Endpoint, found: ServingState | ProbeFailure, took: float = 0.0
    ) -> None:
        """Record the result of a probe that took `took` seconds. Unknown endpoints are ignored."""
        state = self._state_of(endpoint)
        if state is None:
            return
        before = (state.health, state.models)
        now = self._clock()
        state.observe(found, now, took)
        if state.health is Health.READY:
            has_recovered = before[0] is Health.NOT_READY and self._has_served
            if has_recovered and self._is_alone(state, now):
                # The endpoint now gets the requests of all callers that waited for its models.
                self._recovering = now + self.routing.slow_start
            self._has_served = True
        if before != (state.health, state.models):
            self._forget_available(before[1].keys() | state.models.keys())
            if before[1] != state.models or self._has_variants(state):
                self._forget_catalog()
            if before[0] is Health.READY and state.health is Health.NOT_READY:
                self._on_lost(endpoint)

    def _forget_catalog(self) -> None:
        self._catalog = None
        self._models_version += 1

    def model(self, name: str) -> ServedModel | None:
        """Return a served model, or `None` if no backend has ever reported it."""
        catalog = self._catalog
        placement = (self._placements if catalog is None else catalog).get(name)
        return None if placement is None else placement.model

    def models(self) -> list[ServedModel]:
        """Return all models, sorted by name."""
        return [placement.model for placement in self._placements.values()]

    def models_version(self) -> int:
        """Return a number that changes whenever the served models may have changed."""
        return self._models_version

    def knows_models(self) -> bool:
        """Return whether any backend has named a model, or all backends are ready without models.

        While a backend loads its models or has not been reached, another one may have none.
        """
        return bool(self._placements) or (bool(self._states) and self._are_all_ready())

    def is_gone(self, model: ServedModel) -> bool:
        """Return whether all backends are ready, and none serves the model or fails to load it.

        A backend that was not reached, or that loads its models, may serve the model soon.
        """
        name, states = model.info.name, self._states.values()
        return (
            self.model(name) is None
            and bool(states)
            and self._are_all_ready()
            and not any(name in state.problems for state in states)
        )

    def _are_all_ready(self) -> bool:
        return all(state.health is Health.READY for state in self._states.values())

    def preferred_region(self, model: ServedModel) -> RegionName:
        """Return the first region that serves `model`, or an empty name if no region does."""
        placement = self._placements.get(model.info.name)
        tiers = () if placement is None else placement.tiers
        return tiers[0][0].config.region if tiers else RegionName("")

    def candidates(
        self, model: ServedModel, affinity: bytes, *, with_silent: bool = True
    ) -> list[Endpoint]:
        """Return the endpoints that can serve `model` at its revision, in the order to try them.

        The chosen endpoint comes first. The other available endpoints follow, by region and
        predicted finish time. Then come ejected endpoints. If `with_silent` is true, endpoints that
        are shutting down or have just stopped responding to probes come last. All other endpoints
        that are not ready are left out.
        """
        context = ChoiceContext(self._clock(), self.routing)
        tiers = self._availability(model, context).tiers
        if not tiers:
            return self._last_resort(model, with_silent=with_silent)
        tier = choose_tier(tiers, context, self._random)
        first = choose(tier, affinity, context, self._random)
        found = [first.config]
        for each in [tier, *(other for other in tiers if other is not tier)]:
            near = sample(each, self._random)
            others = sorted([m for m in near if m is not first], key=context.cost)
            found += [state.config for state in others]
        if len(found) > WIDE:
            return found  # these are more endpoints than a call ever tries
        known = {endpoint.backend for endpoint in found}
        last_resort = self._last_resort(model, with_silent=with_silent)
        return found + [endpoint for endpoint in last_resort if endpoint.backend not in known]

    def spread(
        self, model: ServedModel, affinities: Sequence[bytes], *, together: bool = True
    ) -> list[ItemShare]:
        """Return the endpoints that get a request's items first, each with its items.

        If `together` is true, the items go to as few backends as possible, and equal items go to
        the same backend. Otherwise, an endpoint is chosen for each item separately.
        """
        tiers, now = self._tiers(model), self._clock()
        everything = tuple(range(len(affinities)))
        if len(tiers) == 1 and len(tiers[0]) == 1 and tiers[0][0].is_available(now):
            # With one endpoint, nothing has to be chosen.
            return [ItemShare(endpoint=tiers[0][0].config, items=everything)]
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
            return [ItemShare(endpoint=first.config, items=everything)]
        near = sample(tier, self._random)
        others = sorted([m for m in near if m is not first], key=context.cost)
        chosen = [first, *others[: width - 1]]
        items: dict[BackendId, list[int]] = {state.config.backend: [] for state in chosen}
        for position, affinity in enumerate(affinities):
            best = max(chosen, key=lambda state: score(state, affinity, context))
            items[best.config.backend].append(position)
        return [
            ItemShare(endpoint=state.config, items=tuple(items[state.config.backend]))
            for state in chosen
            if items[state.config.backend]
        ]

    def _spread_each(
        self, usable: Sequence[Tier], affinities: Sequence[bytes], context: ChoiceContext
    ) -> list[ItemShare]:
        """Return the endpoint of each item. Each item is routed as if it were the only item."""
        items: dict[EndpointState, list[int]] = {}
        try:
            for position, affinity in enumerate(affinities):
                tier = choose_tier(usable, context, self._random)
                state = choose(tier, affinity, context, self._random)
                # The choice for the next item must include this item in the endpoint's load.
                state.in_flight += 1
                state.sent_since += 1
                items.setdefault(state, []).append(position)
        finally:
            for state, own in items.items():
                state.in_flight -= len(own)
                state.sent_since -= len(own)
        return [ItemShare(endpoint=state.config, items=tuple(own)) for state, own in items.items()]

    def shed(self, model: ServedModel, criticality: Criticality) -> float | None:
        """Return `None` to admit a request, or the seconds until a retry to refuse it.

        A backend is full when its items in flight have reached its limit. While every backend is
        full, sheddable requests are refused. While every backend is also in slow start, only
        critical requests are admitted, because after an outage all waiting callers send their
        requests at the same time. In a large region, a sample of the backends represents all
        backends.
        """
        now, slow_start = self._clock(), self.routing.slow_start
        is_sheddable = criticality is Criticality.SHEDDABLE
        if criticality is Criticality.CRITICAL or (now >= self._recovering and not is_sheddable):
            return None
        available = self._availability(model, ChoiceContext(now, self.routing))
        states: list[EndpointState] = []
        for state in (m for tier in available.tiers for m in sample(tier, self._random)):
            if not state.is_available(now):
                continue
            states.append(state)
            if not state.is_full() or not (is_sheddable or state.is_returning(now, slow_start)):
                return None
        if not states:
            return None
        soonest = min(state.finish_time(now, slow_start) for state in states)
        return max(_SOONEST, soonest) * self._random.uniform(1.0, 2.0)

    def started(self, endpoint: Endpoint, items: int) -> None:
        """Record that `items` items go to `endpoint`. Call `ended` when the items have ended."""
        state = self._state_of(endpoint)
        if state is not None:
            state.in_flight += items
            state.sent_since += items

    def called(self, endpoint: Endpoint) -> float:
        """Record a call to `endpoint`. Return the seconds of the way there and back.

        Health probes measure them.
        """
        state = self._state_of(endpoint)
        if state is None:
            return 0.0
        state.calls += 1
        return state.round_trip

    def queueing(self, endpoint: Endpoint, *, own: int = 0) -> float:
        """Return the predicted seconds until a backend has finished its present items.

        `own` of these items belong to the caller and are not counted.
        """
        state = self._state_of(endpoint)
        return 0.0 if state is None else state.queueing(self._clock(), own=own)

    def answered(self, endpoint: Endpoint, requests: int, took: float, *, ended: int = 0) -> None:
        """Record that `requests` requests with one item each succeeded in `took` seconds.

        Also remove `ended` items from the endpoint's items in flight.
        """
        state = self._state_of(endpoint)
        if state is None:
            return
        if requests:
            state.limit = after_answer(state.limit, took, state.in_flight, requests)
        # If the endpoint was replaced since the items began, its new state never included these
        # items.
        state.in_flight = max(0, state.in_flight - ended)

    def ended(self, endpoint: Endpoint, items: int) -> None:
        """Remove `items` items of a call from the endpoint's items in flight."""
        state = self._state_of(endpoint)
        if state is not None:
            # If the endpoint was replaced since the call began, its new state never included these
            # items.
            state.in_flight = max(0, state.in_flight - items)

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

        The call returned `items` results with `rows` rows in `took` seconds. If `answered` has
        already recorded the latency, `took` is `None`.
        """
        state = self._state_of(endpoint)
        if state is None:
            return
        now = self._clock()
        if report is not None:
            state.record_report(report, now)
        if items:
            state.record_rows(rows, items)
            if items <= ITEMS_PER_BACKEND and took is not None:
                state.record_latency(took)
        if verdict is CallVerdict.OK:
            state.record_success(now, self.routing)
        elif verdict is CallVerdict.FAILED:
            was_until = state.ejection.until
            state.record_failure(now, self.routing, may_eject=lambda: self._may_eject(now))
            if state.ejection.until != was_until:
                self._forget_available(state.models)

    def _forget_available(self, names: Iterable[str]) -> None:
        """Discard the cached availability of endpoints for these models."""
        for name in names:
            self._available.pop(name, None)

    def _is_alone(self, state: EndpointState, now: float) -> bool:
        """Return whether this endpoint is the only available endpoint of one of its models."""
        return any(
            all(
                other is state or name not in other.models or not other.is_available(now)
                for other in self._states.values()
            )
            for name in state.models
        )

    def _has_variants(self, state: EndpointState) -> bool:
        """Return whether backends serve several variants of one of the endpoint's models.

        The health of these backends then decides which variant is used.
        """
        placements = self._placements
        return any(placements[name].has_variants for name in state.models)

    def statistics(self) -> tuple[EndpointStatistics, ...]:
        """Return the statistics of every endpoint."""
        now, slow_start = self._clock(), self.routing.slow_start
        return tuple(endpoint_statistics(state, now, slow_start) for state in self._states.values())

    def state(self, backend: BackendId) -> EndpointState | None:
        """Return a backend's state, for reading only."""
        return self._states.get(backend)

    def _state_of(self, endpoint: Endpoint) -> EndpointState | None:
        state = self._states.get(endpoint.backend)
        return state if state is not None and state.config.url == endpoint.url else None

    @property
    def _placements(self) -> dict[str, Placement]:
        if self._catalog is None:
            self._catalog = catalog(tuple(self._states.values()), self._regions)
        return self._catalog

    def _availability(self, model: ServedModel, context: ChoiceContext) -> Availability:
        """Return which endpoints of `model` are available.

        The result is cached, because it rarely changes.
        """
        name = model.info.name
        placement = self._placements.get(name)
        if placement is None or not placement.is_of(model):
            return availability(self._tiers(model), context)
        found = self._available.get(name)
        if found is None or found.until <= context.now:
            found = self._available[name] = availability(placement.tiers, context)
        return found

    def _tiers(self, model: ServedModel) -> tuple[tuple[EndpointState, ...], ...]:
        catalog = self._catalog
        placement = (self._placements if catalog is None else catalog).get(model.info.name)
        if placement is None:
            return ()
        if placement.model is model or placement.is_of(model):
            return placement.tiers
        # The catalog has changed since the request began. The request keeps the revision with which
        # it began.
        info = model.info
        serving = [
            state
            for state in self._states.values()
            if (served := state.models.get(info.name)) is not None and _answers(served, info)
        ]
        return tiers(serving, self._regions)

    def _last_resort(self, model: ServedModel, *, with_silent: bool = True) -> list[Endpoint]:
        """Return all ready endpoints, even ejected ones.

        If `with_silent` is true, endpoints that possibly still respond follow.
        """
        serving = [state for tier in self._tiers(model) for state in tier if not state.drained]
        found = [state for state in serving if state.health is Health.READY]
        if with_silent:
            found += [state for state in serving if state.may_still_answer()]
        return [state.config for state in found]

    def _may_eject(self, now: float) -> bool:
        """Return whether one more ejection would stay within `max_ejected`."""
        out = sum(other.ejection.holds(now) for other in self._states.values())
        return out + 1 <= ceil(self.routing.max_ejected * len(self._states))


def _answers(served: ModelInfo, asked: ModelInfo) -> bool:
    """Return whether an endpoint that serves `served` gives the same answers as `asked`."""
    return asked.variant in (served.variant, *served.replaced)
