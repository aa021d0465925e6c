"""Renders all GPU results as a short table with ratios, and as JSON."""

from collections.abc import Iterable

import msgspec

from loadtests.gpu.device import Device, this_device
from loadtests.gpu.plan import (
    BUDGETS,
    MAIN,
    Measurement,
    Options,
    SectionResult,
    fastest,
    read_result,
)
from loadtests.machine import Machine, this_machine


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything: the machine, the device, what was chosen, what was found."""

    machine: Machine
    device: Device
    provider: str
    tiny: bool
    results: list[SectionResult]


def collect(options: Options) -> Report:
    """Read what the sections wrote, now or in a run before."""
    found = [read_result(options, section) for section in BUDGETS]
    return Report(
        machine=this_machine(),
        device=this_device(options.device),
        provider=options.provider,
        tiny=options.tiny,
        results=[result for result in found if result is not None],
    )


def render(report: Report) -> str:
    """Return the report as Markdown, the ratios last."""
    machine, device = report.machine, report.device
    head = f"{device.name or 'no GPU'}, {machine.headline}"
    lines = [f"## GPU, provider {report.provider}", "", head, ""]
    if report.tiny:
        lines += ["A dry run with toy models: the figures mean nothing.", ""]
    lines += [
        "| what | sequences/s | tokens/s | GPU busy | padding | p50 ms | p99 ms | note |",
        "|---|---|---|---|---|---|---|---|",
        *(_row(line) for result in report.results for line in _worth_showing(result)),
        "",
        *(
            f"{result.section}: {result.status} ({result.reason})"
            for result in report.results
            if result.status != "done"
        ),
        *ratios(report.results),
    ]
    return "\n".join(lines)


def ratios(results: Iterable[SectionResult]) -> list[str]:
    """Return what the whole path is of the bare session, of the peer, of the arithmetic limit."""
    found: dict[str, SectionResult] = {result.section: result for result in results}
    whole = _best(found.get("http"), "whole path over HTTP, 1 text ")
    engine = _best(found.get("engine"), "engine")
    bare = _bare(found)
    peer = _best(found.get("peer"), "transformers")
    matrix, each = (_best(found.get("floor"), name) for name in ("matrix", "operations"))
    lines = []
    if whole:
        lines.append(f"whole path: {whole * 60:,.0f} requests a minute")
    for what, rate in (("whole path", whole), ("engine", engine), ("bare session", bare)):
        if rate and bare and what != "bare session":
            lines.append(f"{what} / bare session: {rate / bare:.2f}")
        if rate and peer:
            lines.append(f"{what} / transformers pipeline: {rate / peer:.2f}")
        if rate and matrix and each:
            lines.append(f"{what} / arithmetic limit: {rate * each / matrix:.3f}")
    return lines


def _bare(found: dict[str, SectionResult]) -> float:
    """Return the rate of the best candidate in the main batch, with one run in flight or more."""
    result = found.get("ceiling")
    best = fastest(result.lines) if result is not None else None
    if result is None or best is None:
        return 0.0
    name = f"{MAIN} {best.name}"
    same = [line for line in result.lines if line.what == name or line.what.endswith("in flight")]
    return max(line.rate or 0.0 for line in same)


def _best(result: SectionResult | None, prefix: str) -> float:
    if result is None:
        return 0.0
    rates = [line.rate for line in result.lines if line.what.startswith(prefix) and line.rate]
    return max(rates, default=0.0)


def _worth_showing(result: SectionResult) -> list[Measurement]:
    """Return the lines for people: of the check, only what failed."""
    if result.section != "check":
        return result.lines
    return [line for line in result.lines if not line.passed]


def _row(line: Measurement) -> str:
    cells = [
        line.what,
        _number(line.rate, ",.0f"),
        _number(line.tokens_per_second, ",.0f"),
        _number(line.busy, ".0%"),
        _number(line.waste, ".1%"),
        _number(None if line.p50 is None else 1000 * line.p50, ".2f"),
        _number(None if line.p99 is None else 1000 * line.p99, ".2f"),
        line.note.replace("|", "/") if line.passed else f"FAILED {line.note[:80]}",
    ]
    return f"| {' | '.join(cells)} |"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
