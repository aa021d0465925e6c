"""Builds a gateway worker and serves requests with it."""

import asyncio
import gc
import secrets
import socket
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial

from prometheus_client import REGISTRY, CollectorRegistry

from sluicegate.gateway.api.core import Core
from sluicegate.gateway.api.request_events import RequestLines
from sluicegate.gateway.api.request_state import RequestIds
from sluicegate.gateway.app.backends import BackendAccess
from sluicegate.gateway.app.clock_watch import ClockWatch
from sluicegate.gateway.app.decision_publisher import DecisionPublisher
from sluicegate.gateway.app.endpoint_metrics import EndpointMetrics
from sluicegate.gateway.app.entry_points import (
    EntryPointDependencies,
    Listeners,
    build_core,
    build_listeners,
)
from sluicegate.gateway.app.inference_path import InferencePath
from sluicegate.gateway.app.principals import PrincipalsFollower
from sluicegate.gateway.app.rpc import dialects_of, open_rpc_listener
from sluicegate.gateway.app.stats_reporter import StatsReporter, WorkerStatistics
from sluicegate.gateway.app.stores import Stores, open_stores
from sluicegate.gateway.app.views import WorkerReadiness
from sluicegate.gateway.auth.key_ring import KeyRing
from sluicegate.gateway.events.log import EventLog
from sluicegate.gateway.events.syncing import LogSync
from sluicegate.gateway.http.draining import Draining
from sluicegate.gateway.http.edge import ListenerEdge, customers_edge
from sluicegate.gateway.http.server import open_listener, serve
from sluicegate.gateway.http.unsent_answers import UnsentAnswers, unsent_limit
from sluicegate.gateway.idempotency.store import IdempotencyStore
from sluicegate.gateway.rate_limit.redis_limiter import RedisRateLimiter
from sluicegate.gateway.redis.connect import PipelinedClient, open_client
from sluicegate.gateway.redis.health import RedisHealthMonitor
from sluicegate.gateway.regional_limits.follower import LimitsOfRegion, limits_of_region
from sluicegate.gateway.runtime.control import Control
from sluicegate.gateway.runtime.control_values import Topic
from sluicegate.gateway.runtime.follower import RuntimeFollower, identity
from sluicegate.gateway.runtime.models import ModelsFollower
from sluicegate.gateway.runtime.runtime import Runtime
from sluicegate.gateway.settings import Settings, process_environment
from sluicegate.gateway.telemetry.edge_metrics import EdgeMetrics
from sluicegate.gateway.telemetry.metrics import GatewayMetrics
from sluicegate.gateway.telemetry.opening import tracer_from
from sluicegate.gateway.upstream.http import HttpBackendClient
from sluicegate.gateway.upstream.resolving import Resolver, SystemResolver
from sluicegate.gateway.upstream.tls import client_tls
from sluicegate.wire.http.timeouts import ConnectionTimeouts

_PROBE_TIMEOUT = 0.5
_LONGEST_IN_LOG_NAME = 8


async def serve_worker(
    settings: Settings, *, stop: asyncio.Event, registry: CollectorRegistry = REGISTRY
) -> None:
    """Serve requests until `stop` is set. Then finish the requests in flight, and close everything.

    Raises:
        ConfigurationError: the configuration is invalid, or an address cannot be bound.
    """
    listener = open_listener(
        settings.host, settings.port, settings.listen_fd, setting="SLUICEGATE_PORT"
    )
    siblings = [socket.socket(fileno=int(number)) for number in settings.sibling_fds.split()]
    draining = Draining(delay=settings.shutdown_delay, is_supervised=settings.listen_fd is not None)
    draining.announce_on_sigusr1()
    edge = customers_edge(settings, EdgeMetrics(registry))
    async with AsyncExitStack() as stack:
        worker = await open_worker(stack, settings, registry=registry)
        listeners = await worker.listen(stack, draining)
        await stack.enter_async_context(
            worker.rpc_listener(listeners, draining, stop, edge.of_calls())
        )
        tune_gc()
        await serve(
            listeners.app,
            listener,
            drain=settings.drain,
            stop=stop,
            side=listeners.side,
            timeouts=ConnectionTimeouts(
                head=settings.head_timeout,
                idle=settings.keep_alive,
                connections=settings.max_connections,
            ),
            draining=draining,
            siblings=siblings,
            edge=edge,
            unsent=worker.unsent,
        )


def tune_gc() -> None:
    """Exempt all existing objects from garbage collection, and make garbage collections rarer."""
    gc.collect()
    gc.freeze()
    # Requests leave few reference cycles. The default threshold, 700 objects, would cause a
    # collection every few requests.
    gc.set_threshold(20_000, 20, 20)


async def open_worker(
    stack: AsyncExitStack,
    settings: Settings,
    *,
    registry: CollectorRegistry = REGISTRY,
    resolver: Resolver | None = None,
    is_bulk: bool = False,
) -> "Worker":
    """Return a worker that is not started yet. `stack` closes its stores.

    By default, the operating system resolves DNS names. A worker for batch jobs (`is_bulk`) sends
    its items to backends in the traffic class `bulk`.
    """
    stores = await open_stores(stack, settings)
    return Worker(
        settings,
        stores,
        GatewayMetrics(registry),
        resolver or SystemResolver(),
        is_bulk=is_bulk,
    )


class Worker:
    """Builds the objects of a worker, and enters their contexts."""

    def __init__(
        self,
        settings: Settings,
        stores: Stores,
        metrics: GatewayMetrics,
        resolver: Resolver,
        *,
        is_bulk: bool,
    ) -> None:
        self._settings = settings
        self._stores = stores
        self._control = Control(stores.state)
        self.runtimes = stores.runtimes
        self._metrics = metrics
        metrics.exemplars.folder = settings.metrics_dir
        self.decisions = metrics.decisions
        self._clock = asyncio.get_running_loop().time
        self.unsent = UnsentAnswers(unsent_limit(settings.memory_limit_bytes), clock=self._clock)
        self._tracer = tracer_from(
            process_environment(), service="sluicegate-gateway", instance=identity(settings)
        )
        self.keys = KeyRing()
        self._ids = RequestIds()
        self._principals = PrincipalsFollower(ring=self.keys, accounts=stores.ledger.principals)
        self.events = self._event_log()
        self._request_lines = RequestLines(
            share=settings.log_requests, per_second=settings.log_requests_per_second
        )
        self._clock_watch = self._watch_of_clock()
        self._region_limits = self._limits_of_region()
        self._follower: RuntimeFollower | None = None
        self._cache_watch: RedisHealthMonitor | None = None
        self.limiter = RedisRateLimiter(
            redis=stores.limits,
            # The name is new at every start, so that a new process does not get the leased units of
            # its predecessor.
            holder=f"{identity(settings)}:{secrets.token_hex(4)}",
            monotonic=self._clock,
            local_share=self.runtimes.current.document.limits.local_share,
            shares=self._region_limits.shares,
        )
        self.idempotency = self._idempotency()
        self.runtimes.on_swap(self._configure_limits)
        self.backends = BackendAccess(
            runtimes=self.runtimes,
            client=HttpBackendClient(
                token=settings.backend_token,
                tls=client_tls(settings),
                tcp_keepalive=settings.tcp_keepalive,
            ),
            resolver=resolver,
            clock=self._clock,
            tracer=self._tracer,
            load_plans=stores.ledger.plans.load,
            changed=self._report_soon,
            phases=metrics.phases,
        )
        self.path = InferencePath(
            settings,
            runtimes=self.runtimes,
            limiter=self.limiter,
            fleet=self.backends.fleet,
            dispatcher=self.backends.dispatcher,
            clock=self._clock,
            tracer=self._tracer,
            is_bulk=is_bulk,
        )

    def _event_log(self) -> EventLog:
        settings = self._settings
        region = settings.region[:_LONGEST_IN_LOG_NAME] or "gateway"
        sync = LogSync(interval=settings.events_sync_interval)
        return EventLog(settings.events_dir, name=f"{region}-{settings.worker}", sync=sync)

    def _watch_of_clock(self) -> ClockWatch:
        return ClockWatch(
            state_redis=self._control.server_time,
            ledger=partial(asyncio.to_thread, self._stores.ledger.server_time),
            monotonic=self._clock,
        )

    def _limits_of_region(self) -> LimitsOfRegion:
        return limits_of_region(
            self._settings.region,
            worker=identity(self._settings),
            store=self._stores.ledger.shares,
            document=lambda: self.runtimes.current.document,
            monotonic=self._clock,
        )

    def _idempotency(self) -> IdempotencyStore:
        return IdempotencyStore(
            redis=self._stores.idempotency,
            config=lambda: self.runtimes.current.document.idempotency,
            monotonic=self._clock,
        )

    def _configure_limits(self, runtime: Runtime) -> None:
        self.limiter.local.fraction = runtime.document.limits.local_share

    async def start(self, stack: AsyncExitStack) -> Core:
        """Enter the contexts of all objects, and return what answers inference requests.

        The method returns when backends are ready, or after a time limit.

        If object A uses object B, the context of B is entered first and exited last. `stack` exits
        the contexts.
        """
        cache_watch = self._cache_watch = RedisHealthMonitor(self._side_client())
        reporter = self._stats_reporter(cache_watch)
        decisions = DecisionPublisher(
            client=self._side_client(),
            worker=identity(self._settings),
            decisions=self.decisions,
            runtimes=self.runtimes,
        )
        models = ModelsFollower(
            control=self._control,
            worker=identity(self._settings),
            reload=self.backends.reloader.reload,
            report=reporter.report,
        )
        follower = self._follower = self._runtime_follower(reporter, models)
        stack.push_async_callback(asyncio.to_thread, self._tracer.close)
        stack.enter_context(self.events)
        contexts: tuple[AbstractAsyncContextManager[object], ...] = (
            self.path.cache,
            self._request_lines,
            self._region_limits.follower,
            self.limiter,
            self.idempotency,
            self._principals,
            follower,
            reporter,
            self.backends,
            models,
            self._clock_watch,
            self.path.tasks,
            cache_watch,
            decisions,
        )
        for context in contexts:
            await stack.enter_async_context(context)
        await self.backends.prober.wait_until_ready()
        self._report_soon()
        return build_core(self._settings, self._dependencies())

    async def listen(self, stack: AsyncExitStack, draining: Draining) -> Listeners:
        """Start the worker as `start` does, and return the entry points for callers."""
        core = await self.start(stack)
        readiness = WorkerReadiness(
            principals=self._principals,
            fleet=self.backends.fleet,
            draining=draining,
            refusal_reason=self.events.refusal_reason,
            redis={"state_redis": self._is_state_reached, "cache_redis": self._is_cache_reached},
        )
        return build_listeners(
            self._settings, self._dependencies(), core, readiness=readiness, draining=draining
        )

    def rpc_listener(
        self,
        listeners: Listeners,
        draining: Draining,
        stop: asyncio.Event,
        edge: ListenerEdge | None = None,
    ) -> AbstractAsyncContextManager[None]:
        """Return a context that answers calls of gRPC until `stop` is set."""
        return open_rpc_listener(
            listeners.app,
            self._settings,
            steps=listeners.steps,
            bodies=listeners.bodies,
            keys=self.keys,
            document=self.runtimes.current.document,
            draining=draining,
            stop=stop,
            edge=edge,
            unsent=self.unsent,
        )

    def _runtime_follower(self, reporter: StatsReporter, models: ModelsFollower) -> RuntimeFollower:
        return RuntimeFollower(
            store=self.runtimes,
            control=self._control,
            settings=self._settings,
            report=reporter.report,
            actions={Topic.ACCOUNTS: self._principals.read_again},
            models_changed=models.on_version,
            drains_changed=self.backends.fleet.drain,
            recovery=self._stores.recovery,
        )

    def _side_client(self) -> PipelinedClient:
        """Return a client of the cache Redis that no request waits for."""
        return open_client(
            self._settings.cache_url,
            timeout=_PROBE_TIMEOUT,
            slow=_PROBE_TIMEOUT,
            keepalive=self._settings.tcp_keepalive,
        )

    def _report_soon(self) -> None:
        """Tell operators soon which backends are ready."""
        if self._follower is not None:
            self._follower.report_soon()

    def _is_state_reached(self) -> bool:
        return self._follower is None or self._follower.is_reached

    def _is_cache_reached(self) -> bool:
        """Return whether the cache Redis can be reached, or the document does not use it."""
        is_used = self.runtimes.current.document.cache.redis_enabled
        return not is_used or self._cache_watch is None or self._cache_watch.is_reachable

    def _stats_reporter(self, cache_watch: RedisHealthMonitor) -> StatsReporter:
        endpoints = EndpointMetrics(self._metrics.instruments, self.backends.fleet.statistics)
        return StatsReporter(
            metrics=self._metrics,
            sources={
                "cache": self.path.cache.statistics,
                "coalescing": self.path.flights.statistics,
                "stale": self.path.last_answers.statistics,
                "limits": self.limiter.statistics,
                "idempotency": self.idempotency.statistics,
                "dispatch": self.backends.dispatcher.statistics,
                "discovery": self.backends.discovery.statistics,
                "answers": self.unsent.statistics,
                "events": self.events.statistics,
                "tracing": self._tracer.statistics,
                "clock": self._clock_watch.statistics,
                "worker": self._statistics,
                **self._region_limits.figures,
            },
            details={
                "fleet": self.backends.fleet.statistics,
                "refused_tenants": self._metrics.refused_tenants.statistics,
            },
            labelled={"endpoints": self.backends.dispatcher.endpoint_statistics},
            publish=(endpoints.publish, self._metrics.exemplars.publish),
        )

    def _statistics(self) -> WorkerStatistics:
        follower = self._follower
        return WorkerStatistics(
            tasks=len(asyncio.all_tasks()),
            generation=self.runtimes.current.generation,
            reloads=0 if follower is None else follower.reloads,
            failed_reloads=0 if follower is None else follower.failed_reloads,
            state_redis=self._is_state_reached(),
            cache_redis=self._is_cache_reached(),
        )

    def _dependencies(self) -> EntryPointDependencies:
        return EntryPointDependencies(
            stores=self._stores,
            keys=self.keys,
            ids=self._ids,
            dialects=dialects_of(self._settings),
            limiter=self.limiter,
            idempotency=self.idempotency,
            fleet=self.backends.fleet,
            inference=self.path.inference,
            events=self.events,
            metrics=self._metrics,
            tracer=self._tracer,
            clock=self._clock,
            request_lines=self._request_lines,
            unsent=self.unsent,
        )
