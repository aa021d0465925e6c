"""Counts the answers of a run by phase, and judges them by the criteria of its scenario."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import click
import msgspec
import numpy as np
import numpy.typing as npt

from loadtests.scenarios.catalogue import Phase, Plan, Scenario

Answers = npt.NDArray[np.void]
"""Rows of `_ANSWER`, in the order in which requests were sent."""
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
_PERCENTILES = {"p50 ms": 0.5, "p90 ms": 0.9, "p99 ms": 0.99, "p99.9 ms": 0.999}
_CALLERS, _WARM, _WAIT = 32, 2.0, 6.0
_STEPS = tuple(round(0.7 + 0.05 * step, 2) for step in range(9))
_SECONDS = 5.0
_GOOD = 0.99
_QUEUE = 4
"""A queue grows if the median wait of the last second exceeds the deadline divided by this."""
_WINDOW = 3.0


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """The answers of a load, and how well the generator kept up."""

    answers: Answers
    ideal: int
    """Requests that repeat an earlier request; a cache that forgets nothing would answer them."""
    dropped: int
    """Requests that were not sent, because too many requests were in flight when they were due."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What was sent and how it was answered. Without a `capacity`, the caller gave the rate."""

    scenario: Scenario
    plan: Plan
    deadline: float
    capacity: float | None
    sent: Sent


class Verdict(NamedTuple):
    """A criterion, the value that was found, and whether the criterion holds."""

    what: str
    found: str
    wanted: str
    holds: bool


def read_answers(lines: Iterable[str]) -> Answers:
    """Return the answers in lines that `script.js` printed."""
    answers = np.array([tuple(line.split(",")) for line in lines], _ANSWER)
    for name in ("sent", "latency"):
        answers[name] /= 1000
    answers.sort(order="sent")
    return answers


def _between(answers: Answers, begin: float, end: float) -> Answers:
    """Return the answers to requests that were sent between two times."""
    return answers[(answers["sent"] >= begin) & (answers["sent"] < end)]


def _good(answers: Answers, deadline: float) -> Bools:
    """Return a mask of the answers that have status 200 and came within the deadline."""
    found: Bools = (answers["status"] == 200) & (answers["latency"] <= deadline)
    return found


def _hits(answers: Answers) -> int:
    """Return how many answers have status 200 and came entirely from the cache."""
    return int((np.isin(answers["cache"], ("h", "s")) & (answers["status"] == 200)).sum())


def _percentile(answers: Answers, share: float) -> float:
    """Return the latency that a share of the answers did not exceed; 0 without answers."""
    latencies = answers["latency"]
    return float(np.quantile(latencies, share, method="higher")) if len(latencies) else 0.0


def find_capacity(send: Callable[[str, Plan], Answers], deadline: float) -> float:
    """Return the highest rate a second at which 99 % of the requests are answered in time.

    No queue grows at this rate. First measure a closed loop, then try constant rates around its
    rate.
    """
    click.echo(f"the capacity first: {_CALLERS} callers who wait for their answers")
    phase = Phase(name="callers who wait", rate=0.0, duration=_WARM + _WAIT)
    answers = send("closed-loop", Plan(phases=(phase,), callers=_CALLERS))
    ended = (answers["sent"] + answers["latency"])[_good(answers, deadline)]
    reached = max(1.0, float(((ended >= _WARM) & (ended < _WARM + _WAIT)).sum()) / _WAIT)
    click.echo(f"they reach {reached:.0f}/s; now constant rates from {_STEPS[0]:.0%} of that on")
    rates = [reached * step for step in _STEPS]
    plan = Plan(
        phases=tuple(Phase(name=f"{rate:.0f}/s", rate=rate, duration=_SECONDS) for rate in rates)
    )
    found = highest(send("capacity", plan), plan, deadline)
    click.echo(f"the capacity is {found:.0f}/s")
    return found


def highest(answers: Answers, plan: Plan, deadline: float) -> float:
    """Return the highest tried rate below the first rate that was too high.

    If even the lowest rate was too high, return the best goodput.
    """
    sustained, best = 0.0, 0.0
    for phase, begin, end in plan.spans():
        goodput = _goodput(answers, deadline, begin, end)
        waits = _percentile(_between(answers, end - 1.0, end), 0.5)
        if goodput < _GOOD * phase.rate or waits >= deadline / _QUEUE:
            return sustained or max(best, goodput)
        sustained, best = phase.rate, max(best, goodput)
    return sustained


def _goodput(answers: Answers, deadline: float, begin: float, end: float) -> float:
    """Return how many requests a second were sent between two times and answered in time."""
    return float(_good(_between(answers, begin, end), deadline).sum()) / (end - begin)


def figures(run: Run) -> Iterator[dict[str, str]]:
    """Yield the figures of each phase, from the requests that were sent in it.

    Latencies include only answers with status 200.
    """
    for phase, begin, end in run.plan.spans():
        sent = _between(run.sent.answers, begin, end)
        answered = sent[sent["status"] == 200]
        codes = Counter(map(_code, sent["status"].tolist(), sent["retry"].tolist()))
        yield {
            "phase": phase.name,
            "due/s": f"{phase.rate:,.0f}",
            "sent/s": f"{len(sent) / phase.duration:,.0f}",
            "in time/s": f"{_goodput(sent, run.deadline, begin, end):,.0f}",
            **{
                name: f"{_percentile(answered, share) * 1e3:,.1f}"
                for name, share in _PERCENTILES.items()
            },
            "hits": f"{_hits(answered) / max(1, len(answered)):.0%}",
            "answers": ", ".join(f"{name}: {count:,}" for name, count in codes.items()),
        }


def _code(status: int, retry: int) -> str:
    """Return the name of an answer; refusals without `Retry-After` have names of their own."""
    name = str(status) if status else "no answer"
    return f"{name} without Retry-After" if status in _REFUSED and not retry else name


def verdicts(run: Run) -> Iterator[Verdict]:
    """Yield each criterion of the scenario with the value that was found."""
    wanted, answers = run.scenario, run.sent.answers
    spans = [(begin, end) for phase, begin, end in run.plan.spans() if phase.is_judged]
    judged = _between(answers, spans[0][0], spans[-1][1] + _WINDOW)
    refused = np.isin(judged["status"], _REFUSED) & (judged["retry"] == 1)
    wrong = int((~refused & (judged["status"] != 200)).sum())
    # A run without any answer fails.
    errors = wrong / len(judged) if len(judged) else 1.0
    what = f"answers other than 200, 429, and 503 with Retry-After: {wrong:,} of {len(judged):,}"
    yield _at_most(what, errors, wanted.errors)
    what = f"dropped: due, and not sent: {run.sent.dropped:,} of {run.plan.arrivals:,}"
    yield _at_most(what, run.sent.dropped / max(1, run.plan.arrivals), wanted.dropped)
    if wanted.good is not None:
        yield _at_least("answered in time without overload", _calm_goodness(run), wanted.good)
    if wanted.goodput is not None and run.capacity is not None:
        what = "least goodput of an overload over 3 s, of capacity"
        yield _at_least(what, _least_goodput(run) / run.capacity, wanted.goodput)
    if wanted.ideal_hits is not None:
        what = "hits, of those of a cache that forgets nothing"
        yield _at_least(what, _hits(answers) / max(1, run.sent.ideal), wanted.ideal_hits)
    if wanted.drift is not None:
        yield _at_most(
            "p99 of the last fifth, in times that of the first", _drift(run), wanted.drift
        )


def _at_most(what: str, found: float, wanted: float) -> Verdict:
    return Verdict(what, f"{found:.4g}", f"at most {wanted:g}", found <= wanted)


def _at_least(what: str, found: float, wanted: float) -> Verdict:
    return Verdict(what, f"{found:.4g}", f"at least {wanted:g}", found >= wanted)


def _calm_goodness(run: Run) -> float:
    """Return the fraction of requests that were answered in time.

    Requests sent during an overload or its recovery do not count.
    """
    after = -np.inf
    answers = run.sent.answers
    chosen = np.zeros(len(answers), dtype=np.bool_)
    for phase, begin, end in run.plan.spans():
        if phase.is_overload:
            after = end + run.scenario.recovery
        elif phase.is_judged:
            chosen |= (answers["sent"] >= max(begin, after)) & (answers["sent"] < end)
    return float(_good(answers[chosen], run.deadline).sum()) / max(1, int(chosen.sum()))


def _least_goodput(run: Run) -> float:
    """Return the lowest goodput in any window of an overload."""
    in_time = run.sent.answers[_good(run.sent.answers, run.deadline)]
    ended = np.sort(in_time["sent"] + in_time["latency"])
    rates = []
    for _, begin, end in (span for span in run.plan.spans() if span[0].is_overload):
        width = min(_WINDOW, end - begin)
        starts = np.arange(begin, end - width + 1e-9, 0.1)
        counts = np.searchsorted(ended, starts + width) - np.searchsorted(ended, starts)
        rates.append(float(counts.min()) / width)
    return min(rates)


def _drift(run: Run) -> float:
    """Return the p99 of the last fifth of the time, divided by the first fifth's p99."""
    *_, (_, begin, end) = run.plan.spans()
    fifth = (end - begin) / 5
    answered = run.sent.answers[run.sent.answers["status"] == 200]
    first, last = (
        _percentile(_between(answered, at, at + fifth), 0.99) for at in (begin, end - fifth)
    )
    return last / first if first else np.inf
