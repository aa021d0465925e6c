"""Counts the figures of a run by phase, and judges them by the criteria of its scenario."""

from collections.abc import Iterator

import msgspec
import numpy as np

from loadtests.machine import Machine
from loadtests.scenarios.capacity import Capacity
from loadtests.scenarios.catalogue import SCENARIOS, Plan
from loadtests.scenarios.local_system import Mark, UseSample, cores_used
from loadtests.scenarios.samples import Bools, Samples, least_rate, percentile

_WINDOW = 3.0
_FIFTHS = 5


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What was run and measured. `result.json` has all of it but `samples` and `ideal`."""

    scenario: str
    command: str
    target: str
    generator: str
    machine: Machine
    seed: int
    zipf: float
    requests: tuple[str, ...]
    tenants: int
    deadline: float
    price: float
    """Of all machines, an hour."""
    plan: Plan
    capacity: Capacity | None
    dropped: int
    users: int
    use: tuple[UseSample, ...]
    marks: tuple[Mark, ...]
    samples: Samples
    ideal: Bools
    """Which requests came before, in the order of the workload."""


class PhaseFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a phase, by requests that were sent in it; rates a second, latencies in s.

    Latencies are of answers with 200. `cores` are those that each role kept busy.
    """

    name: str
    begin: float
    end: float
    due: int
    sent: int
    goodput: float
    codes: dict[str, int]
    p50: float
    p90: float
    p99: float
    p999: float
    hit_ratio: float
    cost_per_million: float | None
    """Of the machines, for a million answers in time."""
    cores: dict[str, float]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """A criterion, what was found, and whether it holds."""

    what: str
    found: str
    wanted: str
    holds: bool


def figures(run: Run) -> Iterator[PhaseFigures]:
    """Yield the figures of each phase."""
    for phase, begin, end in run.plan.spans():
        sent = run.samples.between(begin, end)
        answered = sent.status == 200
        latencies = sent.latency[answered]
        goodput = float(sent.good(run.deadline).sum()) / phase.duration
        yield PhaseFigures(
            name=phase.name,
            begin=begin,
            end=end,
            due=phase.arrivals,
            sent=len(sent),
            goodput=goodput,
            codes={name: int(chosen.sum()) for name, chosen in sent.codes().items()},
            p50=percentile(latencies, 0.5),
            p90=percentile(latencies, 0.9),
            p99=percentile(latencies, 0.99),
            p999=percentile(latencies, 0.999),
            hit_ratio=_share(sent.hits & answered, answered),
            cost_per_million=run.price / 3600 / goodput * 1e6 if goodput else None,
            cores=cores_used(run.use, begin, end),
        )


def verdicts(run: Run) -> Iterator[Verdict]:
    """Yield each criterion of the scenario with what was found."""
    criteria = SCENARIOS[run.scenario].criteria
    spans = [(begin, end) for phase, begin, end in run.plan.spans() if phase.is_judged]
    judged = run.samples.between(spans[0][0], spans[-1][1] + _WINDOW)
    errors = _share(judged.errors, judged.status >= 0)
    yield Verdict(
        what="answers other than 200, 429, and 503 with Retry-After",
        found=f"{errors:.2%} ({int(judged.errors.sum()):,} of {len(judged):,})",
        wanted=f"at most {criteria.errors:.2%}",
        holds=errors <= criteria.errors and len(judged) > 0,
    )
    dropped = run.dropped / max(1, run.plan.arrivals)
    yield Verdict(
        what="dropped: due, and not sent",
        found=f"{dropped:.2%} ({run.dropped:,} of {run.plan.arrivals:,})",
        wanted=f"at most {criteria.dropped:.2%}",
        holds=dropped <= criteria.dropped,
    )
    if criteria.good is not None:
        good = _share(*_calm(run, criteria.recovery))
        yield _at_least("answered in time without overload", good, criteria.good)
    if criteria.goodput is not None and run.capacity is not None:
        least = _least_goodput(run) / run.capacity.rate
        what = "least goodput of an overload over 3 s, of capacity"
        yield _at_least(what, least, criteria.goodput)
    if criteria.ideal_hits is not None:
        hits = run.samples.hits & (run.samples.status == 200)
        found = _share(hits, run.ideal[: len(run.samples)])
        what = "hits, of those of a cache that forgets nothing"
        yield _at_least(what, found, criteria.ideal_hits)
    if criteria.drift is not None:
        times = _drift(run)
        yield Verdict(
            what="p99 of the last fifth, in times that of the first",
            found=f"{times:.2f}",
            wanted=f"at most {criteria.drift:g}",
            holds=times <= criteria.drift,
        )


def _at_least(what: str, found: float, wanted: float) -> Verdict:
    return Verdict(
        what=what, found=f"{found:.3f}", wanted=f"at least {wanted:g}", holds=found >= wanted
    )


def _share(chosen: Bools, of: Bools) -> float:
    return float(chosen.sum()) / max(1, int(of.sum()))


def _calm(run: Run, recovery: float) -> tuple[Bools, Bools]:
    """Return which answers were in time, of which: those of no overload, nor soon after one."""
    samples, after = run.samples, -np.inf
    chosen = np.zeros(len(samples), dtype=np.bool_)
    for phase, begin, end in run.plan.spans():
        if phase.is_overload:
            after = end + recovery
        elif phase.is_judged:
            chosen |= (samples.sent >= max(begin, after)) & (samples.sent < end)
    return samples.good(run.deadline) & chosen, chosen


def _least_goodput(run: Run) -> float:
    times = run.samples.ended[run.samples.good(run.deadline)]
    spans = [(begin, end) for phase, begin, end in run.plan.spans() if phase.is_overload]
    return min(least_rate(times, begin, end, _WINDOW) for begin, end in spans)


def _drift(run: Run) -> float:
    _, begin, end = list(run.plan.spans())[-1]
    fifth = (end - begin) / _FIFTHS
    first, last = (run.samples.between(at, at + fifth) for at in (begin, end - fifth))
    latencies = [percentile(part.latency[part.status == 200], 0.99) for part in (first, last)]
    return latencies[1] / latencies[0] if latencies[0] else np.inf
