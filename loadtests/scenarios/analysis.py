"""Counts the answers of a run by phase, and judges them by the criteria of its scenario."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any  # Any: figures have several types

import click
import msgspec
import numpy as np
import numpy.typing as npt

from loadtests.scenarios.catalogue import SCENARIOS, Options, Phase, Plan
from loadtests.scenarios.system import Mark, UseSample, cores_used

Answers = npt.NDArray[np.void]
"""Rows of `_ANSWER`, in the order in which requests were sent."""
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
_ANSWER = np.dtype(
    [
        ("sent", "f8"),  # seconds since the start of the load
        ("latency", "f8"),  # seconds since the request was due
        ("status", "i4"),  # 0 if there was no answer
        ("kind", "i4"),
        ("tenant", "i4"),
        ("cache", "U1"),  # `h`it, `p`artly, `s`tale, `m`iss, or empty
        ("retry", "i4"),  # 1 if there was a `Retry-After`
    ]
)
_REFUSED = (429, 503)
_CALLERS, _WARM, _WAIT = 32, 2.0, 6.0
_STEPS = tuple(round(0.7 + 0.05 * step, 2) for step in range(9))
_SECONDS = 5.0
_GOOD = 0.99
_QUEUE = 4
"""A queue grows if the median wait of the last second exceeds the deadline divided by this."""
_WINDOW = 3.0


def read_answers(lines: Iterable[str]) -> Answers:
    """Return the answers in lines that `script.js` printed."""
    answers = np.array([tuple(line.split(",")) for line in lines], _ANSWER)
    for name in ("sent", "latency"):
        answers[name] /= 1000
    answers.sort(order="sent")
    return answers


def between(answers: Answers, begin: float, end: float) -> Answers:
    """Return the answers to requests that were sent between two times."""
    return answers[(answers["sent"] >= begin) & (answers["sent"] < end)]


def good(answers: Answers, deadline: float) -> Bools:
    """Return a mask of the answers that have status 200 and came within the deadline."""
    found: Bools = (answers["status"] == 200) & (answers["latency"] <= deadline)
    return found


def refused(answers: Answers) -> Bools:
    """Return a mask of the answers that have status 429 or 503 and a `Retry-After`."""
    found: Bools = np.isin(answers["status"], _REFUSED) & (answers["retry"] == 1)
    return found


def hits(answers: Answers) -> Bools:
    """Return a mask of the answers that have status 200 and came entirely from the cache."""
    found: Bools = np.isin(answers["cache"], ("h", "s")) & (answers["status"] == 200)
    return found


def percentile(latencies: Floats, share: float) -> float:
    """Return the latency that a share of the answers did not exceed; 0 without answers."""
    return float(np.quantile(latencies, share, method="higher")) if len(latencies) else 0.0


def percentile_per_second(answers: Answers, share: float, seconds: int) -> Floats:
    """Return a percentile of the latency for each second in which requests were sent.

    An answer counts in the second in which its request was sent. A second without requests has NaN.
    """
    cuts = np.searchsorted(answers["sent"], np.arange(seconds + 1))
    parts = (answers["latency"][a:b] for a, b in pairwise(cuts))
    return np.array([percentile(part, share) if len(part) else np.nan for part in parts])


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """The highest rate a second at which 99 % of the requests are answered in time.

    No queue grows at this rate.
    """

    rate: float
    closed_loop: float
    """The rate of 32 callers who each wait for an answer before they send again."""


def find_capacity(send: Callable[[str, Plan], Answers], deadline: float) -> Capacity:
    """Return the capacity: measure a closed loop, then try constant rates around its rate."""
    click.echo(f"the capacity first: {_CALLERS} callers who wait for their answers")
    phase = Phase(name="callers who wait", rate=0.0, duration=_WARM + _WAIT)
    answers = send("closed-loop", Plan(phases=(phase,), callers=_CALLERS))
    ended = (answers["sent"] + answers["latency"])[good(answers, deadline)]
    reached = max(1.0, float(((ended >= _WARM) & (ended < _WARM + _WAIT)).sum()) / _WAIT)
    click.echo(f"they reach {reached:.0f}/s; now constant rates from {_STEPS[0]:.0%} of that on")
    rates = [reached * step for step in _STEPS]
    plan = Plan(
        phases=tuple(Phase(name=f"{rate:.0f}/s", rate=rate, duration=_SECONDS) for rate in rates)
    )
    found = Capacity(rate=highest(send("capacity", plan), plan, deadline), closed_loop=reached)
    click.echo(f"the capacity is {found.rate:.0f}/s")
    return found


def highest(answers: Answers, plan: Plan, deadline: float) -> float:
    """Return the highest tried rate below the first rate that was too high.

    If even the lowest rate was too high, return the best goodput.
    """
    sustained, best = 0.0, 0.0
    for phase, begin, end in plan.spans():
        sent, last = between(answers, begin, end), between(answers, end - 1.0, end)
        goodput = float(good(sent, deadline).sum()) / phase.duration
        if goodput < _GOOD * phase.rate or percentile(last["latency"], 0.5) >= deadline / _QUEUE:
            return sustained or max(best, goodput)
        sustained, best = phase.rate, max(best, goodput)
    return sustained


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The settings and the answers of a run. `facts` are settings on which the figures depend."""

    options: Options
    facts: dict[str, str]
    plan: Plan
    capacity: Capacity | None
    answers: Answers
    ideal: int
    dropped: int
    use: list[UseSample]
    marks: list[Mark]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """A criterion, the value that was found, and whether the criterion holds."""

    what: str
    found: str
    wanted: str
    holds: bool


def figures(run: Run) -> Iterator[dict[str, Any]]:
    """Yield the figures of each phase, from the requests that were sent in it.

    Rates are per second. Latencies are in seconds, and include only answers with status 200. The
    cost is what the machines cost during a million answers that come in time. `cores` says how many
    cores each role kept busy.
    """
    for phase, begin, end in run.plan.spans():
        sent = between(run.answers, begin, end)
        answered = sent[sent["status"] == 200]
        goodput = float(good(sent, run.options.deadline).sum()) / phase.duration
        shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
        yield {
            "name": phase.name,
            "begin": begin,
            "end": end,
            "due": phase.arrivals,
            "sent": len(sent),
            "goodput": goodput,
            "codes": dict(Counter(map(_code, sent["status"].tolist(), sent["retry"].tolist()))),
            **{name: percentile(answered["latency"], share) for name, share in shares.items()},
            "hit_ratio": float(hits(answered).sum()) / max(1, len(answered)),
            "cost_per_million": run.options.price / 3600 / goodput * 1e6 if goodput else None,
            "cores": cores_used(run.use, begin, end),
        }


def _code(status: int, retry: int) -> str:
    """Return the name of an answer; refusals without `Retry-After` have names of their own."""
    name = str(status) if status else "no answer"
    return f"{name} without Retry-After" if status in _REFUSED and not retry else name


def verdicts(run: Run) -> Iterator[Verdict]:
    """Yield each criterion of the scenario with the value that was found."""
    wanted = SCENARIOS[run.options.scenario]
    spans = [(begin, end) for phase, begin, end in run.plan.spans() if phase.is_judged]
    judged = between(run.answers, spans[0][0], spans[-1][1] + _WINDOW)
    wrong = int((~refused(judged) & (judged["status"] != 200)).sum())
    # A run without any answer fails.
    errors = wrong / len(judged) if len(judged) else 1.0
    what = f"answers other than 200, 429, and 503 with Retry-After: {wrong:,} of {len(judged):,}"
    yield _at_most(what, errors, wanted.errors)
    what = f"dropped: due, and not sent: {run.dropped:,} of {run.plan.arrivals:,}"
    yield _at_most(what, run.dropped / max(1, run.plan.arrivals), wanted.dropped)
    if wanted.good is not None:
        found = _calm_goodness(run, wanted.recovery)
        yield _at_least("answered in time without overload", found, wanted.good)
    if wanted.goodput is not None and run.capacity is not None:
        found = _least_goodput(run) / run.capacity.rate
        what = "least goodput of an overload over 3 s, of capacity"
        yield _at_least(what, found, wanted.goodput)
    if wanted.ideal_hits is not None:
        found = float(hits(run.answers).sum()) / max(1, run.ideal)
        what = "hits, of those of a cache that forgets nothing"
        yield _at_least(what, found, wanted.ideal_hits)
    if wanted.drift is not None:
        what = "p99 of the last fifth, in times that of the first"
        yield _at_most(what, _drift(run), wanted.drift)


def _at_most(what: str, found: float, wanted: float) -> Verdict:
    holds = found <= wanted
    return Verdict(what=what, found=f"{found:.4g}", wanted=f"at most {wanted:g}", holds=holds)


def _at_least(what: str, found: float, wanted: float) -> Verdict:
    holds = found >= wanted
    return Verdict(what=what, found=f"{found:.4g}", wanted=f"at least {wanted:g}", holds=holds)


def _calm_goodness(run: Run, recovery: float) -> float:
    """Return the fraction of requests that were answered in time.

    Requests sent during an overload or its recovery do not count.
    """
    after = -np.inf
    sent = run.answers["sent"]
    chosen = np.zeros(len(sent), dtype=np.bool_)
    for phase, begin, end in run.plan.spans():
        if phase.is_overload:
            after = end + recovery
        elif phase.is_judged:
            chosen |= (sent >= max(begin, after)) & (sent < end)
    in_time = good(run.answers, run.options.deadline)
    return float((in_time & chosen).sum()) / max(1, int(chosen.sum()))


def _least_goodput(run: Run) -> float:
    """Return the lowest goodput in any window of an overload."""
    in_time = run.answers[good(run.answers, run.options.deadline)]
    ended = np.sort(in_time["sent"] + in_time["latency"])
    rates = []
    for _, begin, end in (span for span in run.plan.spans() if span[0].is_overload):
        width = min(_WINDOW, end - begin)
        starts = np.arange(begin, end - width + 1e-9, 0.1)
        counts = np.searchsorted(ended, starts + width) - np.searchsorted(ended, starts)
        rates.append(float(counts.min()) / width)
    return min(rates)


def _drift(run: Run) -> float:
    _, begin, end = list(run.plan.spans())[-1]
    fifth = (end - begin) / 5
    answered = run.answers[run.answers["status"] == 200]
    first, last = (
        percentile(between(answered, at, at + fifth)["latency"], 0.99)
        for at in (begin, end - fifth)
    )
    return last / first if first else np.inf
