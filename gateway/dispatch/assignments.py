"""Has backends serve the models that the document assigns to their pools.

A model that moves from one pool to another leaves no gap: its former backends keep it until every
ready backend that it is assigned to serves it, and all gateways had time to learn that. They keep
it, too, while its new pool has no backend, as a name that leads to no address.
"""

import logging
import math
from collections.abc import Callable, Iterable

from sluicegate.gateway.dispatch.prober import effective_interval
from sluicegate.gateway.routing.endpoint_state import Health
from sluicegate.gateway.routing.fleet import Fleet
from sluicegate.gateway.types import BackendId, Endpoint
from sluicegate.gateway.upstream.base import BackendClient, CallFailed
from sluicegate.wire.plans import Assignment, is_assigned
from sluicegate.wire.protocol import ServingState

_log = logging.getLogger(__name__)
_TIME_LIMIT = 5.0
# Seconds after which a backend that did not take an assignment is given it again, and for which
# others may know a newer document than this process.
_RETRY = 30.0
# Seconds for which a model is served at its new place before it leaves the former one: other
# workers and gateways probe every backend several times meanwhile.
SETTLING = 5.0
_SETTLING_PROBES = 3
# Seconds for which it is known whether a model would be missed: in a large fleet, many backends
# that lose it are probed meanwhile.
_KNOWN = 1.0


class ModelAssigner:
    """Compares what backends are to serve with what they report, at each probe."""

    def __init__(self, *, fleet: Fleet, client: BackendClient, clock: Callable[[], float]) -> None:
        self._fleet = fleet
        self._clock = clock
        self._client = client
        self.settling = SETTLING
        """The fewest seconds of settling."""
        self._version = 1
        self._patterns: dict[BackendId, tuple[str, ...]] = {}
        # Backends by the patterns that they share.
        self._alike: dict[tuple[str, ...], list[BackendId]] = {}
        # Patterns of names that lead to no backend now.
        self._unresolved: frozenset[tuple[str, ...]] = frozenset()
        # When each backend was first seen to serve each of its models.
        self._since: dict[BackendId, dict[str, float]] = {}
        # The version that a backend did not take, and when it is given it again.
        self._refused: dict[BackendId, tuple[int, float]] = {}
        # A newer version than this document's that a backend follows, and when that is reported.
        self._newer: dict[BackendId, tuple[int, float]] = {}
        # Whether each model would be missed, and until when that is known.
        self._missed: dict[str, tuple[bool, float]] = {}

    def configure(
        self,
        endpoints: Iterable[Endpoint],
        published: float,
        *,
        unresolved: Iterable[Endpoint] = (),
    ) -> None:
        """Assign as a document says that was `published` then, in seconds since the epoch.

        The `unresolved` are names that lead to no backend now: what they are assigned is wanted.
        """
        self._version = max(1, int(published * 1000))
        self._patterns = {endpoint.backend: endpoint.models for endpoint in endpoints}
        self._unresolved = frozenset(endpoint.models for endpoint in unresolved)
        self._alike = {}
        for backend, patterns in self._patterns.items():
            self._alike.setdefault(patterns, []).append(backend)
        self._missed.clear()
        for kept in (self._since, self._refused, self._newer):
            for backend in kept.keys() - self._patterns.keys():
                del kept[backend]

    async def bring_up(self, endpoint: Endpoint, state: ServingState) -> ServingState:
        """Return the state of a backend that follows its assignment; its own where it does not."""
        if self._patterns.get(endpoint.backend) != endpoint.models:
            return state  # It is of a document that is not in force yet.
        now, version = self._clock(), self._version
        before = self._since.get(endpoint.backend, {})
        names = [info.name for info in state.models]
        self._since[endpoint.backend] = {name: before.get(name, now) for name in names}
        self._watch_version(endpoint, state, now)
        if (refused := self._refused.get(endpoint.backend)) is not None:
            if refused[0] == version and now < refused[1]:
                return state
            del self._refused[endpoint.backend]
        wanted = self.assignment(endpoint, state, now)
        if wanted is None:
            return state
        extra = {"backend": endpoint.backend, "region": endpoint.region}
        try:
            found = await self._client.assign(endpoint, wanted, time_limit=_TIME_LIMIT)
        except CallFailed as error:
            self._refused[endpoint.backend] = (version, now + _RETRY)
            reason = {"reason": error.detail}
            _log.warning("a backend did not take its models", extra=extra | reason)
            return state
        _log.info("a backend was assigned models", extra=extra | {"models": wanted.models})
        return found

    def assignment(self, endpoint: Endpoint, state: ServingState, now: float) -> Assignment | None:
        """Return what a backend is to follow in place of what it does; `None`: nothing else."""
        follows = state.assignment
        if not endpoint.models and not follows.models:
            return None
        if follows.version > self._version or (
            follows.version == self._version and not follows.until
        ):
            return None
        leaving = [
            info.name.partition("@")[0]
            for info in state.models
            if endpoint.models and not is_assigned(info.name, endpoint.models)
        ]
        until = sorted(name for name in set(leaving) if self._is_missed(name, now))
        wanted = Assignment(version=self._version, models=endpoint.models, until=tuple(until))
        return wanted if wanted.replaces(follows) else None

    def _watch_version(self, endpoint: Endpoint, state: ServingState, now: float) -> None:
        """Warn where a backend stays with a newer document than this gateway's."""
        version = state.assignment.version
        if version <= self._version:
            self._newer.pop(endpoint.backend, None)
            return
        known, report_at = self._newer.setdefault(endpoint.backend, (version, now + _RETRY))
        if known != version:
            self._newer[endpoint.backend] = (version, now + _RETRY)
        elif now >= report_at:
            self._newer[endpoint.backend] = (version, math.inf)
            _log.warning(
                "a backend follows the models of a newer document",
                extra={
                    "backend": endpoint.backend,
                    "region": endpoint.region,
                    "ahead_seconds": (version - self._version) / 1000,
                },
            )

    def _is_missed(self, name: str, now: float) -> bool:
        """Return whether a model would be missed at its former backends."""
        found, known_until = self._missed.get(name, (False, now))
        if now >= known_until:
            found = self._would_be_missed(name, now)
            self._missed[name] = (found, now + _KNOWN)
        return found

    def _would_be_missed(self, name: str, now: float) -> bool:
        """Return whether no other backend serves a model, or not all that are to are in use yet.

        Backends that are assigned nothing serve what they like: of one that never answered, and of
        a name that leads to none, it is not known what.
        """
        settled = now - self._settling_time()
        is_wanted = any(not each or is_assigned(name, each) for each in self._unresolved)
        is_served = False
        for patterns, backends in self._alike.items():
            if patterns and not is_assigned(name, patterns):
                continue
            for backend in backends:
                state = self._fleet.state(backend)
                if state is None or state.serving_state is None:
                    is_wanted = True
                    continue
                serves = name in state.models
                if not serves and not patterns:
                    continue
                is_wanted = True
                has_problem = name in state.serving_state.problems
                if state.health is not Health.READY or state.drained or has_problem:
                    continue
                since = self._since.get(backend, {}).get(name)
                if not serves or since is None or since > settled:
                    return True
                is_served = True
        return is_wanted and not is_served

    def _settling_time(self) -> float:
        """Return the seconds in which every process probes each backend several times."""
        return max(self.settling, _SETTLING_PROBES * effective_interval(self._fleet))
