"""Writes the report of a run: a Markdown page, its plots, and its data."""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any  # Any: matplotlib's types, and figures of several types

import msgspec
import numpy as np

from loadtests.drawing import finish_axes, new_figure, save_figure
from loadtests.scenarios.analysis import (
    Floats,
    Run,
    Verdict,
    figures,
    good,
    percentile_per_second,
    refused,
    verdicts,
)
from loadtests.scenarios.catalogue import SCENARIOS
from loadtests.scenarios.system import GENERATOR, cores_used

_PHASES = (
    *("phase", "due/s", "sent/s", "in time/s", "p50 ms", "p90 ms", "p99 ms", "p99.9 ms"),
    *("hits", "cost of a million", "answers"),
)


def write_report(run: Run) -> tuple[Path, bool]:
    """Write `report.md`, `plots.svg` and `result.json`.

    Return the path of `report.md`, and whether all criteria hold.
    """
    folder, phases, judged = run.options.folder, list(figures(run)), list(verdicts(run))
    folder.mkdir(parents=True, exist_ok=True)
    result = msgspec.structs.asdict(run) | {"phases": phases, "verdicts": judged}
    del result["answers"]
    encoded = msgspec.json.encode(result, enc_hook=str)
    (folder / "result.json").write_bytes(msgspec.json.format(encoded) + b"\n")
    save_figure(_draw(run), folder / "plots.svg")
    path = folder / "report.md"
    path.write_text(_page(run, phases, judged), encoding="utf-8")
    return path, all(verdict.holds for verdict in judged)


def _page(run: Run, phases: Sequence[dict[str, Any]], judged: Sequence[Verdict]) -> str:
    scenario = run.options.scenario
    lines = [f"# Load test: {scenario}", "", SCENARIOS[scenario].question, ""]
    holds = [(v.what, v.found, v.wanted, "holds" if v.holds else "FAILS") for v in judged]
    lines += _table(("criterion", "found", "wanted", ""), holds)
    deadline = run.options.deadline
    lines.append(f"Latencies are of answers with 200; in time is within {deadline:g} s.\n")
    lines += _table(_PHASES, map(_phase_row, phases))
    lines += ["![plots](plots.svg)", ""]
    if run.marks:
        lines += _table(("s", "what"), [(f"{mark.at:.1f}", mark.what) for mark in run.marks])
    lines += _table(("what was run", ""), run.facts.items())
    return "\n".join(lines)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows), ""]


def _phase_row(phase: dict[str, Any]) -> tuple[str, ...]:
    seconds = phase["end"] - phase["begin"]
    answers = ", ".join(f"{name}: {count:,}" for name, count in phase["codes"].items())
    if (cores := phase["cores"].get(GENERATOR)) is not None:
        answers += f"; generator {cores:.2f} cores"
    rates = (phase["due"] / seconds, phase["sent"] / seconds, phase["goodput"])
    cost = phase["cost_per_million"]
    return (
        phase["name"],
        *(f"{rate:,.0f}" for rate in rates),
        *(f"{phase[name] * 1e3:,.1f}" for name in ("p50", "p90", "p99", "p999")),
        f"{phase['hit_ratio']:.0%}",
        "" if cost is None else f"{cost:.3g}",
        answers,
    )


def _draw(run: Run) -> Any:
    """Return a figure with a panel for each question about the course of a run."""
    panels: dict[str, Callable[[Any, Run], None]] = {
        "Throughput, requests a second": _throughput,
        "Latency of answers with 200, ms": _latency,
    }
    if len(run.use) > 2:
        panels |= {"Cores in use": _cores, "Memory, MiB": _memory}
    figure = new_figure("load", width=10.0, height=3.6 * len(panels))
    for axes, (title, panel) in zip(figure.subplots(len(panels)), panels.items(), strict=True):
        panel(axes, run)
        place = axes.get_xaxis_transform()
        axes.set_xlim(0, max(1, int(run.plan.duration)))
        for phase, begin, _ in run.plan.spans():
            axes.axvline(begin, color="0.85", zorder=0)
            axes.text(begin, 1.01, f" {phase.name}", transform=place, fontsize="x-small")
        for mark in run.marks:
            color = "C3" if mark.what.endswith("killed") else "C2"
            axes.axvline(mark.at, color=color, linestyle="--", linewidth=1)
            axes.text(mark.at, 0.02, f" {mark.what}", transform=place, fontsize="x-small")
        finish_axes(axes, "seconds of the load", "")
        axes.set_title(title, loc="left", pad=18)
    return figure


def _throughput(axes: Any, run: Run) -> None:
    spans = list(run.plan.spans())
    edges = [0.0, *(end for _, _, end in spans)]
    rates = [phase.rate for phase, _, _ in spans]
    axes.stairs(rates, edges, color="k", linestyle="--", label="due")
    ended = run.answers["sent"] + run.answers["latency"]
    for name, times in {
        "sent": run.answers["sent"],
        "answered in time": ended[good(run.answers, run.options.deadline)],
        "refused, with Retry-After": ended[refused(run.answers)],
    }.items():
        # In whole seconds: the last part of a second would look like a fall.
        _step(axes, np.histogram(times, bins=np.arange(_seconds(run) + 1))[0], name)
    if run.capacity is not None:
        axes.axhline(run.capacity.rate, color="C2", linestyle=":", label="capacity")


def _latency(axes: Any, run: Run) -> None:
    answered = run.answers[run.answers["status"] == 200]
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("longest", 1.0)):
        _step(axes, percentile_per_second(answered, share, _seconds(run)) * 1e3, name)
    refusals = run.answers[refused(run.answers)]
    values = percentile_per_second(refusals, 0.99, _seconds(run)) * 1e3
    _step(axes, values, "p99 of refusals")
    axes.axhline(run.options.deadline * 1e3, color="0.5", linestyle=":", label="deadline")
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


def _seconds(run: Run) -> int:
    return max(1, int(run.plan.duration))


def _step(axes: Any, values: Floats, name: str) -> None:
    axes.step(np.arange(len(values)) + 0.5, values, where="mid", label=name, linewidth=1.4)
