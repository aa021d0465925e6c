"""Fields of statistics become the metrics that are declared beside them."""

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from sluicegate.gateway.inference.coalescing import FlightStatistics
from sluicegate.gateway.telemetry.metrics import GatewayMetrics
from sluicegate.gateway.workers.billing import BillingStatistics
from sluicegate.wire.metric_declaration import (
    LABEL,
    MetricDeclaration,
    MetricKind,
    counter,
    declared_by,
    gauge,
    read_samples,
)
from sluicegate.wire.plans import RevisionStatistics
from tools.reference.metrics_page import BACKEND, GATEWAY, declared_metrics

ROOT = Path(__file__).parents[3]
_LOOKUPS = counter("lookups_total", "Lookups.", "name", "tier", "result")
_OPEN = gauge("open", "Whether it is open.", "name")
# Fields that are labels, in no metric, or in metrics that other code computes.
_NO_METRIC = {
    "DispatchStatistics": {"calls", "failed_calls", "retried", "hedged"},
    "EncoderStatistics": {"name"},
    "QueueStatistics": {"work", "wasted"},
    "RevisionStatistics": set(RevisionStatistics.__struct_fields__),
    "RowStatistics": {"computed_rows", "entries", "size_bytes", "evicted_rows"},
    "Snapshot": {"models", "states"},
}


class _Tier(msgspec.Struct):
    hits: Annotated[int, _LOOKUPS("memory", "hit")]
    by_result: Annotated[dict[str, int], _LOOKUPS("redis")]


class _Cache(msgspec.Struct):
    name: Annotated[str, LABEL]
    breaker: Annotated[str, _OPEN]
    tiers: list[_Tier]
    other: int = 7


def test_samples_have_the_labels_of_fields_annotations_and_keys() -> None:
    cache = _Cache("a", "half_open", [_Tier(hits=2, by_result={"miss": 3})])

    assert [(metric.name, labels, value) for metric, labels, value, _ in read_samples(cache)] == [
        ("open", ("a",), 1.0),
        ("lookups_total", ("a", "memory", "hit"), 2),
        ("lookups_total", ("a", "redis", "miss"), 3),
    ]


def declaring_classes() -> list[type[msgspec.Struct]]:
    """Return the classes of statistics with metrics, without the classes of their fields."""
    names = [name for sections in (GATEWAY, BACKEND) for each in sections.values() for name in each]
    found = {
        kind
        for name in names
        for kind in vars(import_module(name)).values()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and any(declared_by(kind))
    }
    inner = {kind for each in found for kind, *_ in leaves(each) if kind is not each}
    return sorted(found - inner, key=lambda kind: kind.__name__)


def leaves(kind: type[msgspec.Struct], path: str = "") -> Iterator[tuple[type, str, str]]:
    """Yield the class, name and path of each field that holds no struct."""
    for name, hint in get_type_hints(kind).items():
        inner = get_args(hint)[0] if get_origin(hint) is list else hint
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            yield from leaves(inner, f"{path}{name}.")
        else:
            yield kind, name, path + name


def example(hint: Any) -> Any:
    """Return a value of a type, with one element in each collection."""
    kind, inner = get_origin(hint) or hint, [each for each in get_args(hint) if each is not ...]
    if kind is Literal:
        return inner[0]
    if issubclass(kind, msgspec.Struct):
        return kind(**{name: example(each) for name, each in get_type_hints(kind).items()})
    if issubclass(kind, dict):
        key, value = inner if len(inner) > 1 else (*inner, int)
        return {example(key): example(value)}
    return kind([example(each) for each in inner]) if inner else kind(1)


@pytest.mark.parametrize("kind", declaring_classes(), ids=lambda kind: kind.__name__)
def test_every_field_of_statistics_is_a_metric_with_all_its_labels(
    kind: type[msgspec.Struct],
) -> None:
    samples = list(read_samples(example(kind)))

    wanted = {
        path for owner, name, path in leaves(kind) if name not in _NO_METRIC.get(owner.__name__, ())
    }
    assert {path for *_, path in samples} == wanted
    for metric, labels, *_ in samples:
        assert len(labels) == len(metric.labels), metric.name


def test_every_metric_is_declared_once_and_has_a_section_on_the_page() -> None:
    declared = re.compile(r'\b(?:counter|gauge|histogram)\(\s*"(sluicegate_\w+)"')
    packages = (ROOT / "gateway", ROOT / "backends")
    files = [path for package in packages for path in package.rglob("*.py")]

    names = [name for path in files for name in declared.findall(path.read_text("utf-8"))]

    assert sorted(names) == sorted(declared_metrics())


@pytest.mark.parametrize("metric", declared_metrics().values(), ids=declared_metrics())
def test_names_follow_the_conventions_of_prometheus(metric: MetricDeclaration) -> None:
    is_counter = metric.kind is MetricKind.COUNTER

    assert metric.name.endswith("_total") == is_counter
    assert metric.help.endswith(".")
    assert not {"tenant", "key", "input"} & set(metric.labels)


def test_running_totals_become_counters_that_survive_a_new_part() -> None:
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry)

    for led in (5, 7, 2):  # the third is of a part that began anew
        metrics.statistics("coalescing", FlightStatistics(in_flight=1, led=led, joined=0))

    labels = {"role": "led"}
    assert registry.get_sample_value("sluicegate_coalescing_items_total", labels) == 9


def test_parts_with_numbers_add_up_their_counters() -> None:
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry)

    for part, events in (("billing", 3), ("billing_1", 4)):
        metrics.statistics(
            part,
            BillingStatistics(events=events, duplicates=0, dead=0, lost=0, lag=events, failures=2),
        )

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"sluicegate_{name}", labels)

    assert value("billed_events_total", result="counted") == 7
    assert value("billing_lag_seconds", stream="1") == 4
    assert value("consecutive_failures", part="billing_1") == 2
