"""Lists every fault of the catalogue."""

from collections.abc import Sequence
from functools import partial
from typing import Any  # fields of a fault

from loadtests.faults import (
    alerts,
    batch,
    bulk_jobs,
    changes,
    containers,
    fleet,
    namespaces,
    pods,
    power_cut,
    processes,
    retries,
)
from loadtests.faults.catalogue import Case, Fault, LoadSpec
from loadtests.faults.judge import SETTLED, Window, percentile
from loadtests.faults.limits import limits_hold
from loadtests.faults.paced_backend import CAPACITY, BackendSpec
from loadtests.faults.processes import Setup

_BACKENDS = LoadSpec(rate=0.3 * CAPACITY * len(processes.TWO_BY_TWO))
"""Requests at 60 % of the rate that one region alone can compute."""
_MOST_ATTEMPTS = 1.2
_ALLOWED = 0.020
"""Seconds that a fault of a Redis may add to the 99th percentile of misses. The fault may also
double the percentile."""
_HITS = LoadSpec(rate=120.0, repeated=0.7, hasty=0.0)
_TWO_REGIONS = (
    BackendSpec(name="eu-0", region="eu"),
    BackendSpec(name="us-0", region="us"),
)
_ONE_REGION = (
    BackendSpec(name="eu-0", region="eu"),
    BackendSpec(name="eu-1", region="eu"),
)
_UNEQUAL = (
    BackendSpec(name="fast", region="eu"),
    BackendSpec(name="slow", region="eu", slower=3.0),
)
_OVERFLOWING = (
    BackendSpec(name="eu-0", region="eu"),
    *(BackendSpec(name=f"spare-{n}", region="eu", overflow=True) for n in range(2)),
)


def few_attempts(case: Case) -> Sequence[str]:
    """Find items that were tried too often, retries and hedges included."""
    grown = _growth(case)
    first = grown["computed"] + grown["failed"]
    if first <= 0:
        return ["no worker told of its items"]
    attempts = (first + grown["retried"] + grown["hedged"]) / first
    case.figures["attempts"] = round(attempts, 3)
    return [f"{attempts:.2f} attempts per item"] if attempts > _MOST_ATTEMPTS else []


def misses_go_on(case: Case, parts: Sequence[str] = ("cache", "state")) -> Sequence[str]:
    """Find misses that waited for a Redis of `parts` that fails."""
    if case.part not in parts:
        return []
    misses = [each for each in case.sent if not each.is_repeat]
    before = percentile([each for each in misses if each.came < case.begun], 0.99)
    during = percentile([each for each in misses if case.begun <= each.due < case.ended], 0.99)
    case.figures["miss_p99_added_ms"] = round(1000 * (during - before), 1)
    late = during > before + max(_ALLOWED, before)
    return [f"p99 of misses rose from {before:.3f} to {during:.3f} s"] if late else []


def breaker_opens(case: Case, parts: Sequence[str] = ("cache", "state")) -> Sequence[str]:
    """Find a Redis of `parts` that was away, and whose breaker did not open."""
    if case.part not in parts:
        return []
    opened = case.figures["breaker_opened"] = _growth(case)[f"{case.part} breaker"]
    return [] if opened > 0 else [f"the breaker of the {case.part} Redis did not open"]


def hits_are_answered(case: Case) -> Sequence[str]:
    """Find memory hits that were refused while no backend was up, and refusals without a hint."""
    down = [each for each in case.sent if case.begun <= each.due < case.ended]
    missed = sum(each.has_failed for each in down if each.is_repeat)
    # The probes need a moment to find out.
    refused = [each for each in down if each.due > case.begun + 1.0 and each.status == 503]
    silent = sum(not each.retry_after for each in refused)
    after = [each.due - case.ended for each in case.sent if each.has_failed]
    case.figures.update(
        refused=len(refused),
        slowest_refusal=round(percentile(refused, 1.0), 3),
        refused_after=round(max([0.0, *after]), 1),
    )
    counted = ((missed, "memory hits were refused"), (silent, "refusals have no `Retry-After`"))
    return [f"{count} {what}" for count, what in counted if count]


def shares(case: Case) -> Sequence[str]:
    """Note the items of each backend."""
    grown = _growth(case)
    case.figures["items"] = {
        name.removeprefix("items "): int(count)
        for name, count in grown.items()
        if name.startswith("items ")
    }
    return []


def _growth(case: Case) -> dict[str, float]:
    """Return by how much each counter grew. A process that was killed counts from 0 again."""
    start, end = case.counters["start"], case.counters["end"]
    return {
        name: count - start.get(name, 0.0) if count >= start.get(name, 0.0) else count
        for name, count in end.items()
    }


# Misses may wait for the state Redis, whose timeout is longer.
_cached_misses_go_on = partial(misses_go_on, parts=("cache",))
_CHECKS = (few_attempts, breaker_opens, _cached_misses_go_on)


def _of_backends(name: str, what: str, undo: str) -> Fault:
    return Fault(name=name, what=what, undo=undo, load=_BACKENDS, checks=_CHECKS)


def _in_scene(name: str, what: str, undo: str, setup: Setup, rate: float, **changes: Any) -> Fault:
    """Return a fault with its own load, which repeats no earlier request."""
    load = LoadSpec(rate=rate * CAPACITY, repeated=0.0, hasty=0.0, spike=changes.pop("spike", 1.0))
    return Fault(name=name, what=what, undo=undo, setup=setup, **({"load": load} | changes))


def _all_down(name: str, what: str, *, insists: bool, after_end: float) -> Fault:
    return _in_scene(
        name,
        what,
        "one backend comes back, and the other one 4 s later",
        # Each worker has a memory of its own.
        Setup(backends=_TWO_REGIONS, workers=1),
        0.6,
        hold=4.0,
        windows={"backends": Window(is_open=True, after_end=after_end)},
        load=LoadSpec(rate=0.6 * CAPACITY, hasty=0.0, insists=insists),
        checks=(hits_are_answered,),
    )


def _stalls(name: str, hedge_share: float) -> Fault:
    routing = {"hedge_share": hedge_share, "spill_after": 1.0}
    return _in_scene(
        name,
        f"delays 5 % of the calls of one of two backends by 1 s; hedge_share is {hedge_share}",
        "no call is delayed",
        Setup(backends=_ONE_REGION, document={"routing": routing}),
        0.6,
        checks=(few_attempts,),
    )


FAULTS: tuple[Fault, ...] = (
    Fault(
        name="kill",
        what="ends all processes of a part with SIGKILL",
        undo="its supervisor, or the runner, starts it again",
        hold=10.0,
        windows={
            "worker": Window(after_begin=3.0),
            "gateway": Window(is_open=True, after_end=3.0),
        },
        load=_BACKENDS,
        checks=_CHECKS,
    ),
    _of_backends(
        "stop", "stops a part with SIGSTOP: it keeps connections, and is silent", "SIGCONT"
    ),
    _of_backends("latency", "adds 2 s to every answer of a backend", "answers come at once"),
    _of_backends("errors", "answers 30 % of a backend's calls with 500", "calls get through"),
    _of_backends("refused", "refuses connections to a backend", "the backend listens again"),
    _of_backends("half-open", "lets nothing through that is sent to a backend", "silence is cut"),
    _of_backends("revision", "loads another revision of the model on a part", "it stays"),
    _all_down("all-down", "refuses connections to all backends", insists=False, after_end=1.0),
    _all_down(
        "all-down-insistent",
        "refuses connections to all backends, while callers repeat what is refused",
        insists=True,
        after_end=5.0,
    ),
    _in_scene(
        "unequal",
        "offers 90 % of the capacity of two backends, of which one is three times as fast",
        "nothing to undo",
        Setup(backends=_UNEQUAL),
        1.2,
        checks=(shares,),
    ),
    _stalls("stalls", 0.0),
    _stalls("stalls-hedged", 0.05),
    _in_scene(
        "spike",
        "sends ten times the load; two backends of an overflow pool may help",
        "the load is as before",
        Setup(backends=_OVERFLOWING),
        0.2,
        hold=6.0,
        spike=10.0,
        checks=(shares,),
    ),
    Fault(
        name="full",
        what="leaves no memory to a Redis that evicts nothing, so that it refuses writes",
        undo="it has memory again",
        load=_HITS,
        # A cache that refuses writes still answers reads.
        checks=(misses_go_on, partial(breaker_opens, parts=("state",))),
    ),
    Fault(
        name="redis-latency",
        what="delays every reply of a Redis by 200 ms",
        undo="replies come at once",
        load=_HITS,
        setup=Setup(redis="delayed"),
        # What a late state Redis says is the limit.
        checks=(misses_go_on, partial(breaker_opens, parts=("cache",))),
    ),
    Fault(
        name="failover",
        what="kills the primary of a Redis under three Sentinels, while tenants exceed their limit",
        undo="the killed server comes back as a replica",
        hold=SETTLED,
        load=LoadSpec(rate=150.0, repeated=0.6, hasty=0.0),
        setup=Setup(redis="sentinel", limited=1),
        checks=(
            limits_hold,
            _cached_misses_go_on,
            partial(breaker_opens, parts=("cache",)),
        ),
    ),
    *retries.FAULTS,
    *power_cut.FAULTS,
    *batch.FAULTS,
    *alerts.FAULTS,
    *bulk_jobs.FAULTS,
    *changes.FAULTS,
    *namespaces.FAULTS,
    *fleet.FAULTS,
    *containers.FAULTS,
    *pods.FAULTS,
)
"""By name, in the order in which they run; those with equal setups share a running system."""
