"""Formats of trace contexts: what `OTEL_PROPAGATORS` names is read, and nothing else."""

import pytest

from sluicegate.gateway.telemetry.opening import tracer_from
from sluicegate.gateway.telemetry.propagation import ContextReader

_PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
_HEADERS = [(b"traceparent", _PARENT.encode())]
_REQUEST = b"POST / HTTP/1.1\r\ntraceparent: %b\r\n\r\n" % _PARENT.encode()


@pytest.mark.parametrize("names", ["", "tracecontext", "baggage, tracecontext"])
def test_w3c_is_read_by_default_and_where_it_is_named(names: str) -> None:
    reader = ContextReader(names)

    assert reader.read(_HEADERS) == _PARENT
    assert reader.split(_REQUEST) == (_PARENT, b"POST / HTTP/1.1\r\n\r\n")


@pytest.mark.parametrize("names", ["none", "baggage"])
def test_what_is_not_named_is_not_read(names: str) -> None:
    reader = ContextReader(names)

    assert reader.read(_HEADERS) == ""
    assert reader.split(_REQUEST) == ("", b"POST / HTTP/1.1\r\n\r\n")


@pytest.mark.parametrize("names", ["tracecontext,", "tracecontext,nonsense"])
def test_what_is_no_format_is_ignored_as_the_specification_says(
    caplog: pytest.LogCaptureFixture, names: str
) -> None:
    tracer = tracer_from({"OTEL_PROPAGATORS": names}, service="x")

    assert tracer.contexts.read(_HEADERS) == _PARENT
    assert len(caplog.records) == ("nonsense" in names)
