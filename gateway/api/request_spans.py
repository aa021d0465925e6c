"""Records the spans of requests and of their look-ups in the cache, where they are recorded."""

from gateway.api.request_state import RequestState
from gateway.cache.entry import CacheHit
from gateway.inference.inference import Inference
from gateway.inference.interfaces import LookupCallback
from gateway.inference.outcomes import describe_lookup
from gateway.inference.prepared_request import PreparedRequest
from gateway.telemetry.spans import MEMORY
from gateway.telemetry.tracing import Tracer
from gateway.types import Answer


def from_memory(
    inference: Inference, state: RequestState, prepared: PreparedRequest
) -> Answer | None:
    """Return what memory has of a request."""
    if not state.span.is_recorded:
        return inference.from_memory(prepared, state.options.directives)
    with state.span.child("cache lookup", MEMORY) as span:
        answer = inference.from_memory(prepared, state.options.directives)
        span.set("sluicegate.cache.hit", answer is not None)
    return answer


def recorded_lookup(state: RequestState, on_done: LookupCallback) -> LookupCallback:
    """Begin the span of a look-up; return `on_done` that ends it."""
    span = state.span.child("cache lookup")

    def ended(found: list[CacheHit | None]) -> None:
        describe_lookup(span, found)
        span.end()
        on_done(found)

    return ended


def end_request_span(state: RequestState, tracer: Tracer, *, now: float) -> None:
    """End the span of a request; a fault of ours has one although it is not sampled."""
    span = state.span
    if not span.is_recorded:
        span = tracer.failure(state.route.span_name, span, age=now - state.started)
    span.set("http.response.status_code", state.status)
    span.set("sluicegate.request_id", state.id)
    span.set("sluicegate.items", state.usage.items)
    if state.model:
        span.set("sluicegate.model", state.model)
    if state.revision:
        span.set("sluicegate.revision", state.revision)
    if state.code:
        span.fail(state.code)
    span.end()
