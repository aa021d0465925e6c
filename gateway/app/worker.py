"""The composition root of a gateway worker: every object is made and handed on here."""

import asyncio
import gc
import random
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
)
from functools import partial
from importlib.metadata import version
from typing import NamedTuple

from litestar.types import ASGIApp
from prometheus_client import REGISTRY, CollectorRegistry
from redis.asyncio import Redis

from gateway.api.fast_path.head_cache import RequestHeadCache
from gateway.api.fast_path.hit_events import HitEventBatch
from gateway.api.fast_path.protocol import FastPath, FastPathProtocol
from gateway.api.inference_handler import InferenceHandler
from gateway.api.inference_router import InferenceRouter
from gateway.api.request_state import RequestIds
from gateway.api.routes import build_api
from gateway.api.rules import InferenceRules
from gateway.app.call_spans import CallSpans
from gateway.app.principals import PrincipalsFollower
from gateway.app.secret import secret_of
from gateway.app.stats_reporter import StatsReporter, worker_statistics
from gateway.app.views import (
    CurrentDocument,
    LedgerUsage,
    ReadinessUntilDraining,
    WorkerReadiness,
)
from gateway.auth.key_ring import KeyRing
from gateway.cache.build import build_cache
from gateway.cache.key import KeyMaker
from gateway.dispatch.discovery import Discovery
from gateway.dispatch.dispatcher import Dispatcher
from gateway.dispatch.limited import LimitedRunner
from gateway.dispatch.prober import Prober
from gateway.dispatch.reloading import ModelReloader
from gateway.events.log import EventLog
from gateway.http.connection_timeouts import ConnectionTimeouts
from gateway.http.draining import Draining
from gateway.http.server import listener_on, serve
from gateway.http.write_coalescing import WriteCoalescingProtocol
from gateway.inference.claiming import ClaimingRunner
from gateway.inference.coalescing import Flights
from gateway.inference.inference import Inference
from gateway.inference.last_answers import StaleAnswers
from gateway.ledger.ledger import Ledger
from gateway.middleware.admission import AdmissionMiddleware
from gateway.rate_limit.redis_limiter import RedisRateLimiter
from gateway.redis.client import connect
from gateway.redis.connect import open_pipe
from gateway.redis.health import RedisWatch
from gateway.regional_limits.follower import limits_of_region
from gateway.routing.fleet import Fleet
from gateway.runtime.control import Control
from gateway.runtime.follower import RuntimeFollower, first_runtime, identity
from gateway.runtime.models import ModelsFollower
from gateway.runtime.recovery import LedgerRecovery, Recovery
from gateway.runtime.runtime import Runtime
from gateway.runtime.store import RuntimeStore
from gateway.settings import Settings, process_environment
from gateway.tasks import TaskOwner
from gateway.telemetry.metrics import GatewayMetrics
from gateway.telemetry.tracing import NullTracer, tracer_from
from gateway.upstream.http import HttpBackendClient
from gateway.upstream.resolving import Resolver, SystemResolver
from gateway.upstream.tls import client_tls

_PROBE = 0.5
# Work that no request waits for any more: those had their time while the server drained.
_LEFT_BEHIND = 0.5
_LONGEST_IN_LOG_NAME = 8


class Listeners(NamedTuple):
    """The ways into a worker: its application, and the protocol that runs before it."""

    app: ASGIApp
    protocol: Callable[..., asyncio.Protocol]


async def serve_worker(settings: Settings, *, stop: asyncio.Event) -> None:
    """Serve requests until `stop` is set, then finish those in flight and let go of everything.

    Raises:
        ConfigurationError: the document, or an address, cannot be used.
    """
    listener = listener_on(
        settings.host, settings.port, settings.listen_fd, setting="SLUICEGATE_PORT"
    )
    siblings = [socket.socket(fileno=int(number)) for number in settings.sibling_fds.split()]
    draining = Draining(delay=settings.shutdown_delay, is_supervised=settings.listen_fd is not None)
    draining.hear_announcement()
    async with build_worker(settings, draining=draining) as (app, protocol):
        _calm_the_collector()
        await serve(
            app,
            listener,
            drain=settings.drain,
            stop=stop,
            protocol=protocol,
            patience=ConnectionTimeouts(
                head=settings.head_timeout,
                idle=settings.keep_alive,
                connections=settings.max_connections,
            ),
            draining=draining,
            siblings=siblings,
        )


def _calm_the_collector() -> None:
    """Keep the garbage collector from walking what stays, and from looking too often."""
    gc.collect()
    gc.freeze()
    # Requests leave few cycles; every 700 objects are two or three requests.
    gc.set_threshold(20_000, 20, 20)


@asynccontextmanager
async def build_worker(
    settings: Settings,
    *,
    registry: CollectorRegistry = REGISTRY,
    resolver: Resolver | None = None,
    draining: Draining | None = None,
) -> AsyncIterator[Listeners]:
    """Make a worker and enter its parts, each before those that use it.

    Names are looked up by `resolver`, by default as the operating system does.
    """
    async with AsyncExitStack() as stack:
        state = connect(
            settings.state_url, timeout=settings.state_timeout, keepalive=settings.tcp_keepalive
        )
        stack.push_async_callback(state.aclose)
        ledger = stack.enter_context(Ledger(settings.ledger))
        recovery = LedgerRecovery(
            control=Control(state), record=ledger.published, region=settings.region
        )
        runtimes = RuntimeStore(await first_runtime(state, settings, recovery))
        own = resolver or SystemResolver()
        stores = _Stores(state, ledger, recovery)
        worker = _Worker(settings, stores, runtimes, GatewayMetrics(registry), own)
        yield await worker.enter(stack, draining or Draining())


class _Stores(NamedTuple):
    """What outlives the worker."""

    state: Redis
    ledger: Ledger
    recovery: Recovery


class _Worker:
    """The parts of a worker, made in the order of use: what is below comes first."""

    def __init__(
        self,
        settings: Settings,
        stores: _Stores,
        runtimes: RuntimeStore,
        metrics: GatewayMetrics,
        resolver: Resolver,
    ) -> None:
        self.settings = settings
        self.state, self.ledger, self.recovery = stores
        self.runtimes = runtimes
        self.loop_time = asyncio.get_running_loop().time
        self.tracer = tracer_from(process_environment(), service="sluicegate-gateway")
        self.metrics = metrics
        self.resolver = resolver
        self.keys = KeyRing()
        self.principals = PrincipalsFollower(ring=self.keys, accounts=self.ledger.accounts)
        self.tasks = TaskOwner(drain=_LEFT_BEHIND)
        self.redis: dict[str, Callable[[], bool]] = {}
        self._make_storage()
        self._make_routing()
        self.figures = self._figures()

    def _make_storage(self) -> None:
        document = self.runtimes.current.document
        self.cache = build_cache(
            document.cache,
            url=self.settings.cache_url,
            clock=time.time,  # noqa: TID251 - entries travel between machines
            monotonic=self.loop_time,
            random=random.random,
            keepalive=self.settings.tcp_keepalive,
        )
        self.flights = Flights()
        self.limits = limits_of_region(
            self.settings.region,
            worker=identity(self.settings),
            store=self.ledger.shares,
            document=lambda: self.runtimes.current.document,
            monotonic=self.loop_time,
        )
        self.limiter = RedisRateLimiter(
            redis=self.state,
            # A successor's leases are its own: the name differs at every start.
            holder=f"{identity(self.settings)}:{secrets.token_hex(4)}",
            monotonic=self.loop_time,
            local_share=document.limits.local_share,
            shares=self.limits.shares,
        )
        region = self.settings.region[:_LONGEST_IN_LOG_NAME] or "gateway"
        self.events = EventLog(self.settings.events_dir, name=f"{region}-{self.settings.worker}")

    def _make_routing(self) -> None:
        chooser = random.Random()  # noqa: S311 - chooses among backends, guards nothing
        self.fleet = Fleet(clock=self.loop_time, random=chooser)
        self.client = HttpBackendClient(
            token=self.settings.backend_token,
            tls=client_tls(self.settings),
            tcp_keepalive=self.settings.tcp_keepalive,
        )
        self.discovery = Discovery(
            resolver=self.resolver, random=chooser, changed=self._place_backends
        )
        self.prober = Prober(fleet=self.fleet, client=self.client, random=chooser)
        self._configure(self.runtimes.current)
        self.runtimes.on_swap(self._configure_storage)
        # Until the new backends were heard of, the old ones serve.
        self.runtimes.on_prepare(self._meet_backends)
        self.runtimes.on_swap(self._configure)
        self.runtimes.on_swap(lambda _: self.prober.refresh())
        self.models = ModelsFollower(
            control=Control(self.state),
            worker=identity(self.settings),
            reload=ModelReloader(fleet=self.fleet, client=self.client, prober=self.prober).reload,
            report=self._report,
        )
        self.dispatcher = Dispatcher(
            fleet=self.fleet,
            client=self.client,
            reprobe=self.prober.probe_soon,
            clock=self.loop_time,
            tracer=CallSpans(self.tracer),
        )

        self.runner = ClaimingRunner(
            LimitedRunner(runner=self.dispatcher, limiter=self.limiter, runtimes=self.runtimes),
            cache=self.cache,
            lease=self.runtimes.current.document.cache.lease,
        )
        self.stale = StaleAnswers(
            cache=self.cache, flights=self.flights, runner=self.runner, tasks=self.tasks
        )

    def _report(self) -> bytes:
        return self.figures.report()

    async def _meet_backends(self, runtime: Runtime) -> None:
        await self.discovery.prepare(runtime.endpoints, runtime.document.routing)
        await self.prober.meet(self.discovery.expand(runtime.endpoints))

    def _configure(self, runtime: Runtime) -> None:
        routing = runtime.document.routing
        self.discovery.configure(runtime.endpoints, routing)
        endpoints = self.discovery.expand(runtime.endpoints)
        self.fleet.configure(endpoints, routing)
        self.client.configure(endpoints, routing)

    def _configure_storage(self, runtime: Runtime) -> None:
        self.limiter.local.fraction = runtime.document.limits.local_share
        self.cache.configure(runtime.document.cache)
        self.runner.lease = runtime.document.cache.lease

    async def _place_backends(self) -> None:
        """Take up what names lead to now, once the new backends were heard of."""
        await self.prober.meet(self.discovery.expand(self.runtimes.current.endpoints))
        self._configure(self.runtimes.current)
        self.prober.refresh()

    async def enter(self, stack: AsyncExitStack, draining: Draining) -> Listeners:
        """Start every part, and return the doors once backends are known, or had their time."""
        figures = self.figures
        follower = RuntimeFollower(
            store=self.runtimes,
            redis=self.state,
            settings=self.settings,
            report=figures.report,
            accounts_changed=self.principals.read_again,
            models_changed=self.models.newest,
            drains_changed=self.fleet.drain,
            recovery=self.recovery,
        )
        self.redis["state_redis"] = lambda: follower.is_reached
        stack.push_async_callback(asyncio.to_thread, self.tracer.close)
        stack.enter_context(self.events)
        storage = (
            *(self.cache, self.limits.follower, self.limiter),
            *(self.principals, follower, figures),
        )
        placing = (self.client, self.prober, self.discovery)
        calling = (*placing, self.models, self.dispatcher, self.tasks, self._cache_watch())
        parts: tuple[AbstractAsyncContextManager[object], ...] = (*storage, *calling)
        for part in parts:
            await stack.enter_async_context(part)
        await self.prober.settle_in()
        return self._doors(draining)

    def _cache_watch(self) -> AbstractAsyncContextManager[object]:
        url, keepalive = self.settings.cache_url, self.settings.tcp_keepalive
        watch = RedisWatch(open_pipe(url, timeout=_PROBE, slow=_PROBE, keepalive=keepalive))
        # The document may switch it on and off.
        self.redis["cache_redis"] = lambda: (
            watch.is_reached or not self.runtimes.current.document.cache.redis_enabled
        )
        return watch

    def _figures(self) -> StatsReporter:
        return StatsReporter(
            metrics=self.metrics,
            sources={
                "cache": self.cache.statistics,
                "coalescing": self.flights.statistics,
                "stale": self.stale.statistics,
                "limits": self.limiter.statistics,
                "dispatch": self.dispatcher.statistics,
                "discovery": self.discovery.statistics,
                "events": self.events.statistics,
                "worker": worker_statistics,
                **self.limits.figures,
            },
            details={"fleet": self.fleet.statistics},
        )

    def _readiness(self, draining: Draining) -> ReadinessUntilDraining:
        source = WorkerReadiness(
            principals=self.principals, fleet=self.fleet, events=self.events, redis=self.redis
        )
        return ReadinessUntilDraining(source, draining)

    def _doors(self, draining: Draining) -> Listeners:
        ids = RequestIds()
        inference = Inference(
            models=self.fleet,
            keys=KeyMaker(secret=secret_of(self.settings)),
            cache=self.cache,
            stale=self.stale,
            flights=self.flights,
            runner=self.runner,
            tasks=self.tasks,
            tracer=self.tracer,
        )
        rules = InferenceRules(
            runtimes=self.runtimes,
            keys=self.keys,
            limiter=self.limiter,
            inference=inference,
            events=self.events,
            metrics=self.metrics,
            ids=ids,
            loop_time=self.loop_time,
            region=self.settings.region,
        )
        door = InferenceHandler(rules=rules, tracer=self.tracer)
        api = build_api(
            version=version("sluicegate"),
            door=door,
            admission=AdmissionMiddleware(
                keys=self.keys, limiter=self.limiter, runtimes=self.runtimes, ids=ids
            ),
            ids=ids,
            models=self.fleet,
            documents=CurrentDocument(self.runtimes),
            usage=LedgerUsage(self.ledger, self.runtimes),
            health=self._readiness(draining),
        )
        app = InferenceRouter(api, door)
        if not self.settings.fast_lane or not isinstance(self.tracer, NullTracer):
            # Spans are recorded on the application's way.
            return Listeners(app, partial(WriteCoalescingProtocol, new_id=ids.new))
        heads = RequestHeadCache(rules=rules, keys=self.keys, runtimes=self.runtimes)
        draining.on_close(heads.close)
        lane = FastPath(
            rules=rules,
            heads=heads,
            limiter=self.limiter,
            inference=inference,
            runtimes=self.runtimes,
            ids=ids,
            turn=HitEventBatch(
                ids=ids, events=self.events, metrics=self.metrics, loop_time=self.loop_time
            ),
        )
        return Listeners(app, partial(FastPathProtocol, lane=lane, new_id=ids.new))
