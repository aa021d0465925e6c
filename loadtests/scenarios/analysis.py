"""Counts the figures of a run by phase, and judges them by the criteria of its scenario."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Self

import click
import msgspec
import numpy as np
import numpy.typing as npt

from loadtests.machine import Machine
from loadtests.scenarios.catalogue import SCENARIOS, Phase, Plan
from loadtests.scenarios.local_system import Mark, UseSample, cores_used

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

_REFUSED = (429, 503)


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    """The answers of a run, in the order in which requests were sent.

    `sent` counts seconds from the begin of the load, `latency` seconds from when a request was to
    be sent. A request without an answer has status 0.
    """

    began: float
    """Seconds since 1970."""
    sent: Floats
    latency: Floats
    status: Ints
    template: Ints
    tenant: Ints
    cache: tuple[str, ...]
    """The cache's answer: `h`it, `p`artly, `s`tale, `m`iss, or empty."""
    has_retry: Bools
    """Whether the answer had `Retry-After`."""

    @classmethod
    def parse(cls, lines: Iterable[str]) -> Self:
        """Return the answers of lines that `script.js` printed."""
        began = 0.0
        rows: list[list[str]] = []
        for line in lines:
            fields = line.rstrip("\n").split(",")
            if fields[0] == "began":
                began = float(fields[1]) / 1000
            elif len(fields) == 7:
                rows.append(fields)
        rows.sort(key=lambda row: int(row[0]))
        columns = list(zip(*rows, strict=True)) if rows else [()] * 7
        sent, latency, status, template, tenant, cache, retry = columns
        return cls(
            began=began,
            sent=np.array(sent, dtype=np.float64) / 1000 - began,
            latency=np.array(latency, dtype=np.float64) / 1000,
            status=np.array(status, dtype=np.int64),
            template=np.array(template, dtype=np.int64),
            tenant=np.array(tenant, dtype=np.int64),
            cache=tuple(cache),
            has_retry=np.array(retry, dtype=np.int64) == 1,
        )

    def __len__(self) -> int:
        return len(self.sent)

    def select(self, chosen: Bools) -> "Samples":
        """Return some of the answers."""
        return Samples(
            began=self.began,
            sent=self.sent[chosen],
            latency=self.latency[chosen],
            status=self.status[chosen],
            template=self.template[chosen],
            tenant=self.tenant[chosen],
            cache=tuple(self.cache[index] for index in np.flatnonzero(chosen)),
            has_retry=self.has_retry[chosen],
        )

    def between(self, begin: float, end: float) -> "Samples":
        """Return the answers to requests that were sent in a span of time."""
        return self.select((self.sent >= begin) & (self.sent < end))

    @property
    def ended(self) -> Floats:
        """When each answer was there."""
        return self.sent + self.latency

    def good(self, deadline: float) -> Bools:
        """Return which answers are 200 within the deadline."""
        found: Bools = (self.status == 200) & (self.latency <= deadline)
        return found

    @property
    def refused(self) -> Bools:
        """Which answers are 429 or 503 with `Retry-After`."""
        return np.isin(self.status, _REFUSED) & self.has_retry

    @property
    def errors(self) -> Bools:
        """Which answers are neither 200 nor a refusal."""
        found: Bools = (self.status != 200) & ~self.refused
        return found

    @property
    def hits(self) -> Bools:
        """Which answers the cache had as a whole."""
        return np.array([one in "hs" and one != "" for one in self.cache], dtype=np.bool_)

    def codes(self) -> Mapping[str, Bools]:
        """Return which answers have each code; refusals without `Retry-After` are apart."""
        found: dict[str, Bools] = {}
        for status in sorted(set(self.status.tolist())):
            chosen = self.status == status
            name = str(status) if status else "no answer"
            if status not in _REFUSED:
                found[name] = chosen
                continue
            found[name] = chosen & self.has_retry
            found[f"{name} without Retry-After"] = chosen & ~self.has_retry
        return {name: chosen for name, chosen in found.items() if chosen.any()}


def per_second(times: Floats, seconds: float) -> Floats:
    """Return how many of `times` are in each whole second; a part of one would look like a loss."""
    edges = np.arange(max(1, int(seconds)) + 1, dtype=np.float64)
    return np.histogram(times, bins=edges)[0].astype(np.float64)


def percentile(latencies: Floats, share: float) -> float:
    """Return the latency that `share` of the answers did not exceed, 0 if there is none."""
    return float(np.quantile(latencies, share, method="higher")) if len(latencies) else 0.0


def percentile_per_second(samples: Samples, share: float, seconds: float) -> Floats:
    """Return a percentile of the latency of what was sent in each second, or NaN."""
    order = np.argsort(samples.sent, kind="stable")
    cuts = np.searchsorted(samples.sent[order], np.arange(max(1, int(seconds)) + 1))
    parts = (samples.latency[order][a:b] for a, b in pairwise(cuts))
    return np.array([percentile(part, share) if len(part) else np.nan for part in parts])


def least_rate(times: Floats, begin: float, end: float, window: float) -> float:
    """Return the least rate of events over any window that lies between two times."""
    width = min(window, end - begin)
    starts = np.arange(begin, end - width + 1e-9, 0.1)
    order = np.sort(times)
    counts = np.searchsorted(order, starts + width) - np.searchsorted(order, starts)
    return float(counts.min()) / width


_CALLERS, _WARM, _WAIT = 32, 2.0, 6.0
_STEPS = tuple(round(0.7 + 0.05 * step, 2) for step in range(9))
_SECONDS = 5.0
_GOOD = 0.99
_QUEUE = 4
"""A queue grows if the median wait of the last second exceeds the deadline divided by this."""


class CapacityStep(msgspec.Struct, frozen=True, kw_only=True):
    """A rate that was tried, and the goodput at it."""

    rate: float
    goodput: float
    is_sustained: bool


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """The highest rate a second at which 99 % were answered in time, and no queue grew."""

    rate: float
    closed_loop: float
    """What 32 callers reached, each of whom waits for its answer."""
    steps: tuple[CapacityStep, ...]


def find_capacity(send: Callable[[str, Plan], Samples], deadline: float) -> Capacity:
    """Return the capacity: measure a closed loop, then try constant rates around its rate."""
    click.echo(f"the capacity first: {_CALLERS} callers who wait for their answers")
    phase = Phase(name="callers who wait", rate=0.0, duration=_WARM + _WAIT)
    samples = send("closed-loop", Plan(phases=(phase,), callers=_CALLERS))
    good = samples.ended[samples.good(deadline)]
    reached = max(1.0, float(((good >= _WARM) & (good < _WARM + _WAIT)).sum()) / _WAIT)
    click.echo(f"they reach {reached:.0f}/s; now constant rates from {_STEPS[0]:.0%} of that on")
    plan = Plan(
        phases=tuple(
            Phase(name=f"{step:.0%}", rate=reached * step, duration=_SECONDS) for step in _STEPS
        )
    )
    samples = send("capacity", plan)
    steps = tuple(
        step_of(samples, phase.rate, begin, end, deadline) for phase, begin, end in plan.spans()
    )
    found = Capacity(rate=highest(steps), closed_loop=reached, steps=steps)
    click.echo(f"the capacity is {found.rate:.0f}/s")
    return found


def highest(steps: Sequence[CapacityStep]) -> float:
    """Return the last rate before the first that was not sustained, or else the best goodput."""
    sustained = 0.0
    for step in steps:
        if not step.is_sustained:
            break
        sustained = step.rate
    return sustained or max(step.goodput for step in steps)


def step_of(
    samples: Samples, rate: float, begin: float, end: float, deadline: float
) -> CapacityStep:
    """Return how a rate went from `begin` to `end`."""
    sent, last = samples.between(begin, end), samples.between(end - 1.0, end)
    good = float(sent.good(deadline).sum())
    waited = percentile(last.latency, 0.5)
    enough = good >= _GOOD * rate * (end - begin) and waited < deadline / _QUEUE
    return CapacityStep(rate=rate, goodput=good / (end - begin), is_sustained=enough)


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
    """Return which answers were in time, and which count: no overload, nor soon after one."""
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
