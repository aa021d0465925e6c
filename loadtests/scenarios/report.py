"""Writes the report of a run: one page of HTML that needs nothing else, and data beside it."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path

import msgspec

from loadtests.machine import Machine
from loadtests.scenarios.analysis import PhaseFigures, Run, Verdict
from loadtests.scenarios.capacity import Capacity
from loadtests.scenarios.faults import Mark
from loadtests.scenarios.plots import Plot, draw_run
from loadtests.scenarios.processes import GENERATOR, UseSample

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
  color-scheme: light dark; color: light-dark(#1c2024, #e8eaed);
  background: light-dark(#fff, #16181b) }
h1, h2 { line-height: 1.2 } h2 { margin-top: 2.5rem }
.scroll { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .7rem; border-bottom: 1px solid light-dark(#ddd, #3a3f45);
  text-align: left; vertical-align: top } td.n, th.n { text-align: right }
.yes { color: light-dark(#17692f, #6fd08c) }
.no { color: light-dark(#b3261e, #ff8a80); font-weight: 600 }
figure { margin: 1rem 0; background: #fff; color: #000 } figure svg { width: 100%; height: auto }
code { overflow-wrap: anywhere }
"""
_FIGURES = (
    "due/s",
    "sent/s",
    "in time/s",
    "p50",
    "p90",
    "p99",
    "p99.9",
    "hits",
    "cost of a million",
)


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a run, for programs; its answers are in `answers.csv.gz`."""

    scenario: str
    command: str
    target: str
    generator: str
    machine: Machine
    seed: int
    zipf: float
    requests: tuple[str, ...]
    deadline: float
    price: float
    capacity: Capacity | None
    dropped: int
    phases: tuple[PhaseFigures, ...]
    verdicts: tuple[Verdict, ...]
    marks: tuple[Mark, ...]
    use: tuple[UseSample, ...]


def write_report(
    run: Run, phases: Sequence[PhaseFigures], judged: Sequence[Verdict], folder: Path
) -> Path:
    """Write `report.html`, `result.json`, `answers.csv.gz` and `plots`; return the first's path."""
    folder.mkdir(parents=True, exist_ok=True)
    result = Result(
        scenario=run.scenario,
        command=run.command,
        target=run.target,
        generator=run.generator,
        machine=run.machine,
        seed=run.seed,
        zipf=run.zipf,
        requests=run.mix,
        deadline=run.deadline,
        price=run.price,
        capacity=run.capacity,
        dropped=run.result.dropped,
        phases=tuple(phases),
        verdicts=tuple(judged),
        marks=run.marks,
        use=run.use,
    )
    encoded = msgspec.json.format(msgspec.json.encode(result), indent=1)
    (folder / "result.json").write_bytes(encoded + b"\n")
    run.samples.write(folder / "answers.csv.gz")
    plots = list(draw_run(run, phases))
    (folder / "plots").mkdir(exist_ok=True)
    for plot in plots:
        (folder / "plots" / f"{plot.name}.svg").write_text(plot.svg, encoding="utf-8")
    path = folder / "report.html"
    path.write_text(page(run, phases, judged, plots), encoding="utf-8")
    return path


def page(
    run: Run, phases: Sequence[PhaseFigures], judged: Sequence[Verdict], plots: Iterable[Plot]
) -> str:
    """Return the report as one page of HTML."""
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(run.scenario)}</title>",
        '<meta name=viewport content="width=device-width"><style>',
        _STYLE,
        f"</style><main><h1>Load test: {escape(run.scenario)}</h1><p>{escape(run.question)}</p>",
        _table(("criterion", "found", "wanted", ""), map(_verdict_row, judged)),
        "<h2>By phase</h2>",
        "<p>Requests a second, and the latency of answers with 200 in ms.",
        f"In time is 200 within the deadline of {run.deadline:g} s.</p>",
        _table(("phase", *_FIGURES, "answers"), map(_phase_row, phases), numbers=True),
        *(_figure(plot) for plot in plots),
        "<h2>Moments</h2>" if run.marks else "",
        _table(("s", "what"), ((f"{m.at:.1f}", escape(m.what)) for m in run.marks)),
        "<h2>What was run</h2>",
        _table(("", ""), ((escape(a), f"<code>{escape(b)}</code>") for a, b in facts(run))),
        "<p>Beside this page: <code>result.json</code> has these figures, ",
        "<code>answers.csv.gz</code> a line for every answer.</p></main></html>",
    ]
    return "\n".join(parts)


def facts(run: Run) -> Iterator[tuple[str, str]]:
    """Yield what the figures depend on."""
    machine = run.machine
    yield "command", run.command
    yield "address", run.target
    yield (
        "machine of the generator",
        f"{machine.cpu}, {machine.cores} cores, {machine.memory_gib} GiB",
    )
    yield "interpreter", machine.interpreter
    yield "date, commit", f"{machine.date}, {machine.commit}"
    yield "generator", run.generator
    users = f"{run.result.users} at most; {run.result.dropped:,} were due and not sent"
    yield "requests under way", users
    repeats = f"Zipf, exponent {run.zipf:g}" if run.zipf else "no text twice"
    yield "requests", f"{repeats}; {run.tenants} tenants; seed {run.seed}; {', '.join(run.mix)}"
    if run.capacity is not None:
        found = (
            f"{run.capacity.rate:.0f}/s; 32 callers who wait reach {run.capacity.closed_loop:.0f}/s"
        )
        yield "capacity, found first", found


def text_table(phases: Sequence[PhaseFigures], judged: Sequence[Verdict]) -> str:
    """Return the figures for a terminal, as Markdown."""
    lines = [f"| phase | {' | '.join(_FIGURES)} | answers |", "|---" * (len(_FIGURES) + 2) + "|"]
    lines += [f"| {' | '.join(_phase_row(phase))} |" for phase in phases]
    lines += ["", "| criterion | found | wanted | |", "|---|---|---|---|"]
    lines += [
        f"| {one.what} | {one.found} | {one.wanted} | {'yes' if one.holds else 'NO'} |"
        for one in judged
    ]
    return "\n".join(lines)


def _verdict_row(verdict: Verdict) -> tuple[str, ...]:
    mark = "<span class=yes>holds</span>" if verdict.holds else "<span class=no>fails</span>"
    return escape(verdict.what), escape(verdict.found), escape(verdict.wanted), mark


def _phase_row(phase: PhaseFigures) -> tuple[str, ...]:
    seconds = phase.end - phase.begin
    cost = "" if phase.cost_per_million is None else f"{phase.cost_per_million:.3g}"
    generator = phase.cores.get(GENERATOR)
    share = "" if generator is None else f"; generator {generator:.2f} cores"
    return (
        escape(phase.name),
        *(f"{rate:,.0f}" for rate in (phase.due / seconds, phase.sent / seconds, phase.goodput)),
        *(f"{one * 1e3:,.1f}" for one in (phase.p50, phase.p90, phase.p99, phase.p999)),
        f"{phase.hit_ratio:.0%}",
        cost,
        ", ".join(f"{escape(name)}: {count:,}" for name, count in phase.codes.items()) + share,
    )


def _figure(plot: Plot) -> str:
    return (
        f"<h2>{escape(plot.title)}</h2><p>{escape(plot.text)}</p>"
        f'<figure role=img aria-label="{escape(plot.title)}">{plot.svg}</figure>'
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = False) -> str:
    body = [
        "<tr>"
        + "".join(f"<td{_class(index, head, numbers)}>{cell}" for index, cell in enumerate(row))
        for row in rows
    ]
    if not body:
        return ""
    cells = "".join(f"<th{_class(index, head, numbers)}>{cell}" for index, cell in enumerate(head))
    return f"<div class=scroll><table><thead><tr>{cells}<tbody>{''.join(body)}</table></div>"


def _class(index: int, head: Sequence[str], numbers: bool) -> str:  # noqa: FBT001 - private
    return " class=n" if numbers and 0 < index < len(head) - 1 else ""
