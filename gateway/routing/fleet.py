"""The backends there are and what is known of them; says where work should go.

Decides and never calls. One process has one fleet, used from its event loop only.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from math import ceil
from random import Random

import msgspec

from backends.protocol import BackendState, Report
from gateway.config.document import RoutingEntry
from gateway.routing.catalog import Placement, catalog, tiers
from gateway.routing.choice import order, score
from gateway.routing.ejection import CLEAN, after_failure, after_success
from gateway.routing.member import Health, Member
from gateway.types import BackendId, Endpoint, RegionName, ServedModel

# A request is spread over one backend per so many items.
ITEMS_PER_BACKEND = 16


class Verdict(StrEnum):
    """What a call says of its backend."""

    OK = "ok"
    FAILED = "failed"
    UNDECIDED = "undecided"
    """The backend refused, or was given too little time: not its fault."""


class ProbeFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A backend that could not be asked for its state."""

    detail: str


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """Items (positions in what was asked) that go to one endpoint."""

    endpoint: Endpoint
    items: tuple[int, ...]


class EndpointStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one endpoint; `in_flight` counts items."""

    backend: BackendId
    region: RegionName
    overflow: bool
    health: Health
    missing: tuple[str, ...]
    provider: str
    in_flight: int
    ejected_for: float
    """Seconds until the end of its ejection; 0 when it is in use."""
    calls: int
    failures: int
    report: Report


class Fleet:
    """Endpoints by configuration, and what probes and calls have told of each."""

    def __init__(self, *, clock: Callable[[], float], random: Random) -> None:
        self._clock = clock
        self._random = random
        self._members: dict[BackendId, Member] = {}
        self._placements: dict[str, Placement] = {}
        self._regions: tuple[RegionName, ...] = ()
        self.routing = RoutingEntry()

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The endpoints in order of use."""
        return tuple(member.endpoint for member in self._members.values())

    def configure(self, endpoints: Sequence[Endpoint], routing: RoutingEntry) -> None:
        """Use these endpoints from now on, keeping what is known of those that stay."""
        members: dict[BackendId, Member] = {}
        for endpoint in endpoints:
            member = self._members.get(endpoint.backend)
            if member is None or member.endpoint.url != endpoint.url:
                member = Member(endpoint)
            member.endpoint = endpoint
            members[endpoint.backend] = member
        self._members = members
        self._regions = tuple(dict.fromkeys(endpoint.region for endpoint in endpoints))
        self.routing = routing
        self._placements = catalog(tuple(members.values()), self._regions)

    def observe(self, endpoint: Endpoint, found: BackendState | ProbeFailure) -> None:
        """Note what a probe found. An endpoint that is no longer configured is ignored."""
        member = self._member(endpoint)
        if member is None:
            return
        before = (member.health, member.models)
        if isinstance(found, BackendState):
            member.state, member.report = found, found.report
            member.health = Health.READY if found.ready else Health.NOT_READY
            member.models = {info.name: info for info in found.models}
            if before[0] is Health.NOT_READY and found.ready:
                # It came back: what its predecessor did is not held against it.
                member.ejection = CLEAN
        else:
            # Its models stay known: they are unavailable, not unheard of.
            member.health = Health.NOT_READY
        if before != (member.health, member.models):
            self._placements = catalog(tuple(self._members.values()), self._regions)

    def model(self, name: str) -> ServedModel | None:
        """Return the model as served, or `None` when no backend ever named it."""
        placement = self._placements.get(name)
        return None if placement is None else placement.model

    def models(self) -> list[ServedModel]:
        """Return all models, by name."""
        return [placement.model for placement in self._placements.values()]

    def knows_models(self) -> bool:
        """Tell whether any backend has ever said what it serves."""
        return bool(self._placements)

    def is_ready(self) -> bool:
        """Tell whether some backend is available."""
        now = self._clock()
        return any(member.is_available(now) for member in self._members.values())

    def candidates(self, model: ServedModel, affinity: bytes) -> list[Endpoint]:
        """Return the endpoints that serve `model` at its revision, in the order to try them.

        Available ones by region and load; then, as a last resort (nothing may be known better),
        ejected ones and those that are not ready.
        """
        now = self._clock()
        rest: list[Member] = []
        found: list[Endpoint] = []
        for tier in self._tiers(model):
            available = [member for member in tier if member.is_available(now)]
            if available:
                ordered = order(available, affinity, self._random)
                found += [member.endpoint for member in ordered]
            rest += [member for member in tier if not member.is_available(now)]
        rest.sort(key=lambda member: member.health is not Health.READY)
        return found + [member.endpoint for member in rest]

    def spread(self, model: ServedModel, affinities: Sequence[bytes]) -> list[Share]:
        """Return where the items of one request go first: few backends, equal items together."""
        first = self._first_tier(model)
        width = min(ceil(len(affinities) / ITEMS_PER_BACKEND), len(first))
        everything = tuple(range(len(affinities)))
        if not first:
            last_resort = self.candidates(model, affinities[0])[:1]
            return [Share(endpoint=endpoint, items=everything) for endpoint in last_resort]
        chosen = order(first, affinities[0], self._random)[:width]
        if width == 1:
            return [Share(endpoint=chosen[0].endpoint, items=everything)]
        items: dict[BackendId, list[int]] = {member.endpoint.backend: [] for member in chosen}
        for position, affinity in enumerate(affinities):
            best = max(chosen, key=lambda member: score(member, affinity))
            items[best.endpoint.backend].append(position)
        return [
            Share(endpoint=member.endpoint, items=tuple(items[member.endpoint.backend]))
            for member in chosen
            if items[member.endpoint.backend]
        ]

    def started(self, endpoint: Endpoint, items: int) -> None:
        """Note that a call of so many items is in flight; `ended` must follow."""
        member = self._member(endpoint)
        if member is not None:
            member.in_flight += items
            member.calls += 1

    def ended(self, endpoint: Endpoint, items: int) -> None:
        """Note that a call of so many items is no longer in flight."""
        member = self._member(endpoint)
        if member is not None:
            # A member made anew since then has not counted the start.
            member.in_flight = max(0, member.in_flight - items)

    def record(self, endpoint: Endpoint, verdict: Verdict, report: Report | None = None) -> None:
        """Judge `endpoint` by a call that ended."""
        member = self._member(endpoint)
        if member is None:
            return
        if report is not None:
            member.report = report
        routing = self.routing
        if verdict is Verdict.FAILED:
            member.failures += 1
            member.ejection = after_failure(
                member.ejection,
                self._clock(),
                eject_after=routing.eject_after,
                eject_for=routing.eject_for,
            )
        elif verdict is Verdict.OK:
            member.ejection = after_success(
                member.ejection, self._clock(), eject_for=routing.eject_for
            )

    def statistics(self) -> tuple[EndpointStatistics, ...]:
        """Return what is known of every endpoint."""
        now = self._clock()
        return tuple(_statistics(member, now) for member in self._members.values())

    def _member(self, endpoint: Endpoint) -> Member | None:
        member = self._members.get(endpoint.backend)
        return member if member is not None and member.endpoint.url == endpoint.url else None

    def _tiers(self, model: ServedModel) -> tuple[tuple[Member, ...], ...]:
        placement = self._placements.get(model.info.name)
        if placement is None:
            return ()
        if placement.model is model:
            return placement.tiers
        # The catalog moved on since the request began: it keeps the revision it began with.
        info = model.info
        serving = [
            member
            for member in self._members.values()
            if (known := member.models.get(info.name)) is not None
            and info.revision in (known.revision, *known.earlier)
            and known.profile == info.profile
        ]
        return tiers(serving, self._regions)

    def _first_tier(self, model: ServedModel) -> list[Member]:
        now = self._clock()
        for tier in self._tiers(model):
            available = [member for member in tier if member.is_available(now)]
            if available:
                return available
        return []


def _statistics(member: Member, now: float) -> EndpointStatistics:
    state = member.state
    return EndpointStatistics(
        backend=member.endpoint.backend,
        region=member.endpoint.region,
        overflow=member.endpoint.overflow,
        health=member.health,
        missing=tuple(state.missing) if state else (),
        provider=state.provider if state else "",
        in_flight=member.in_flight,
        ejected_for=max(0.0, member.ejection.until - now),
        calls=member.calls,
        failures=member.failures,
        report=member.report,
    )
