"""Shows traces that a sink has received as text: failed ones, and the longest."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal

from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

Kind = Literal["failed", "longest"]
_MOST_LINES = 14


def environment_of_sampling(share: float) -> dict[str, str]:
    """Return the variables that record a share of all requests, and each that fails."""
    return {
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": str(share),
        "OTEL_BSP_SCHEDULE_DELAY": "1000",
    }


def find_traces(spans: Iterable[Span], kind: Kind, *, since: float) -> list[list[Span]]:
    """Return the traces that began after `since`, the worst first."""
    traces: dict[bytes, list[Span]] = defaultdict(list)
    for span in spans:
        if span.start_time_unix_nano >= since * 1e9:
            traces[span.trace_id].append(span)
    found = [sorted(each, key=lambda span: span.start_time_unix_nano) for each in traces.values()]
    if kind == "failed":
        found = [each for each in found if any(map(_has_failed, each))]
    return sorted(found, key=_duration, reverse=True)


def as_text(trace: Sequence[Span]) -> str:
    """Return one line for each span, in the order of their starts: start, duration, what it was."""
    began = min(span.start_time_unix_nano for span in trace)
    depths: dict[bytes, int] = {}
    lines = [f"trace {trace[0].trace_id.hex()}"]
    for span in trace[:_MOST_LINES]:
        depths[span.span_id] = depth = depths.get(span.parent_span_id, -1) + 1
        start = (span.start_time_unix_nano - began) / 1e6
        took = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e6
        mark = " FAILED" if _has_failed(span) else ""
        name = f"{'  ' * depth}{span.name}{mark}"
        lines.append(f"{start:8.1f} ms {took:8.1f} ms  {name}  {_attributes(span)}".rstrip())
    if len(trace) > _MOST_LINES:
        lines.append(f"... {len(trace) - _MOST_LINES} more spans")
    return "\n".join(lines)


def _has_failed(span: Span) -> bool:
    return span.status.code == Status.STATUS_CODE_ERROR


def _duration(trace: Sequence[Span]) -> int:
    ends = max(span.end_time_unix_nano for span in trace)
    return ends - min(span.start_time_unix_nano for span in trace)


def _attributes(span: Span) -> str:
    return " ".join(f"{each.key}={_value(each.value)}" for each in span.attributes)


def _value(value: AnyValue) -> str:
    kind = value.WhichOneof("value")
    return "" if kind is None else str(getattr(value, kind))
