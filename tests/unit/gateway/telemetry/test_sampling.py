"""The sampling decision: the SDK's, for every sampler that `OTEL_TRACES_SAMPLER` names."""

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from sluicegate.gateway.telemetry.sampling import HeadSampler

_SAMPLERS = (
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
)
_LOW, _HIGH = "1" * 32, "f" * 32


def sampler_of(monkeypatch: pytest.MonkeyPatch, name: str, arg: str = "0.5") -> TracerProvider:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", name)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", arg)
    return TracerProvider(shutdown_on_exit=False)


@pytest.mark.parametrize("trace", [_LOW, _HIGH])
@pytest.mark.parametrize("flags", ["00", "01", "02", "03"])
@pytest.mark.parametrize("name", _SAMPLERS)
def test_a_caller_with_a_trace_is_decided_about_as_the_sdk_does(
    monkeypatch: pytest.MonkeyPatch, name: str, flags: str, trace: str
) -> None:
    sampler = sampler_of(monkeypatch, name).sampler
    parent = f"00-{trace}-b7ad6b7169203331-{flags}"
    context = TraceContextTextMapPropagator().extract({"traceparent": parent})

    result = sampler.should_sample(context, int(trace, 16), "x")

    is_sampled = result.decision is Decision.RECORD_AND_SAMPLE
    assert HeadSampler(sampler).samples(parent) is is_sampled


@pytest.mark.parametrize("name", _SAMPLERS)
def test_the_id_of_a_sampled_trace_is_one_that_the_sdk_samples(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    root = sampler_of(monkeypatch, name).sampler
    sampler = HeadSampler(root)

    ids = [sampler.new_trace_id() for _ in range(200) if sampler.samples("")]

    decisions = {root.should_sample(None, number, "x").decision for number in ids}
    assert decisions <= {Decision.RECORD_AND_SAMPLE}
    assert (len(ids) == 0) is name.endswith("always_off")
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("arg", "least", "most"), [("0", 0, 0), ("0.25", 800, 1200), ("1", 4000, 4000)]
)
def test_a_ratio_is_kept(monkeypatch: pytest.MonkeyPatch, arg: str, least: int, most: int) -> None:
    sampler = HeadSampler(sampler_of(monkeypatch, "parentbased_traceidratio", arg).sampler)

    assert least <= sum(sampler.samples("") for _ in range(4000)) <= most


@pytest.mark.parametrize("name", _SAMPLERS)
def test_only_always_off_leaves_no_failure(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert HeadSampler(sampler_of(monkeypatch, name).sampler).is_off is (name == "always_off")


def test_a_sampler_that_is_unknown_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = HeadSampler(sampler_of(monkeypatch, "nonsense").sampler)

    assert sampler.samples("")


@pytest.mark.parametrize(
    ("arg", "least", "most"), [("0", 0, 0), ("0.25", 800, 1200), ("1", 4000, 4000)]
)
def test_counting_down_records_as_many(
    monkeypatch: pytest.MonkeyPatch, arg: str, least: int, most: int
) -> None:
    sampler = HeadSampler(sampler_of(monkeypatch, "parentbased_traceidratio", arg).sampler)
    recorded, at = 0, sampler.gap()
    while at <= 4000:
        recorded += 1
        at += sampler.gap()

    assert least <= recorded <= most
