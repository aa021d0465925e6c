"""Writes the report of `models optimize` in Markdown."""

from collections.abc import Sequence

from backends.model_tools.tuning.optimize import OptimizeResult, VariantEntry
from backends.model_tools.tuning.variant_gate import describe_verdict

_HEADINGS = (
    *("variant", "verdict", "rows/s", "speed (fp32 = 1)", "p95 of a batch"),
    *("results that change", "accuracy", "memory", "a million rows"),
)
_MIB = 1024 * 1024
_SECONDS_PER_HOUR = 3600.0
_MILLION = 1e6
_NONE = "-"
_METHOD = (
    "Rows a second and p95 are measured with batches of rows of similar length, on all threads, in "
    "alternating rounds. Memory is that of a process with the graph open on the CPU. After "
    "`sluicegate models reload`, backends use what was written."
)


def write_report(result: OptimizeResult, *, price: float | None, plot: str | None) -> str:
    """Return the report; `price` is the price of the machine per hour."""
    sweep, best = result.sweep, result.sweep.best
    machine = sweep.machine
    rows = [_row(result, entry, price) for entry in result.variants]
    lines = [
        f"# `{result.model}`: {result.chosen}",
        "",
        f"- Machine: {', '.join([*machine.devices, *machine.runtimes])}; {machine.date}.",
        f"- {result.judged:,} texts or pairs judged, {result.calibrated:,} others calibrated int8.",
        f"- Served: `{sweep.model}`, revision {sweep.folder.name}, in {result.chosen}.",
        f"- Batches: {best.batch_size} rows, {best.threads} at a time.",
        *(f"- Written: `{folder}`." for folder in result.written),
        "",
        "## Variants",
        "",
        *_table(_HEADINGS, rows),
        "",
        _METHOD,
        "",
    ]
    for entry in result.variants:
        lines += _details(entry)
    lines += ["## Batches", "", *_sweep(result), ""]
    if plot is not None:
        lines += [f"![rows a second and p95]({plot})", ""]
    return "\n".join(lines)


def _row(result: OptimizeResult, entry: VariantEntry, price: float | None) -> list[str]:
    report, speed = entry.report, entry.speed
    verdict = report.verdict if report is not None else None
    accuracy = verdict.accuracy_after if verdict is not None else None
    if entry.name == "fp32":
        accuracy = next(
            (e.report.verdict.accuracy_before for e in result.variants if e.report), None
        )
    return [
        entry.name,
        _verdict(result, entry),
        f"{speed.rows_per_second:,.0f}" if speed else _NONE,
        f"{report.speedup:.2f} (≥ {report.least_speedup:.2f})" if report else _NONE,
        f"{1000 * speed.p95:.1f} ms" if speed else _NONE,
        f"{verdict.flips:.2%} (≤ {verdict.flips_at_most:.2%})" if verdict else _NONE,
        f"{accuracy:.2%}" if accuracy is not None else _NONE,
        f"{entry.memory_bytes / _MIB:,.0f} MiB" if entry.memory_bytes is not None else _NONE,
        _cost(speed.rows_per_second, price) if speed else _NONE,
    ]


def _verdict(result: OptimizeResult, entry: VariantEntry) -> str:
    if entry.name == result.chosen:
        return "served"
    if entry.name == "fp32":
        return "reference"
    if entry.report is None:
        return "not tried"
    return "refused" if entry.reasons else "accepted, slower"


def _cost(rows_per_second: float, price: float | None) -> str:
    if price is None:
        return _NONE
    return f"{price * _MILLION / (rows_per_second * _SECONDS_PER_HOUR):,.4f}"


def _details(entry: VariantEntry) -> list[str]:
    lines = [f"- {reason}" for reason in entry.reasons]
    if entry.report is not None:
        verdict = describe_verdict(entry.report.verdict, entry.name)
        lines = [*(f"- {title}: {value}" for title, value in verdict), *lines]
    return [f"### {entry.name}", "", *lines, ""] if lines else []


def _sweep(result: OptimizeResult) -> list[str]:
    sweep = result.sweep
    batches = [
        [str(p.threads), str(p.batch_size), f"{p.rows_per_second:,.0f}", f"{1000 * p.p95:.1f} ms"]
        for p in sweep.batches
    ]
    clients = [
        [str(p.clients), f"{p.rows_per_second:,.0f}", f"{1000 * p.p95:.1f} ms"]
        for p in sweep.clients
    ]
    return [
        *_table(("batches at a time", "rows a batch", "rows/s", "p95 of a batch"), batches),
        "",
        *_table(("clients", "rows/s", "p95 of a response"), clients),
    ]


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (headings, ["---"] * len(headings), *rows)]
