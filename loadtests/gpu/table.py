"""Renders the results on a GPU as a short table, with aims and ratios."""

from backends.model_tools.graphs.shapes import PRESETS
from loadtests.gpu.plan import FIGURES, FULL_BATCH, LARGE, SMALL, Figure
from loadtests.gpu.results import Measurement, Report, fastest

_MODELS = ((SMALL, 24), (LARGE, 128))
_COLUMNS = (
    *("what", "sequences/s", "aim", "tokens/s", "GPU busy", "padding", "error"),
    *("p50 ms", "p99 ms", "note"),
)


def render(report: Report) -> str:
    """Return the report as Markdown, the ratios last."""
    machine, device = report.machine, report.device
    head = f"{device.name or 'no GPU'}, driver {device.driver or 'none'}, {report.runtime}"
    lines = [f"## GPU, provider {report.provider}", "", head, machine.headline, ""]
    if report.tiny:
        lines += ["A dry run with toy models: the figures mean nothing.", ""]
    lines += [
        f"| {' | '.join(_COLUMNS)} |",
        "|---" * len(_COLUMNS) + "|",
        *(
            _row(figure, found)
            for figure in FIGURES
            if (found := report.figure(figure.name)) is not None
            and _is_worth_showing(figure, found)
        ),
        "",
        *(
            f"{section}: {state.status} ({state.reason})"
            for section, state in report.sections.items()
            if state.status != "done"
        ),
        *ratios(report),
    ]
    return "\n".join(lines)


def ratios(report: Report) -> list[str]:
    """Return what the gateway's figures are of the bare session, of PyTorch, and of arithmetic."""
    lines = []
    matrix = _rate(report, "matrix rate, operations/s")
    for preset, length in _MODELS:
        batch = f"{FULL_BATCH}x{length}"
        served = _rate(
            report, f"through the gateway, {preset}, {length} tokens, 64 texts a request"
        )
        best = fastest(report, f"session, {preset}, {batch}")
        bare = _rate(report, f"session, {preset}, {batch}, {best.name}") if best else 0.0
        floors = {
            "bare session": bare,
            "PyTorch alone": _rate(report, f"PyTorch alone, {preset}, fp16, {batch}"),
            "TensorRT alone": _rate(report, f"TensorRT alone, {preset}, fp16, {batch}"),
            "arithmetic limit": matrix / operations(preset, length),
        }
        lines += [
            f"{preset} through the gateway / {name}: {served / floor:.2f}"
            for name, floor in floors.items()
            if served and floor
        ]
    return lines


def operations(preset: str, length: int) -> float:
    """Return the operations of a forward pass over one sequence, as multiplications and sums."""
    shape = PRESETS[preset]
    dense = 4 * shape.hidden**2 + 2 * shape.hidden * shape.intermediate
    return float(shape.layers * 2 * length * (dense + 2 * length * shape.hidden))


def _rate(report: Report, what: str) -> float:
    found = report.figure(what)
    return (found.rate or 0.0) if found is not None and found.passed else 0.0


def _is_worth_showing(figure: Figure, found: Measurement) -> bool:
    """Whether people want the line: of the checks, only what failed."""
    return figure.section != "check" or not found.passed


def _row(figure: Figure, line: Measurement) -> str:
    cells = [
        line.what,
        _number(line.rate, ",.0f"),
        _number(figure.aim, ",.0f"),
        _number(line.tokens_per_second, ",.0f"),
        _number(line.busy, ".0%"),
        _number(line.waste, ".1%"),
        _number(line.error, ".1e"),
        _number(None if line.p50 is None else 1000 * line.p50, ".2f"),
        _number(None if line.p99 is None else 1000 * line.p99, ".2f"),
        line.note.replace("|", "/") if line.passed else f"FAILED {line.note[:80]}",
    ]
    return f"| {' | '.join(cells)} |"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
