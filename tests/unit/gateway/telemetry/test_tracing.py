"""Spans: off by default, passed on when off, and under their parent when on."""

import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import SpanKind, StatusCode

from sluicegate.gateway.errors import RateLimited
from sluicegate.gateway.settings import process_environment
from sluicegate.gateway.telemetry.logs import configure_logging
from sluicegate.gateway.telemetry.opening import tracer_from
from sluicegate.gateway.telemetry.otel_tracer import OtelTracer
from sluicegate.gateway.telemetry.spans import UnsampledSpan
from sluicegate.gateway.telemetry.tracing import Tracer
from sluicegate.gateway.upstream.base import CallFailed, Cause
from tests.support.tracing import Recorded

_PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
_UNSAMPLED = _PARENT[:-2] + "00"
_ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}


@pytest.fixture
def restored_logging() -> Iterator[None]:
    """Undo what `configure_logging` does to the process."""
    loggers = [logging.getLogger(), logging.getLogger("opentelemetry.trace.span")]
    before = [(logger, logger.level, list(logger.handlers)) for logger in loggers]
    hook = sys.excepthook
    yield
    sys.excepthook = hook
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers


@pytest.mark.parametrize("parent", ["", _PARENT])
def test_a_tracer_that_is_off_passes_the_callers_trace_on(parent: str) -> None:
    tracer = Tracer()

    with tracer.span("x", parent=parent) as span:
        span.set("a", 1)
        span.fail("code")

        assert span.traceparent == parent
    tracer.close()


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_SERVICE_NAME": "x"},
        {"OTEL_TRACES_EXPORTER": "none"},
        _ENDPOINT | {"OTEL_TRACES_EXPORTER": "none"},
        _ENDPOINT | {"OTEL_SDK_DISABLED": "true"},
        _ENDPOINT | {"OTEL_SDK_DISABLED": "TRUE"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
    ],
)
def test_tracing_is_off_unless_asked_for(environ: dict[str, str]) -> None:
    assert type(tracer_from(environ, service="x")) is Tracer


@pytest.mark.parametrize(
    "environ",
    [
        _ENDPOINT,
        _ENDPOINT | {"OTEL_SDK_DISABLED": "false"},
        {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1/v1/traces"},
        {"OTEL_TRACES_EXPORTER": "otlp"},
    ],
)
def test_an_endpoint_or_an_exporter_turns_tracing_on(environ: dict[str, str]) -> None:
    tracer = tracer_from(environ, service="x")
    tracer.close()

    assert isinstance(tracer, OtelTracer)


def test_a_span_is_under_its_parent_and_names_itself() -> None:
    recorded = Recorded()

    with recorded.tracer.request("outer", _PARENT) as outer:
        name = outer.traceparent
        with recorded.tracer.span("inner", parent=name, attributes={"items": 3}) as inner:
            inner.set("hits", 1)

    second, first = recorded.spans()
    assert first.parent is not None
    assert second.parent is not None
    assert name.split("-")[1] == _PARENT.split("-")[1]
    assert f"{first.parent.span_id:016x}" == _PARENT.split("-")[2]
    assert f"{second.parent.span_id:016x}" == name.split("-")[2]
    assert (first.parent.is_remote, second.parent.is_remote) == (True, False)
    assert (first.kind, second.kind) == (SpanKind.SERVER, SpanKind.INTERNAL)
    assert dict(second.attributes or {}) == {"items": 3, "hits": 1}


def test_a_request_without_a_parent_begins_a_new_trace() -> None:
    recorded = Recorded()

    with recorded.tracer.request("x", ""), recorded.tracer.request("y", ""):
        pass

    spans = recorded.spans()
    assert [span.parent for span in spans] == [None, None]
    assert len({span.context.trace_id for span in spans if span.context}) == 2


def test_tracestate_is_kept_and_passed_on() -> None:
    recorded = Recorded()

    with recorded.tracer.request("x", f"{_PARENT} a=1,b=2") as span:
        assert span.traceparent.partition(" ")[2] == "a=1,b=2"
        with span.child("y") as child:
            assert child.traceparent.partition(" ")[2] == "a=1,b=2"

    assert [span.context.trace_state["b"] for span in recorded.spans() if span.context] == ["2"] * 2


@pytest.mark.parametrize("state", ["my secret text", ",".join(f"a{n}=1" for n in range(40))])
def test_a_callers_tracestate_is_in_no_log_line(
    capsys: pytest.CaptureFixture[str], restored_logging: None, state: str
) -> None:
    configure_logging("info", process="x")
    recorded = Recorded()

    recorded.tracer.request("x", f"{_PARENT} {state}").end()

    (span,) = recorded.spans()
    assert span.context is not None
    assert not span.context.trace_state
    assert "secret" not in capsys.readouterr().out


def test_a_request_that_is_not_sampled_is_not_recorded_but_passed_on() -> None:
    recorded = Recorded()

    with recorded.tracer.request("x", _UNSAMPLED) as span:
        assert span.traceparent == _UNSAMPLED
        with recorded.tracer.span("y", parent=span.traceparent) as child:
            assert child.traceparent == _UNSAMPLED

    assert recorded.spans() == []


def test_a_request_that_the_sampler_leaves_out_is_unsampled_for_backends_too() -> None:
    recorded = Recorded(ParentBased(ALWAYS_OFF))

    span = recorded.tracer.request("x", "")

    assert span.traceparent.endswith("-00")
    assert span.traceparent == span.traceparent
    assert recorded.spans() == []


def test_a_failure_that_is_not_sampled_leaves_one_span_in_its_trace() -> None:
    recorded = Recorded()

    recorded.tracer.failure("x", UnsampledSpan(_UNSAMPLED), age=2.0).end()

    (span,) = recorded.spans()
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == _UNSAMPLED.split("-")[2]
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.end_time - span.start_time >= 2_000_000_000


def test_a_failure_without_a_callers_trace_begins_one_with_the_ids_that_backends_were_sent() -> (
    None
):
    recorded = Recorded(ParentBased(ALWAYS_OFF))
    unsampled = recorded.tracer.request("x", "")
    _, trace, span_id, _ = unsampled.traceparent.split("-")

    recorded.tracer.failure("x", unsampled, age=2.0).end()

    (span,) = recorded.spans()
    assert span.parent is None
    assert span.context is not None
    assert f"{span.context.trace_id:032x}-{span.context.span_id:016x}" == f"{trace}-{span_id}"


def test_always_off_records_no_failure_either() -> None:
    recorded = Recorded(ALWAYS_OFF)

    recorded.tracer.failure("x", UnsampledSpan(), age=2.0).end()

    assert recorded.spans() == []


def test_a_failed_span_says_why_by_its_code() -> None:
    recorded = Recorded()

    with recorded.tracer.request("x", "") as span:
        span.fail("overloaded")

    (found,) = recorded.spans()
    assert found.status.status_code is StatusCode.ERROR
    assert (found.attributes or {})["error.type"] == "overloaded"


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (ValueError("a secret text"), "ValueError"),
        (RateLimited("a secret text"), "rate_limited"),
        (CallFailed(Cause.UNREACHABLE, "a secret text"), "unreachable"),
        (CallFailed(Cause.REFUSED, "a secret text", code="overloaded"), "overloaded"),
    ],
)
def test_an_exception_ends_the_span_and_is_named_without_its_message(
    error: Exception, name: str
) -> None:
    recorded = Recorded()

    with pytest.raises(type(error), match="secret"), recorded.tracer.request("x", ""):
        raise error

    (found,) = recorded.spans()
    assert found.status.description == name
    assert type(found.status.description) is str
    assert "secret" not in found.to_json()


def test_a_span_ends_once() -> None:
    recorded = Recorded()

    with recorded.tracer.request("x", "") as span:
        span.end()

    assert len(recorded.spans()) == 1


def test_attributes_keep_to_the_limits_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "1")
    monkeypatch.setenv("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "3")
    recorded = Recorded()

    with recorded.tracer.request("x", "", {"a": "long", "b": "longer"}):
        pass

    (span,) = recorded.spans()
    assert dict(span.attributes or {}) == {"b": "lon"}
    assert span.dropped_attributes == 1


def test_the_sdk_is_not_imported_while_tracing_is_off() -> None:
    """It raises as it is imported where one of its variables is wrong."""
    code = (
        "import sys, sluicegate.gateway.app.worker, sluicegate.backends.telemetry.spans;"
        "sys.exit('opentelemetry.sdk.trace' in sys.modules)"
    )
    environ = dict(process_environment()) | {"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "abc"}

    assert subprocess.run([sys.executable, "-c", code], env=environ, check=False).returncode == 0
