"""Makes variants of a model, publishes the quickest accepted variant, and tunes its batching."""

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from sluicegate.backends.errors import BackendError, StartProblem
from sluicegate.backends.model_tools.graphs.weight_file import temporary_graph
from sluicegate.backends.model_tools.tuning.memory import measure_memory
from sluicegate.backends.model_tools.tuning.options import (
    ELSEWHERE,
    PROVIDERS,
    Echo,
    GateOptions,
    VariantOptions,
    VariantPrecision,
)
from sluicegate.backends.model_tools.tuning.publish import publish
from sluicegate.backends.model_tools.tuning.reports import OptimizeResult, VariantEntry
from sluicegate.backends.model_tools.tuning.speed import keep, tune_speed
from sluicegate.backends.model_tools.tuning.tuned_model import TunedModel, find_tuned_model
from sluicegate.backends.model_tools.tuning.variant_gate import (
    VariantGate,
    VariantReport,
    describe_report,
)
from sluicegate.backends.model_tools.tuning.variant_maker import VariantMaker
from sluicegate.backends.qualification.golden_texts import read_golden
from sluicegate.backends.qualification.text_runs import measure_speed
from sluicegate.backends.repository.catalogue import read_catalogue
from sluicegate.backends.settings import BackendSettings


def make_variant(
    settings: BackendSettings, name: str, wanted: VariantOptions, *, dry_run: bool, echo: Echo
) -> list[Path] | None:
    """Make and judge a variant; return the written folders, or `None` if it is refused.

    Raises:
        StartProblem: the variant cannot be made.
    """
    judge = wanted.golden_file()
    if wanted.precision == "bf16" and settings.provider not in PROVIDERS["bf16"]:
        raise StartProblem(f"`--precision bf16`: {ELSEWHERE['bf16']}")
    subject = find_tuned_model(read_catalogue(settings.models), name, settings)
    golden = subject.suited(read_golden(judge), judge)
    maker = VariantMaker(subject, bounds=wanted.gate.bounds, echo=echo)
    gate = VariantGate(
        subject, golden, bounds=wanted.gate.bounds, min_speedup=wanted.gate.min_speedup
    )
    calibrate = None
    if wanted.calibrate is not None:
        calibrate = subject.suited(read_golden(wanted.calibrate), wanted.calibrate)
    graph, report = maker.make(wanted.precision, gate, calibrate=calibrate)
    _tell(report, report.reasons, echo)
    if report.reasons:
        return None
    return [] if dry_run else publish(settings.models, subject, graph, report)


def optimize(
    settings: BackendSettings,
    name: str,
    *,
    texts: Path,
    limits: GateOptions,
    seconds: float,
    dry_run: bool,
    echo: Echo,
) -> OptimizeResult:
    """Judge each precision of the device, publish the quickest accepted variant, tune its batching.

    A third of the texts serves to calibrate int8. All variants are judged by the other two thirds.

    Raises:
        StartProblem: the model does not exist, is not in fp32 or cannot be measured.
    """
    subject = find_tuned_model(read_catalogue(settings.models), name, settings)
    calibrate, judging = (subject.suited(part, texts) for part in read_golden(texts).split())
    gate = VariantGate(subject, judging, bounds=limits.bounds, min_speedup=limits.min_speedup)
    maker = VariantMaker(subject, bounds=limits.bounds, echo=echo)
    graphs: dict[str, bytes | None] = {}
    variants: list[VariantEntry] = []
    for precision in get_args(VariantPrecision):
        echo(f"{precision}:")
        if settings.provider not in PROVIDERS[precision]:
            variants.append(VariantEntry(name=precision, reasons=[ELSEWHERE[precision]]))
        else:
            try:
                graphs[precision], report = maker.make(precision, gate, calibrate=calibrate)
            except (BackendError, StartProblem) as error:
                variants.append(VariantEntry(name=precision, reasons=[str(error)]))
            else:
                variants.append(_judged(report, _memory(settings, subject, graphs[precision])))
        _tell(variants[-1].report, variants[-1].reasons, echo)
    best = max((v for v in variants if v.report and not v.reasons), key=_gain, default=None)
    folders: list[Path] = []
    if best is not None and best.report is not None and not dry_run:
        folders = publish(settings.models, subject, graphs[best.name], best.report)
    served = folders[-1].parent.name if folders else name
    sweep = tune_speed(settings, served, texts=judging.texts, seconds=seconds)
    if not dry_run and not keep(sweep):
        echo("cannot record the setting: the model's folder is read-only")
    return OptimizeResult(
        model=name,
        calibrated=len(calibrate.texts),
        judged=len(judging.texts),
        variants=[_fp32(gate, variants, _memory(settings, subject, None)), *variants],
        chosen=best.name if best is not None else "fp32",
        written=folders,
        sweep=sweep,
    )


def _gain(entry: VariantEntry) -> float:
    return entry.report.least_speedup if entry.report else 0.0


def _memory(settings: BackendSettings, subject: TunedModel, graph: bytes | None) -> int | None:
    """Return the bytes that a graph takes on the CPU; `None` if the provider is not the CPU.

    If no `graph` is given, this measures the model's own graph.
    """
    if settings.provider != "cpu":
        return None
    most = subject.manifest.max_tokens
    if graph is None:
        return measure_memory(subject.graph, max_tokens=most)
    with temporary_graph(graph, subject.graph) as path:
        return measure_memory(path, max_tokens=most)


def _judged(report: VariantReport, memory: int | None) -> VariantEntry:
    return VariantEntry(
        name=report.precision,
        speed=report.after,
        report=report,
        memory_bytes=memory,
        reasons=report.reasons,
    )


def _fp32(gate: VariantGate, variants: list[VariantEntry], memory: int | None) -> VariantEntry:
    """Return the entry of fp32.

    The judgement of a variant has already measured fp32. If no variant was judged, measure fp32
    now.
    """
    before = [entry.report.before for entry in variants if entry.report is not None]
    speed = before[0] if before else measure_speed(*gate.reference_runs)
    return VariantEntry(name="fp32", speed=speed, memory_bytes=memory)


def _tell(report: VariantReport | None, reasons: Sequence[str], echo: Echo) -> None:
    for line in describe_report(report) if report is not None else ():
        echo(line)
    verdict = "Refused" if report is not None else "Not tried"
    echo(f"{verdict}: {'; '.join(reasons)}" if reasons else "Accepted")
