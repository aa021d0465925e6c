"""Finds and describes incidents, such as failing requests or unreachable dependencies."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final
from urllib.parse import quote

import msgspec

from sluicegate.gateway.admin.degradation import LOW_DISK
from sluicegate.gateway.console.fleet import FleetView
from sluicegate.gateway.console.formats import percent, rate, seconds, size
from sluicegate.gateway.console.traffic import ModelTraffic, Samples, Traffic
from sluicegate.gateway.errors import GatewayError
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.operations.fleet_view import LARGEST_SKEW
from sluicegate.gateway.redis.connect import PipelinedClient
from sluicegate.gateway.redis.health import responds_to_ping
from sluicegate.gateway.runtime.control import Control

_ERROR_RATIO, _REFUSED_RATIO = 0.001, 0.01
_LAG = 60.0
_MOST_NAMED = 3
_SLOW, _TIMES_SLOWER = 0.25, 3.0


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """A present fault, such as failing requests or an unreachable dependency."""

    text: str
    is_bad: bool
    """Whether callers notice the incident."""
    page: str = ""
    """The path of a page that shows more about the incident."""
    is_cause: bool = False
    """Whether such an incident usually causes other incidents."""


async def find_incidents(
    *,
    fleet: FleetView | None,
    traffic: Traffic,
    control: Control,
    ledger: Ledger,
    cache_redis: PipelinedClient,
) -> list[Incident]:
    """Return all incidents, the worst first.

    `fleet` is `None` if the workers' reports could not be read.
    """
    found = [
        *await _dependencies(control, ledger, cache_redis),
        *(backend_incidents(fleet, traffic) if fleet is not None else ()),
        *traffic_incidents(traffic, fleet.refused if fleet is not None else {}),
        *state_incidents(traffic.values),
    ]
    return worst_first(found)


def worst_first(found: Iterable[Incident]) -> list[Incident]:
    """Return incidents, the worst first."""
    return sorted(found, key=lambda each: (not each.is_bad, not each.is_cause))


async def _dependencies(
    control: Control, ledger: Ledger, cache_redis: PipelinedClient
) -> list[Incident]:
    found = []
    if not await responds_to_ping(cache_redis):
        text = (
            "The cache Redis cannot be reached: results that a worker's memory lacks are computed"
            " again."
        )
        found.append(Incident(text=text, is_bad=True))
    try:
        await control.versions()
    except GatewayError:
        text = (
            "The state Redis cannot be reached: each worker applies its local share of the limits,"
            " and changes of configuration, drains and models take no effect."
        )
        found.append(Incident(text=text, is_bad=True))
    try:
        await asyncio.to_thread(ledger.principals.version)
    except GatewayError:
        text = (
            "The ledger cannot be reached: workers accept the keys that they know, and usage is"
            " counted later."
        )
        found.append(Incident(text=text, is_bad=True))
    return found


def backend_incidents(fleet: FleetView, traffic: Traffic) -> Iterator[Incident]:
    """Yield the incidents of regions, backends and models."""
    page = "/console/backends"
    if (absent := absent_reports(fleet, traffic)) is not None:
        yield absent
        return
    for region, backends in fleet.regions.items():
        bad = [each for each in backends if each.mood == "bad"]
        if bad and len(bad) == len(backends):
            text = f"Region {region} is down: none of its backends is ready ({bad[0].state})."
            yield Incident(text=text, is_bad=True, page=page)
            continue
        for state, count in Counter(each.state for each in bad).items():
            names = _names([each.id for each in bad if each.state == state])
            text = f"{count} of {len(backends)} backends in {region}: {state} ({names})."
            yield Incident(text=text, is_bad=True, page=page)
        if backends and not any(each.is_usable for each in backends):
            text = f"Region {region} is out of use: every backend is drained or not ready."
            yield Incident(text=text, is_bad=True, page=page)
        drained = [each.id for each in backends if each.drained]
        if drained:
            yield Incident(text=f"Drained in {region}: {_names(drained)}.", is_bad=False, page=page)
    yield from _slow_backends(fleet)
    for (model, text), places in _broken_models(fleet).items():
        shown = f"Model {model} is broken on {places} backends: {text}"
        yield Incident(text=shown, is_bad=False, page="/console/models")


def _slow_backends(fleet: FleetView) -> Iterator[Incident]:
    """Yield the backends that are much slower than the fastest backend with the same model.

    The alert `EndpointSlow` uses the same thresholds.
    """
    known = [(each.finish, each) for each in fleet.backends if each.finish and each.mood == "good"]
    fastest: dict[str, float] = {}
    for finish, backend in known:
        for model in backend.models:
            fastest[model] = min(finish, fastest.get(model, finish))
    for finish, backend in known:
        least = min((fastest[model] for model in backend.models), default=finish)
        if finish > max(_SLOW, _TIMES_SLOWER * least):
            text = (
                f"Backend {backend.id} in {backend.region} is slow: a new item takes"
                f" {seconds(finish)}, but {seconds(least)} on the fastest backend with the same"
                " model."
            )
            yield Incident(text=text, is_bad=False, page="/console/backends")


def absent_reports(fleet: FleetView, traffic: Traffic) -> Incident | None:
    """Return an incident if Redis has no reports from workers, otherwise `None`.

    The metrics in `traffic` do not come from Redis. They show whether workers still serve requests.
    """
    if fleet.workers:
        return None
    if traffic.total.requests <= traffic.total.errors:
        return Incident(text="No worker reports, and no request succeeds.", is_bad=True)
    text = (
        "No worker's report reaches the state Redis, which may refuse writes. Requests still"
        " succeed."
    )
    return Incident(text=text, is_bad=False)


def traffic_incidents(traffic: Traffic, tenants: Mapping[str, float]) -> Iterator[Incident]:
    """Yield incidents for failing requests, refused requests and restarted processes.

    For each tenant, `tenants` has the number of requests per second that limits refuse.
    """
    failing = [model for model in traffic.models if _fails(model)]
    if _fails(traffic.total):
        yield _failures(traffic, traffic.total, has_codes=True)
    for model in failing:
        # The metric that counts error codes has no label for the model.
        yield _failures(traffic, model, has_codes=len(failing) == 1)
    if traffic.total.refused > _REFUSED_RATIO * traffic.total.requests:
        yield _refusals(traffic, tenants)
    for each in traffic.restarts:
        text = f"A process ({each.role}) was restarted in the last five minutes: {each.reason}."
        yield Incident(text=text, is_bad=False)


def _fails(model: ModelTraffic) -> bool:
    return model.errors > _ERROR_RATIO * model.requests


def _failures(traffic: Traffic, model: ModelTraffic, *, has_codes: bool) -> Incident:
    """Return an incident that shows a model's error ratio, its revisions and the error codes."""
    what = f"requests for {model.name}" if model.name else "all requests"
    text = f"{percent(model.error_ratio)} of {what} fail ({rate(model.errors)} per second)."
    items = traffic.rates.of("sluicegate_items_total") if model.name else ()
    revisions = _most_frequent(
        (labels["revision"], value)
        for labels, value in items
        if labels["model"] == model.name and labels["source"] == "failed"
    )
    counted = traffic.rates.of("sluicegate_failed_items_total") if has_codes else ()
    codes = _most_frequent((labels["code"], value) for labels, value in counted)
    if revisions:
        text += f" Revisions of failed items: {_names(revisions)}."
    if codes:
        text += f" Codes of failed items: {_names(codes)}."
    page = f"/console/models/{quote(model.name, safe='')}" if model.name else ""
    return Incident(text=text, is_bad=True, page=page)


def _refusals(traffic: Traffic, tenants: Mapping[str, float]) -> Incident:
    """Return an incident that shows which limits refuse requests, and of which tenants."""
    decisions = traffic.rates.of("sluicegate_limit_decisions_total")
    policies = Counter(
        {each["policy"]: value for each, value in decisions if each["decision"] == "refused"}
    )
    names = _names([name for name, value in policies.most_common() if value])
    share = percent(traffic.total.refused / traffic.total.requests)
    text = f"Limits refuse {share} of all requests" + (f" ({names})" if names else "")
    most = [name for name, _ in Counter(tenants).most_common()]
    if not most:
        return Incident(text=f"{text}.", is_bad=False)
    shown = _names([f"{name} {rate(tenants[name])} per second" for name in most])
    page = f"/console/tenants/{quote(most[0], safe='')}"
    return Incident(text=f"{text}. Most affected tenants: {shown}.", is_bad=False, page=page)


class _Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A gauge, and the condition under which its value means an incident.

    `text` is the format string of the incident's description, with the gauge's labels and `value`.
    """

    metric: str
    applies: Callable[[float], bool]
    text: str
    is_bad: bool
    shown: Callable[[float], str] = str
    page: str = ""
    is_cause: bool = False


_RULES = (
    _Rule(
        metric="sluicegate_breaker_open",
        applies=bool,
        text="A worker's circuit breaker for {dependency} is open.",
        is_bad=True,
    ),
    _Rule(
        metric="sluicegate_event_log_writable",
        applies=lambda value: not value,
        text="A worker cannot write its event log and refuses requests with 503.",
        is_bad=True,
    ),
    _Rule(
        metric="sluicegate_data_disk_free_bytes",
        applies=lambda value: value < LOW_DISK,
        text="The disk of the data directory has only {value} free.",
        is_bad=True,
        is_cause=True,
        shown=size,
    ),
    _Rule(
        metric="sluicegate_clock_skew_seconds",
        applies=lambda value: value > LARGEST_SKEW,
        text="The clock of this machine and the clock of {dependency} differ by {value}.",
        is_bad=True,
        shown=seconds,
    ),
    _Rule(
        metric="sluicegate_shipper_lag_seconds",
        applies=lambda value: value > _LAG,
        text="The shipper is {value} behind: usage events wait on disk.",
        is_bad=False,
        shown=seconds,
    ),
    _Rule(
        metric="sluicegate_billing_lag_seconds",
        applies=lambda value: value > _LAG,
        text="Billing is {value} behind: usage events wait in Redis.",
        is_bad=False,
        shown=seconds,
    ),
    _Rule(
        metric="sluicegate_stream_full",
        applies=bool,
        text="The stream of usage events in Redis is full: events stay in the event logs.",
        is_bad=False,
    ),
    _Rule(
        metric="sluicegate_dead_letters",
        applies=bool,
        text="The ledger has {value} dead letters ({stream}).",
        is_bad=False,
        shown="{:.0f}".format,
        page="/console/dead-letters",
    ),
    _Rule(
        metric="sluicegate_discovery_failing_names",
        applies=bool,
        text="A backend's DNS name cannot be resolved.",
        is_bad=False,
    ),
)


GAUGES: Final = tuple(rule.metric for rule in _RULES)
"""The gauges whose values can mean an incident."""


def state_incidents(values: Samples) -> Iterator[Incident]:
    """Yield an incident for each gauge in `values` whose value indicates a fault."""
    for rule in _RULES:
        for labels, value in values.of(rule.metric):
            if rule.applies(value):
                text = rule.text.format(value=rule.shown(value), **labels)
                yield Incident(
                    text=text, is_bad=rule.is_bad, page=rule.page, is_cause=rule.is_cause
                )


def _broken_models(fleet: FleetView) -> Counter[tuple[str, str]]:
    return Counter(pair for backend in fleet.backends for pair in backend.problems.items())


def _most_frequent(counted: Iterable[tuple[str, float]]) -> list[str]:
    """Return the names whose count is above 0, in descending order of their counts."""
    found: defaultdict[str, float] = defaultdict(float)
    for name, value in counted:
        if name and value:
            found[name] += value
    return sorted(found, key=lambda name: -found[name])


def _names(names: list[str]) -> str:
    rest = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + rest
