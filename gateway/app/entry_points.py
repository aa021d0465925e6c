"""Builds what receives a worker's requests.

The core answers inference requests. Plain requests come to it by the fast path inside the HTTP
protocol, others by `RequestSteps`. Litestar answers what is no inference request.
"""

from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from typing import NamedTuple

from litestar import Litestar
from litestar.types import ASGIApp

from sluicegate.gateway.api.admission import AdmissionMiddleware
from sluicegate.gateway.api.core import Core
from sluicegate.gateway.api.cross_origin import CrossOrigin
from sluicegate.gateway.api.customer_application import CustomerApplication
from sluicegate.gateway.api.dialect import Dialect, error_format
from sluicegate.gateway.api.fast_path.front import FastPath, FastPathFront
from sluicegate.gateway.api.fast_path.head_cache import RequestHeadCache
from sluicegate.gateway.api.health import ReadinessSource
from sluicegate.gateway.api.idempotent_requests import IdempotentRequests
from sluicegate.gateway.api.incoming_request import IncomingBodies
from sluicegate.gateway.api.inference_route import InferenceRoutes
from sluicegate.gateway.api.load_shedding import LoadShedder, LoopIterations
from sluicegate.gateway.api.request_events import RequestEvents, RequestLines
from sluicegate.gateway.api.request_processor import RequestProcessor
from sluicegate.gateway.api.request_state import RequestIds
from sluicegate.gateway.api.request_steps import RequestSteps
from sluicegate.gateway.api.routes import build_api, changing_routes, inference_routes
from sluicegate.gateway.app.stores import Stores
from sluicegate.gateway.app.views import LedgerUsage, OwnKeys
from sluicegate.gateway.auth.key_ring import KeyRing
from sluicegate.gateway.batches.batch_access import BatchParts, open_batch_parts
from sluicegate.gateway.events.log import EventLog
from sluicegate.gateway.http.draining import Draining
from sluicegate.gateway.http.side import GatewaySide
from sluicegate.gateway.http.unsent_answers import UnsentAnswers
from sluicegate.gateway.idempotency.store import IdempotencyStore
from sluicegate.gateway.inference.inference import Inference
from sluicegate.gateway.rate_limit.redis_limiter import RedisRateLimiter
from sluicegate.gateway.routing.fleet import Fleet
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.telemetry.metrics import GatewayMetrics
from sluicegate.gateway.telemetry.tracing import Tracer


class Listeners(NamedTuple):
    """Holds what receives a worker's requests."""

    app: ASGIApp
    side: GatewaySide
    """What the HTTP server has beside `app`: the fast path."""
    steps: RequestSteps
    """Takes inference requests to the core."""
    bodies: IncomingBodies
    """What all bodies that are waited for hold."""


class EntryPointDependencies(NamedTuple):
    """The objects of a worker that the entry points use."""

    stores: Stores
    keys: KeyRing
    ids: RequestIds
    dialects: Sequence[Dialect]
    limiter: RedisRateLimiter
    idempotency: IdempotencyStore
    fleet: Fleet
    inference: Inference
    events: EventLog
    metrics: GatewayMetrics
    tracer: Tracer
    clock: Callable[[], float]
    request_lines: RequestLines
    unsent: UnsentAnswers


def build_core(settings: Settings, dependencies: EntryPointDependencies) -> Core:
    """Return what answers a worker's inference requests."""
    processor = RequestProcessor(
        runtimes=dependencies.stores.runtimes,
        keys=dependencies.keys,
        limiter=dependencies.limiter,
        inference=dependencies.inference,
        models=dependencies.fleet,
        events=RequestEvents(
            ids=dependencies.ids,
            events=dependencies.events,
            metrics=dependencies.metrics,
            loop_time=dependencies.clock,
            region=settings.region,
            lines=dependencies.request_lines,
        ),
        metrics=dependencies.metrics,
        tracer=dependencies.tracer,
        unsent=dependencies.unsent,
    )
    return Core(processor)


def build_listeners(
    settings: Settings,
    dependencies: EntryPointDependencies,
    core: Core,
    *,
    readiness: ReadinessSource,
    draining: Draining,
) -> Listeners:
    """Return what receives a worker's requests.

    When `draining` begins to close connections, the fast path stops. All requests then go through
    the application.
    """
    ids, runtimes, keys = dependencies.ids, dependencies.stores.runtimes, dependencies.keys
    routes = inference_routes(dependencies.dialects)
    batches = open_batch_parts(settings, dependencies.stores.ledger)
    litestar = _build_litestar(dependencies, routes, readiness, batches)
    cross_origin = CrossOrigin(runtimes=runtimes, keys=keys)
    shedder = LoadShedder(
        iterations=LoopIterations(most=settings.max_loop_delay),
        metrics=dependencies.metrics,
        runtimes=runtimes,
        new_id=ids.new,
    )
    steps = RequestSteps(
        core,
        cross_origin=cross_origin,
        shedder=shedder,
        idempotency=IdempotentRequests(
            store=dependencies.idempotency,
            limiter=dependencies.limiter,
            has_route=changing_routes(litestar, routes),
        ),
        runtimes=runtimes,
        errors_of=partial(error_format, routes, dependencies.dialects),
        new_id=ids.new,
    )
    bodies = IncomingBodies()
    app = CustomerApplication(steps, litestar, routes=routes, keys=keys, bodies=bodies)
    heads = RequestHeadCache(
        processor=core.processor,
        keys=keys,
        runtimes=runtimes,
        routes=routes,
        cross_origin=cross_origin,
    )
    draining.on_close(heads.close)
    fast_path = FastPath(core, heads=heads, shedder=shedder)
    front, coalescer = partial(FastPathFront, fast_path), fast_path.coalescer
    side = GatewaySide(new_id=ids.new, make_front=front, coalescer=coalescer)
    return Listeners(app, side, steps, bodies)


def _build_litestar(
    dependencies: EntryPointDependencies,
    routes: InferenceRoutes,
    readiness: ReadinessSource,
    batches: BatchParts,
) -> Litestar:
    runtimes = dependencies.stores.runtimes
    usage = LedgerUsage(dependencies.stores.ledger, runtimes)
    return build_api(
        version=version("sluicegate"),
        admission=AdmissionMiddleware(
            limiter=dependencies.limiter,
            runtimes=runtimes,
            new_id=dependencies.ids.new,
        ),
        new_id=dependencies.ids.new,
        models=dependencies.fleet,
        runtimes=runtimes,
        usage=usage,
        requests=usage,
        rotation=OwnKeys(dependencies.stores),
        health=readiness,
        routes=routes,
        batches=batches,
        request_lines=dependencies.request_lines,
        dialects=dependencies.dialects,
    )
