"""Writes the report of a run: a page of Markdown, its plots, and data beside it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any  # Any: matplotlib's types

import msgspec
import numpy as np

from loadtests.drawing import finish_axes, new_figure, save_figure
from loadtests.scenarios.analysis import (
    Bools,
    Floats,
    PhaseFigures,
    Run,
    Verdict,
    per_second,
    percentile_per_second,
)
from loadtests.scenarios.catalogue import SCENARIOS
from loadtests.scenarios.local_system import GENERATOR, cores_used

_PHASES = (
    *("phase", "due/s", "sent/s", "in time/s", "p50 ms", "p90 ms", "p99 ms", "p99.9 ms"),
    *("hits", "cost of a million", "answers"),
)
_WIDTH, _HEIGHT = 10.0, 3.6
_NINES = ("50 %", "90 %", "99 %", "99.9 %", "99.99 %")


def write_report(
    run: Run, phases: Sequence[PhaseFigures], judged: Sequence[Verdict], folder: Path
) -> Path:
    """Write `report.md`, `plots.svg` and `result.json`; return the first."""
    folder.mkdir(parents=True, exist_ok=True)
    result = msgspec.structs.asdict(run) | {"phases": phases, "verdicts": judged}
    del result["samples"], result["ideal"]
    (folder / "result.json").write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
    save_figure(draw(run, phases), folder / "plots.svg")
    path = folder / "report.md"
    path.write_text(page(run, phases, judged), encoding="utf-8")
    return path


def page(run: Run, phases: Sequence[PhaseFigures], judged: Sequence[Verdict]) -> str:
    """Return the report as Markdown."""
    lines = [f"# Load test: {run.scenario}", "", SCENARIOS[run.scenario].question, ""]
    holds = [(v.what, v.found, v.wanted, "holds" if v.holds else "FAILS") for v in judged]
    lines += _table(("criterion", "found", "wanted", ""), holds)
    lines.append(f"Latencies are of answers with 200; in time is within {run.deadline:g} s.\n")
    lines += _table(_PHASES, _phase_rows(phases))
    lines += ["![plots](plots.svg)", ""]
    if run.marks:
        lines += _table(("s", "what"), [(f"{mark.at:.1f}", mark.what) for mark in run.marks])
    lines += _table(("what was run", ""), _facts(run))
    return "\n".join(lines)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows), ""]


def _facts(run: Run) -> Iterator[tuple[str, str]]:
    """Yield the settings that the figures depend on."""
    yield "command", run.command
    yield "address", run.target
    yield "machine of the generator", f"{run.machine.headline}, {run.machine.memory_gib} GiB"
    yield "generator", run.generator
    yield "requests under way", f"{run.users} at most; {run.dropped:,} were due and not sent"
    repeats = f"Zipf, exponent {run.zipf:g}" if run.zipf else "no text twice"
    kinds = ", ".join(run.requests)
    yield "requests", f"{repeats}; {run.tenants} tenants; seed {run.seed}; {kinds}"
    if run.capacity is not None:
        waiting = f"32 callers who wait reach {run.capacity.closed_loop:.0f}/s"
        yield "capacity, found first", f"{run.capacity.rate:.0f}/s; {waiting}"


def _phase_rows(phases: Sequence[PhaseFigures]) -> Iterator[tuple[str, ...]]:
    for phase in phases:
        seconds = phase.end - phase.begin
        answers = ", ".join(f"{name}: {count:,}" for name, count in phase.codes.items())
        if (cores := phase.cores.get(GENERATOR)) is not None:
            answers += f"; generator {cores:.2f} cores"
        rates = (phase.due / seconds, phase.sent / seconds, phase.goodput)
        yield (
            phase.name,
            *(f"{rate:,.0f}" for rate in rates),
            *(f"{s * 1e3:,.1f}" for s in (phase.p50, phase.p90, phase.p99, phase.p999)),
            f"{phase.hit_ratio:.0%}",
            "" if phase.cost_per_million is None else f"{phase.cost_per_million:.3g}",
            answers,
        )


def draw(run: Run, phases: Sequence[PhaseFigures]) -> Any:
    """Return a figure with a panel for each question about a run."""
    panels: dict[str, Callable[[Any], None]] = {
        "Throughput, requests a second": lambda axes: _throughput(axes, run),
        "Latency of answers with 200, ms": lambda axes: _latency(axes, run),
        "Answers a second by code": lambda axes: _codes(axes, run),
        "Hit ratio": lambda axes: _hits(axes, run),
        f"Cost of a million answers at {run.price:g} an hour": lambda axes: _cost(axes, run),
    }
    if len(run.use) > 2:
        panels["Cores in use"] = lambda axes: _cores(axes, run)
        panels["Memory, MiB"] = lambda axes: _memory(axes, run)
    over_time = len(panels)
    panels["Percentiles of latency, ms"] = lambda axes: _percentiles(axes, run)
    if run.scenario == "sweep":
        panels["By offered rate, ms"] = lambda axes: _by_rate(axes, phases)
    figure = new_figure("load", width=_WIDTH, height=_HEIGHT * len(panels))
    for number, (axes, (title, panel)) in enumerate(
        zip(figure.subplots(len(panels), 1), panels.items(), strict=True)
    ):
        panel(axes)
        if number < over_time:
            _mark_time(axes, run)
        finish_axes(axes, "seconds of the load" if number < over_time else "", "")
        axes.set_title(title, loc="left", pad=18)
    return figure


def _mark_time(axes: Any, run: Run) -> None:
    """Show the phases and the marks of a run."""
    place = axes.get_xaxis_transform()
    axes.set_xlim(0, max(1, int(run.plan.duration)))
    for phase, begin, _ in run.plan.spans():
        axes.axvline(begin, color="0.85", zorder=0)
        axes.text(begin, 1.01, f" {phase.name}", transform=place, fontsize="x-small", color="0.3")
    for mark in run.marks:
        color = "C3" if mark.what.endswith("killed") else "C2"
        axes.axvline(mark.at, color=color, linestyle="--", linewidth=1)
        axes.text(mark.at, 0.02, f" {mark.what}", transform=place, fontsize="x-small")


def _throughput(axes: Any, run: Run) -> None:
    seconds, samples = run.plan.duration, run.samples
    spans = list(run.plan.spans())
    axes.stairs(
        [phase.rate for phase, _, _ in spans],
        [0.0, *(end for _, _, end in spans)],
        color="k",
        linestyle="--",
        label="due",
    )
    for name, times in {
        "sent": samples.sent,
        "answered in time": samples.ended[samples.good(run.deadline)],
        "refused, with Retry-After": samples.ended[samples.refused],
    }.items():
        _step(axes, per_second(times, seconds), name)
    if run.capacity is not None:
        axes.axhline(run.capacity.rate, color="C2", linestyle=":", label="capacity")


def _latency(axes: Any, run: Run) -> None:
    answered = run.samples.select(run.samples.status == 200)
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("longest", 1.0)):
        _step(axes, percentile_per_second(answered, share, run.plan.duration) * 1e3, name)
    refused = run.samples.select(run.samples.refused)
    if len(refused):
        values = percentile_per_second(refused, 0.99, run.plan.duration) * 1e3
        _step(axes, values, "p99 of refusals")
    axes.axhline(run.deadline * 1e3, color="0.5", linestyle=":", label="deadline")
    axes.set_yscale("log")


def _codes(axes: Any, run: Run) -> None:
    for name, chosen in run.samples.codes().items():
        _step(axes, per_second(run.samples.ended[chosen], run.plan.duration), name)


def _hits(axes: Any, run: Run) -> None:
    samples, answered = run.samples, run.samples.status == 200
    ideal = np.zeros(len(samples), dtype=np.bool_)
    ideal[: len(run.ideal)] = run.ideal[: len(samples)]

    def share(chosen: Bools, of: Bools) -> Floats:
        counts = [per_second(samples.sent[each], run.plan.duration) for each in (chosen, of)]
        found: Floats = np.divide(
            counts[0], counts[1], out=np.full(len(counts[0]), np.nan), where=counts[1] > 0
        )
        return found

    _step(axes, share(samples.hits & answered, answered), "hits")
    _step(axes, share(ideal, samples.sent >= 0), "of a cache that forgets nothing")
    axes.set_ylim(-0.02, 1.02)


def _cost(axes: Any, run: Run) -> None:
    rates = per_second(run.samples.ended[run.samples.good(run.deadline)], run.plan.duration)
    values = np.where(rates > 0, run.price / 3600 * 1e6 / np.maximum(rates, 1), np.nan)
    _step(axes, values, "of answers in time")
    axes.set_yscale("log")


def _cores(axes: Any, run: Run) -> None:
    at = [sample.at for sample in run.use]
    for role in run.use[-1].processor:
        used = [cores_used(run.use, a, b).get(role, 0.0) for a, b in pairwise(at)]
        axes.plot(at[1:], used, label=role, linewidth=1.2)


def _memory(axes: Any, run: Run) -> None:
    at = [sample.at for sample in run.use]
    for role in run.use[-1].memory:
        axes.plot(at, [sample.memory.get(role, np.nan) for sample in run.use], label=role)
    axes.set_yscale("log")


def _percentiles(axes: Any, run: Run) -> None:
    answered = run.samples.select(run.samples.status == 200)
    parts = {phase.name: answered.between(a, b) for phase, a, b in run.plan.spans()}
    parts |= {"all hits": answered.select(answered.hits)}
    for name, part in parts.items():
        ordered = np.sort(part.latency)
        nines = -np.log10(1 - (np.arange(len(ordered)) + 0.5) / max(1, len(ordered)))
        axes.plot(nines, ordered * 1e3, label=f"{name} ({len(ordered):,})", linewidth=1.4)
    axes.set_xticks([-np.log10(0.5), 1, 2, 3, 4], _NINES)
    axes.set_yscale("log")


def _by_rate(axes: Any, phases: Sequence[PhaseFigures]) -> None:
    rates = [phase.due / (phase.end - phase.begin) for phase in phases]
    for name in ("p50", "p90", "p99"):
        axes.plot(rates, [getattr(phase, name) * 1e3 for phase in phases], "o-", label=name)
    axes.set_yscale("log")


def _step(axes: Any, values: Floats, name: str) -> None:
    axes.step(np.arange(len(values)) + 0.5, values, where="mid", label=name, linewidth=1.4)
