"""Traced requests: spans on the fast path as in the application, and none that is not sampled."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    DEFAULT_OFF,
    DEFAULT_ON,
    ParentBased,
    Sampler,
    TraceIdRatioBased,
)

from sluicegate.gateway.config.document import LimitsConfig
from sluicegate.gateway.types import ItemFailure
from tests.support.api import KEY
from tests.support.dialects import sent, serve_models
from tests.support.entry_points import EntryPoint
from tests.support.tracing import Recorded

pytestmark = pytest.mark.anyio
_TRACE = "0af7651916cd43dd8448eb211c80319c"
_BODY = b'{"model": "sentiment", "input": "a"}'


def request(*lines: bytes, body: bytes = _BODY) -> bytes:
    head = [
        b"POST /v1/classify HTTP/1.1",
        b"host: w",
        b"authorization: Bearer " + KEY.encode(),
        b"content-length: %d" % len(body),
        *lines,
    ]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def traceparent(flags: str = "01", number: int = 1) -> bytes:
    return f"traceparent: 00-{_TRACE}-{number:016x}-{flags}".encode()


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def names(spans: Sequence[ReadableSpan]) -> list[str]:
    return sorted(span.name for span in spans)


@pytest.mark.parametrize("fast", [True, False])
async def test_a_sampled_memory_hit_has_its_steps_at_either_entry_point(fast: bool) -> None:  # noqa: FBT001
    recorded = Recorded(DEFAULT_OFF)
    entry = EntryPoint(fast=fast, tracer=recorded.tracer)
    for _ in range(3):  # computed, stored, replayed from now on
        await entry.send(request())

    for number in (1, 2):
        assert b" 200 " in await entry.send(request(traceparent(number=number)))

    spans = recorded.spans()
    assert names(spans) == sorted(["POST /v1/classify", "admission", "cache lookup"] * 2)
    roots = [span for span in spans if span.name == "POST /v1/classify"]
    assert [span.parent.span_id for span in roots if span.parent] == [1, 2]
    for span in roots:
        assert attributes(span)["http.response.status_code"] == 200
        assert attributes(span)["sluicegate.model"] == "sentiment"
        assert attributes(span)["sluicegate.revision"] == entry.api.events.events[0].revision
    ids = {attributes(span)["sluicegate.request_id"] for span in roots}
    assert len(ids) == 2
    assert ids <= {str(event.id) for event in entry.api.events.events}


async def test_requests_that_differ_in_their_trace_alone_are_replayed() -> None:
    entry = EntryPoint(fast=True)
    for number in range(1, 9):
        await entry.send(request(traceparent("00", number), b"tracestate: a=%d" % number))

    assert len(entry.api.fast_path.heads._heads) == 1


async def test_hits_with_and_without_a_trace_are_replayed_in_any_order() -> None:
    recorded = Recorded(DEFAULT_OFF)
    for tracer in (None, recorded.tracer):
        entry = EntryPoint(fast=True, tracer=tracer)
        plain, traced = request(), request(traceparent("00"))
        for each in (plain, traced, plain):
            await entry.send(each)

        answers = [
            entry.api.fast_path.replay(each, entry.state.default_lines)
            for each in (plain, traced, traced, plain, plain, traced)
        ]

        assert None not in answers
        entry.api.fast_path.hit_events.commit()


@pytest.mark.parametrize("line", [b"", traceparent("00")])
async def test_what_is_not_sampled_leaves_no_span(line: bytes) -> None:
    recorded = Recorded(DEFAULT_OFF)
    entry = EntryPoint(fast=True, tracer=recorded.tracer)
    lines = [line] if line else []

    for _ in range(4):
        assert b" 200 " in await entry.send(request(*lines))

    assert recorded.spans() == []


async def test_every_hit_is_recorded_where_the_sampler_takes_all() -> None:
    recorded = Recorded(DEFAULT_ON)
    entry = EntryPoint(fast=True, tracer=recorded.tracer)

    for _ in range(6):
        await entry.send(request())

    roots = [span for span in recorded.spans() if span.name == "POST /v1/classify"]
    assert len(roots) == 6
    assert len({span.context.trace_id for span in roots if span.context}) == 6


async def unlimited(sampler: Sampler) -> tuple[Recorded, EntryPoint]:
    """Return an entry point of the fast path that replays `request()`, without limits."""
    recorded = Recorded(sampler)
    entry = EntryPoint(fast=True, tracer=recorded.tracer)
    entry.api.configure(limits=LimitsConfig())
    for _ in range(3):
        await entry.send(request(traceparent("00")))
    return recorded, entry


async def test_hits_are_recorded_by_what_their_callers_decided_and_by_draw_without() -> None:
    recorded, entry = await unlimited(ParentBased(TraceIdRatioBased(0.2)))
    left_out, taken = request(traceparent("00", 2)), request(traceparent("01", 3))

    for _ in range(400):
        for each in (left_out, request(), taken):
            assert isinstance(entry.api.fast_path.replay(each, entry.state.default_lines), bytes)
        entry.api.fast_path.hit_events.commit()

    roots = [span for span in recorded.spans() if span.name == "POST /v1/classify"]
    parents = Counter(span.parent.span_id if span.parent else 0 for span in roots)
    assert parents[2] == 0
    assert parents[3] == 400
    assert 30 < parents[0] < 150  # 80 are expected, and their standard deviation is 8


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
async def test_hits_have_their_phases_counted_whether_they_are_recorded_or_not(
    share: float,
) -> None:
    _, entry = await unlimited(ParentBased(TraceIdRatioBased(share)))
    metrics, registry = entry.api.metrics, entry.api.registry
    name, labels = "sluicegate_phase_duration_seconds_count", {"phase": "cache"}
    metrics.flush()
    before = registry.get_sample_value(name, labels) or 0

    for _ in range(64):
        for each in (request(), request(traceparent("01"))):
            entry.api.fast_path.replay(each, entry.state.default_lines)
        entry.api.fast_path.hit_events.commit()
    metrics.flush()

    assert registry.get_sample_value(name, labels) == before + 64 + 64


@pytest.mark.parametrize(
    ("line", "trace"),
    [
        (b"TraceParent:00-" + _TRACE.encode() + b"-00000000000000aa-01", _TRACE),
        (b"traceparent: cc-" + _TRACE.encode() + b"-00000000000000aa-01-more", _TRACE),
    ],
)
async def test_a_traceparent_of_unusual_form_is_read_too(line: bytes, trace: str) -> None:
    recorded = Recorded(DEFAULT_OFF)
    entry = EntryPoint(fast=True, tracer=recorded.tracer)
    for _ in range(3):
        await entry.send(request(line))

    spans = recorded.spans()
    assert {f"{span.context.trace_id:032x}" for span in spans if span.context} == {trace}
    assert len([span for span in spans if span.name == "POST /v1/classify"]) == 3


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("sampler", [DEFAULT_OFF, ALWAYS_OFF])
async def test_a_failure_that_is_not_sampled_leaves_one_span(fast: bool, sampler: Any) -> None:  # noqa: FBT001
    recorded = Recorded(sampler)
    entry = EntryPoint(fast=fast, tracer=recorded.tracer)
    failure = ItemFailure(status=503, code="overloaded", detail="Full.")
    entry.api.scene.runner.failure = failure

    answer = await entry.send(request(traceparent("00")))

    assert b" 503 " in answer
    spans = recorded.spans()
    if sampler is ALWAYS_OFF:
        assert spans == []
    else:
        (span,) = spans
        assert attributes(span)["error.type"] == "overloaded"
        assert span.parent is not None
        assert span.parent.span_id == 1


async def test_a_failure_has_its_span_whatever_status_its_dialect_writes() -> None:
    recorded = Recorded(DEFAULT_OFF)
    entry = EntryPoint(fast=True, tracer=recorded.tracer)
    serve_models(entry.api)
    failure = ItemFailure(status=502, code="upstream_failed", detail="Broken.")
    entry.api.scene.runner.failure = failure
    lines = ("Host: w", f"Authorization: Bearer {KEY}")

    answer = await entry.send(sent("POST /tei/minilm/embed", lines, b'{"inputs":"a"}'))

    assert b" 424 " in answer
    (span,) = recorded.spans()
    assert attributes(span)["error.type"] == "upstream_failed"


async def test_a_failed_request_names_the_revision_that_it_was_for() -> None:
    """Both where an item failed and where something failed before any had."""
    recorded = Recorded(DEFAULT_OFF)
    entry = EntryPoint(fast=True, tracer=recorded.tracer)
    failure = ItemFailure(status=502, code="upstream_failed", detail="Broken.")
    runner = entry.api.scene.runner
    assert b" 200 " in await entry.send(request())

    runner.failure = failure
    assert b" 502 " in await entry.send(request(body=b'{"model": "sentiment", "input": "b"}'))
    runner.bug = RuntimeError("a bug")
    assert b" 500 " in await entry.send(request(body=b'{"model": "sentiment", "input": "c"}'))

    answered, *failed = entry.api.events.events
    assert [event.revision for event in failed] == [answered.revision] * 2
    spans = [span for span in recorded.spans() if span.name == "POST /v1/classify"]
    assert [attributes(span)["sluicegate.revision"] for span in spans] == [answered.revision] * 2


async def test_a_refusal_that_is_not_sampled_leaves_no_span() -> None:
    recorded = Recorded(DEFAULT_OFF)
    entry = EntryPoint(fast=True, tracer=recorded.tracer)

    assert b" 400 " in await entry.send(request(body=b"{"))

    assert recorded.spans() == []
