"""Builds what receives a worker's requests: the ASGI application and the fast path in front of it.

The fast path answers simple requests inside the HTTP protocol, without ASGI.
"""

from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from typing import NamedTuple

from litestar.types import ASGIApp

from gateway.api.compressed_requests import CompressedRequests
from gateway.api.cross_origin import CrossOrigin, CrossOriginRequests
from gateway.api.dialect import Dialect, error_format
from gateway.api.fast_path.answering import FastPath
from gateway.api.fast_path.front import FastPathFront
from gateway.api.fast_path.head_cache import RequestHeadCache
from gateway.api.health import ReadinessSource
from gateway.api.idempotent_requests import IdempotentRequests
from gateway.api.inference_handler import InferenceHandler
from gateway.api.inference_router import InferenceRouter
from gateway.api.load_shedding import LoadShedder, SheddingRequests
from gateway.api.request_events import RequestEvents
from gateway.api.request_lines import RequestLines
from gateway.api.request_processor import RequestProcessor
from gateway.api.request_state import RequestIds
from gateway.api.routes import build_api, changing_routes, inference_routes
from gateway.app.stores import Stores
from gateway.app.views import LedgerUsage, OwnKeys
from gateway.auth.key_ring import KeyRing
from gateway.batches.batch_access import BatchParts, open_batch_parts
from gateway.events.log import EventLog
from gateway.http.draining import Draining
from gateway.http.loop_iterations import LoopIterations
from gateway.http.side import GatewaySide
from gateway.http.unsent_answers import UnsentAnswers
from gateway.idempotency.store import IdempotencyStore
from gateway.inference.inference import Inference
from gateway.middleware.admission import AdmissionMiddleware
from gateway.rate_limit.redis_limiter import RedisRateLimiter
from gateway.routing.fleet import Fleet
from gateway.settings import Settings
from gateway.telemetry.metrics import GatewayMetrics
from gateway.telemetry.tracing import Tracer


class Listeners(NamedTuple):
    """Holds a worker's ASGI application, and what the HTTP server has beside it."""

    app: ASGIApp
    side: GatewaySide


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


def build_processor(settings: Settings, dependencies: EntryPointDependencies) -> RequestProcessor:
    """Return the processor of a worker's inference requests."""
    return RequestProcessor(
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


def build_listeners(
    settings: Settings,
    dependencies: EntryPointDependencies,
    processor: RequestProcessor,
    *,
    readiness: ReadinessSource,
    draining: Draining,
) -> Listeners:
    """Return a worker's application, and what the HTTP server has beside it.

    When `draining` begins to close connections, the fast path stops. All requests then go through
    the application.
    """
    ids = dependencies.ids
    batches = open_batch_parts(settings, dependencies.stores.ledger)
    rules = CrossOrigin(runtimes=dependencies.stores.runtimes, keys=dependencies.keys)
    shedder = LoadShedder(
        iterations=LoopIterations(most=settings.max_loop_delay),
        metrics=dependencies.metrics,
        new_id=ids.new,
    )
    app = CrossOriginRequests(
        SheddingRequests(
            _build_application(dependencies, processor, ids, readiness, batches),
            shedder=shedder,
            routes=inference_routes(dependencies.dialects),
            runtimes=dependencies.stores.runtimes,
        ),
        rules=rules,
        keys=dependencies.keys,
        errors_of=partial(error_format, dependencies.dialects),
        new_id=ids.new,
    )
    if not settings.fast_lane:
        return Listeners(app, GatewaySide(new_id=ids.new))
    fast_path = _build_fast_path(dependencies, processor, draining, rules, shedder)
    front, coalescer = partial(FastPathFront, fast_path), fast_path.coalescer
    return Listeners(app, GatewaySide(new_id=ids.new, make_front=front, coalescer=coalescer))


def _build_application(
    dependencies: EntryPointDependencies,
    processor: RequestProcessor,
    ids: RequestIds,
    readiness: ReadinessSource,
    batches: BatchParts,
) -> CompressedRequests:
    runtimes = dependencies.stores.runtimes
    handler = InferenceHandler(processor=processor)
    usage = LedgerUsage(dependencies.stores.ledger, runtimes)
    api = build_api(
        version=version("sluicegate"),
        handler=handler,
        admission=AdmissionMiddleware(
            keys=dependencies.keys,
            limiter=dependencies.limiter,
            runtimes=runtimes,
            new_id=ids.new,
        ),
        new_id=ids.new,
        models=dependencies.fleet,
        runtimes=runtimes,
        usage=usage,
        requests=usage,
        rotation=OwnKeys(dependencies.stores),
        health=readiness,
        batches=batches,
        request_lines=dependencies.request_lines,
        dialects=dependencies.dialects,
    )
    idempotent = IdempotentRequests(
        InferenceRouter(api, handler, inference_routes(dependencies.dialects)),
        store=dependencies.idempotency,
        keys=dependencies.keys,
        limiter=dependencies.limiter,
        runtimes=runtimes,
        errors_of=partial(error_format, dependencies.dialects),
        body_budget=handler.body_budget,
        new_id=ids.new,
        has_route=changing_routes(api, dependencies.dialects),
    )
    return CompressedRequests(
        idempotent,
        keys=dependencies.keys,
        runtimes=runtimes,
        body_budget=handler.body_budget,
        errors_of=partial(error_format, dependencies.dialects),
        new_id=ids.new,
    )


def _build_fast_path(
    dependencies: EntryPointDependencies,
    processor: RequestProcessor,
    draining: Draining,
    rules: CrossOrigin,
    shedder: LoadShedder,
) -> FastPath:
    heads = RequestHeadCache(
        processor=processor,
        keys=dependencies.keys,
        runtimes=dependencies.stores.runtimes,
        routes=inference_routes(dependencies.dialects),
        cross_origin=rules,
    )
    draining.on_close(heads.close)
    return FastPath(processor=processor, heads=heads, shedder=shedder)
