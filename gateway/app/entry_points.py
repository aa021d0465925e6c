"""Builds the entry points of a worker: its application, and the fast path before it."""

import asyncio
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import NamedTuple

from litestar.types import ASGIApp

from gateway.api.fast_path.head_cache import RequestHeadCache
from gateway.api.fast_path.protocol import FastPath, FastPathProtocol
from gateway.api.fast_path.traced import build_fast_path
from gateway.api.health import ReadinessSource
from gateway.api.inference_handler import InferenceHandler
from gateway.api.inference_router import InferenceRouter
from gateway.api.request_events import RequestEvents
from gateway.api.request_processor import RequestProcessor
from gateway.api.request_state import RequestIds
from gateway.api.routes import build_api, inference_routes
from gateway.app.stores import Stores
from gateway.app.views import LedgerUsage
from gateway.auth.key_ring import KeyRing
from gateway.dialects.registry import DIALECTS
from gateway.events.log import EventLog
from gateway.http.draining import Draining
from gateway.http.write_coalescing import WriteCoalescingProtocol
from gateway.inference.inference import Inference
from gateway.middleware.admission import AdmissionMiddleware
from gateway.rate_limit.redis_limiter import RedisRateLimiter
from gateway.routing.fleet import Fleet
from gateway.settings import Settings
from gateway.telemetry.metrics import GatewayMetrics
from gateway.telemetry.tracing import Tracer


class Listeners(NamedTuple):
    """The application of a worker, and the protocol that reads requests before it."""

    app: ASGIApp
    protocol: Callable[..., asyncio.Protocol]


class EntryPointParts(NamedTuple):
    """The parts of a worker that answering a request uses."""

    stores: Stores
    keys: KeyRing
    limiter: RedisRateLimiter
    fleet: Fleet
    inference: Inference
    events: EventLog
    metrics: GatewayMetrics
    tracer: Tracer
    clock: Callable[[], float]


def build_listeners(
    settings: Settings,
    parts: EntryPointParts,
    *,
    readiness: ReadinessSource,
    draining: Draining,
) -> Listeners:
    """Return the entry points; the fast path is closed once `draining` closes connections."""
    ids = RequestIds()
    processor = RequestProcessor(
        runtimes=parts.stores.runtimes,
        keys=parts.keys,
        limiter=parts.limiter,
        inference=parts.inference,
        models=parts.fleet,
        events=RequestEvents(
            ids=ids,
            events=parts.events,
            metrics=parts.metrics,
            loop_time=parts.clock,
            region=settings.region,
        ),
        metrics=parts.metrics,
        tracer=parts.tracer,
    )
    app = _build_application(parts, processor, ids, readiness)
    if not settings.fast_lane:
        return Listeners(app, partial(WriteCoalescingProtocol, new_id=ids.new))
    fast_path = _build_fast_path(parts, processor, draining)
    return Listeners(app, partial(FastPathProtocol, fast_path=fast_path, new_id=ids.new))


def _build_application(
    parts: EntryPointParts, processor: RequestProcessor, ids: RequestIds, readiness: ReadinessSource
) -> InferenceRouter:
    runtimes = parts.stores.runtimes
    handler = InferenceHandler(processor=processor)
    api = build_api(
        version=version("sluicegate"),
        handler=handler,
        admission=AdmissionMiddleware(
            keys=parts.keys, limiter=parts.limiter, runtimes=runtimes, new_id=ids.new
        ),
        new_id=ids.new,
        models=parts.fleet,
        runtimes=runtimes,
        usage=LedgerUsage(parts.stores.ledger, runtimes),
        health=readiness,
        dialects=DIALECTS,
    )
    return InferenceRouter(api, handler, inference_routes(DIALECTS))


def _build_fast_path(
    parts: EntryPointParts, processor: RequestProcessor, draining: Draining
) -> FastPath:
    heads = RequestHeadCache(
        processor=processor,
        keys=parts.keys,
        runtimes=parts.stores.runtimes,
        routes=inference_routes(DIALECTS),
    )
    draining.on_close(heads.close)
    return build_fast_path(processor, heads)
