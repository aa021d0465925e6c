"""Draws a run: throughput, latency, percentiles, codes, hits, cost and cores over time."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple  # Any: matplotlib's types

import numpy as np

from loadtests.drawing import finish_axes, new_figure, svg_of
from loadtests.scenarios.analysis import PhaseFigures, Run, cost_per_million
from loadtests.scenarios.processes import cores_used
from loadtests.scenarios.samples import (
    Floats,
    Samples,
    per_second,
    percentile_per_second,
    whole_seconds,
)

_WIDTH, _HEIGHT = 10.0, 3.6
_SECONDS = "seconds of the load"
_NINES = ("50 %", "90 %", "99 %", "99.9 %", "99.99 %")
_OK_COLOR = "#2a9d55"


class Plot(NamedTuple):
    """A drawing, its name as a file, its title, and what it shows."""

    name: str
    title: str
    text: str
    svg: str


def draw_run(run: Run, phases: Sequence[PhaseFigures]) -> Iterator[Plot]:
    """Yield the plots of a run."""
    yield _throughput(run)
    yield _latency(run)
    yield _percentiles(run)
    yield _codes(run)
    yield _hits(run)
    yield _cost(run)
    if run.scenario == "sweep":
        yield _by_rate(phases)
    if len(run.use) > 2:
        yield _cores(run)
        yield _memory(run)


def _throughput(run: Run) -> Plot:
    seconds, samples = run.plan.duration, run.samples
    good = samples.good(run.deadline)
    lines = {
        "offered (due)": _due(run),
        "sent": per_second(samples.sent, seconds),
        "answered in time": per_second(samples.ended[good], seconds),
        "refused, with Retry-After": per_second(samples.ended[samples.refused], seconds),
    }
    axes = _axes("throughput", run)
    for (name, values), style in zip(lines.items(), ("k--", "C0-", "C2-", "C1-"), strict=True):
        axes.step(_times(values), values, style, where="mid", label=name, linewidth=1.4)
    if run.capacity is not None:
        axes.axhline(run.capacity.rate, color="C2", linestyle=":", label="capacity")
    finish_axes(axes, _SECONDS, "requests a second")
    text = "What was due by the plan, what was sent, and what came of it."
    return Plot("throughput", "Throughput, offered and achieved", text, svg_of(axes.figure))


def _latency(run: Run) -> Plot:
    answered = run.samples.select(run.samples.status == 200)
    axes = _axes("latency", run)
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("longest", 1.0)):
        values = percentile_per_second(answered, share, run.plan.duration) * 1e3
        axes.plot(_times(values), values, label=name, linewidth=1.4)
    refused = run.samples.select(run.samples.refused)
    if len(refused):
        values = percentile_per_second(refused, 0.99, run.plan.duration) * 1e3
        axes.plot(_times(values), values, "C1:", label="p99 of refusals")
    axes.axhline(run.deadline * 1e3, color="0.5", linestyle=":", label="deadline")
    axes.set_yscale("log")
    finish_axes(axes, _SECONDS, "ms")
    return Plot(
        "latency",
        "Latency over time",
        "Of answers with 200, by when they were sent.",
        svg_of(axes.figure),
    )


def _percentiles(run: Run) -> Plot:
    axes = _axes("percentiles")
    for name, part in _parts(run).items():
        ordered = np.sort(part.latency)
        nines = -np.log10(1 - (np.arange(len(ordered)) + 0.5) / len(ordered))
        axes.plot(nines, ordered * 1e3, label=f"{name} ({len(ordered):,})", linewidth=1.4)
    axes.set_xticks([-np.log10(0.5), 1, 2, 3, 4], _NINES)
    axes.set_yscale("log")
    finish_axes(axes, "share of the answers", "not above, ms")
    text = "How long a share of the answers with 200 took at most, for each phase, hits and misses."
    return Plot("percentiles", "Percentiles of latency", text, svg_of(axes.figure))


def _parts(run: Run) -> Mapping[str, Samples]:
    answered = run.samples.select(run.samples.status == 200)
    parts = {phase.name: answered.between(a, b) for phase, a, b in run.plan.spans()}
    hits = answered.hits
    if hits.any():
        parts |= {"all hits": answered.select(hits), "all misses": answered.select(~hits)}
    return {name: part for name, part in parts.items() if len(part)}


def _codes(run: Run) -> Plot:
    codes = run.samples.codes()
    values = [per_second(run.samples.ended[chosen], run.plan.duration) for chosen in codes.values()]
    colors = [_OK_COLOR if name == "200" else None for name in codes]
    axes = _axes("codes", run)
    bottom = np.zeros(whole_seconds(run.plan.duration))
    for name, counts, color in zip(codes, values, colors, strict=True):
        axes.bar(_times(counts), counts, bottom=bottom, width=1.0, label=name, color=color)
        bottom = bottom + counts
    finish_axes(axes, _SECONDS, "answers a second")
    return Plot("codes", "Answers by code", "By when they came.", svg_of(axes.figure))


def _hits(run: Run) -> Plot:
    answered, seconds = run.samples.status == 200, run.plan.duration
    ideal = run.ideal[: len(run.samples)]
    axes = _axes("hits", run)
    sent = per_second(run.samples.sent, seconds)
    hits = per_second(run.samples.sent[run.samples.hits & answered], seconds)
    axes.plot(
        _times(hits), _ratio(hits, per_second(run.samples.sent[answered], seconds)), label="hits"
    )
    known = per_second(run.samples.sent[: len(ideal)][ideal], seconds)
    axes.plot(_times(known), _ratio(known, sent), "k--", label="of a cache that forgets nothing")
    axes.set_ylim(-0.02, 1.02)
    finish_axes(axes, _SECONDS, "share of the answers")
    return Plot("hits", "Hit ratio", "Answers that the cache had as a whole.", svg_of(axes.figure))


def _cost(run: Run) -> Plot:
    good = run.samples.ended[run.samples.good(run.deadline)]
    rates = per_second(good, run.plan.duration)
    values = np.array([cost_per_million(run.price, rate) or np.nan for rate in rates])
    axes = _axes("cost", run)
    axes.step(_times(values), values, where="mid", label="of a million answers in time")
    axes.set_yscale("log")
    finish_axes(axes, _SECONDS, "cost")
    text = f"Of machines at {run.price:g} an hour. Unused machines cost as much as busy ones."
    return Plot("cost", "Cost of a million answers", text, svg_of(axes.figure))


def _by_rate(phases: Sequence[PhaseFigures]) -> Plot:
    figure = new_figure("by-rate", width=_WIDTH, height=_HEIGHT)
    first, second = figure.subplots(1, 2)
    rates = [phase.due / (phase.end - phase.begin) for phase in phases]
    for name in ("p50", "p90", "p99"):
        first.plot(rates, [getattr(phase, name) * 1e3 for phase in phases], "o-", label=name)
    first.set_yscale("log")
    finish_axes(first, "offered, requests a second", "ms")
    second.plot(
        rates, [phase.goodput for phase in phases], "C2o-", label="answered in time, a second"
    )
    second.plot(rates, rates, "k:", label="offered")
    finish_axes(second, "offered, requests a second", "")
    return Plot("by-rate", "By rate", "One point for each step of the sweep.", svg_of(figure))


def _cores(run: Run) -> Plot:
    axes = _axes("cores", run)
    at = [sample.at for sample in run.use]
    for role in run.use[-1].processor:
        used = [cores_used(run.use, a, b).get(role, 0.0) for a, b in pairwise(at)]
        if max(used) > 0.02:
            axes.plot(at[1:], used, label=role, linewidth=1.2)
    finish_axes(axes, _SECONDS, "cores")
    text = (
        "That processes kept busy. The generator runs on the same machine where it is a local one."
    )
    return Plot("cores", "Cores in use", text, svg_of(axes.figure))


def _memory(run: Run) -> Plot:
    axes = _axes("memory", run)
    for role in run.use[-1].memory:
        points = [(sample.at, sample.memory.get(role, np.nan)) for sample in run.use]
        axes.plot(*zip(*points, strict=True), label=role, linewidth=1.2)
    axes.set_yscale("log")
    finish_axes(axes, _SECONDS, "MiB")
    return Plot(
        "memory", "Memory", "Resident, shared pages counted in each process.", svg_of(axes.figure)
    )


def _axes(name: str, run: Run | None = None) -> Any:
    """Return the axes of a new figure; those over time have the phases and marks of a run."""
    axes = new_figure(name, width=_WIDTH, height=_HEIGHT).subplots()
    if run is None:
        return axes
    place = axes.get_xaxis_transform()
    axes.set_xlim(0, whole_seconds(run.plan.duration))
    for phase, begin, _ in run.plan.spans():
        axes.axvline(begin, color="0.85", zorder=0)
        axes.text(begin, 1.01, f" {phase.name}", transform=place, fontsize="x-small", color="0.3")
    for mark in run.marks:
        is_loss = mark.what.endswith("killed")
        axes.axvline(mark.at, color="C3" if is_loss else "C2", linestyle="--", linewidth=1)
        if is_loss:
            axes.text(mark.at, 0.02, f" {mark.what}", transform=place, fontsize="x-small")
    return axes


def _due(run: Run) -> Floats:
    seconds = np.arange(whole_seconds(run.plan.duration))
    return np.array([run.plan.phase_at(at + 0.5).rate for at in seconds])


def _times(values: Sequence[float] | Floats) -> Floats:
    return np.arange(len(values), dtype=np.float64) + 0.5


def _ratio(values: Floats, of: Floats) -> Floats:
    found: Floats = np.divide(values, of, out=np.full(len(of), np.nan), where=of > 0)
    return found
