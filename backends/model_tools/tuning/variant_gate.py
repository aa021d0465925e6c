"""Compares variants of a model's graph with fp32: outputs, batch invariance and speed."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from sluicegate.backends.executors.base import ModelExecutor
from sluicegate.backends.model_tools.tuning.options import VariantPrecision
from sluicegate.backends.model_tools.tuning.tuned_model import TunedModel
from sluicegate.backends.qualification.certificate import certified_outputs
from sluicegate.backends.qualification.gate import CHANGES, Bounds, Verdict
from sluicegate.backends.qualification.golden_texts import GoldenSet
from sluicegate.backends.qualification.invariance import Invariance, measure_invariance
from sluicegate.backends.qualification.records import MachineInfo, describe_machine
from sluicegate.backends.qualification.text_runs import SpeedSample, TextBatch, compare_speed
from sluicegate.backends.types import OutputKind

_SPEED_TEXTS = 1000
_MAX_TOKENS = 48
_DEPENDS = "its outputs depend on the rows beside them"


class VariantReport(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the measurements of a variant; it is accepted if `reasons` is empty.

    `speedup` is the variant's speed divided by the speed of fp32 on `machine`, and `least_speedup`
    is a lower bound of this ratio. `expected` has the outputs for a few texts. On every machine
    that serves the variant, its outputs for these texts must be the same.
    """

    precision: VariantPrecision = msgspec.field(default="int8", name="profile")
    products: int = 0
    float_products: list[str] = []
    verdict: Verdict
    invariance: Invariance
    before: SpeedSample
    after: SpeedSample
    speedup: float
    least_speedup: float
    machine: MachineInfo
    expected: list[list[float]]
    output: OutputKind = OutputKind.POOLED
    reasons: list[str]


class VariantGate:
    """Compares variants of one model with its fp32 graph, on given texts."""

    def __init__(
        self, subject: TunedModel, against: GoldenSet, *, bounds: Bounds, min_speedup: float
    ) -> None:
        self._subject = subject
        self._bounds = bounds
        self._min_speedup = min_speedup
        self._expected = subject.places(against)
        self.texts = against.texts
        self._groups = against.groups
        self._fp32 = subject.open(subject.graph)
        self._batches = subject.batches(against.texts)
        self._reference, self._owners = subject.outputs(self._fp32, self._batches)

    @property
    def reference_runs(self) -> tuple[ModelExecutor, Sequence[TextBatch]]:
        """The fp32 graph, and the batches with which speed is measured."""
        return self._fp32, _few(self._batches)

    def judge(self, graph: Path, *, precision: VariantPrecision) -> VariantReport:
        """Compare a graph with the fp32 graph."""
        subject = self._subject
        candidate = subject.open(graph, precision)
        found, _ = subject.outputs(candidate, self._batches)
        verdict = subject.judge(
            self._reference,
            found,
            owners=self._owners if self._groups is None else np.array(self._groups, np.int32),
            expected=self._expected,
            bounds=self._bounds,
        )
        invariance = measure_invariance(
            candidate,
            outputs=[subject.output],
            encode=subject.encode_ids,
            max_tokens=min(subject.manifest.max_tokens, _MAX_TOKENS),
        )
        speedup = compare_speed(self._fp32, candidate, _few(self._batches))
        return VariantReport(
            precision=precision,
            verdict=verdict,
            invariance=invariance,
            before=speedup.before,
            after=speedup.after,
            speedup=speedup.ratio,
            least_speedup=speedup.at_least,
            machine=describe_machine(),
            expected=certified_outputs(candidate, subject.encode_ids, subject.output),
            output=subject.output,
            reasons=[
                *verdict.reasons,
                *([] if invariance.shares_batches else [_DEPENDS]),
                *speed_reasons(speedup.ratio, speedup.at_least, self._min_speedup),
            ],
        )


def speed_reasons(ratio: float, at_least: float, asked: float) -> list[str]:
    """Return why a speedup is too small or too uncertain; empty if it is large enough."""
    if ratio < asked:
        return [f"it is {ratio:.2f} times as fast as fp32; at least {asked:g} is required"]
    if at_least < asked:
        found = f"it is {ratio:.2f} times as fast as fp32, but may be only {at_least:.2f}"
        remedy = "measure with more texts, on a machine that does nothing else"
        return [f"{found}; at least {asked:g} is required; {remedy}"]
    return []


def _few(batches: Sequence[TextBatch]) -> Sequence[TextBatch]:
    """Return some of the batches, with texts of all lengths and about a thousand texts in total."""
    return batches[:: max(1, len(batches) * len(batches[0].places) // _SPEED_TEXTS)]


def describe_report(report: VariantReport) -> list[str]:
    """Return the lines of a report."""
    verdict, invariance, name = report.verdict, report.invariance, report.precision
    moved = f"{verdict.logit_mean:.3g}, p99 {verdict.logit_p99:.3g}, most {verdict.logit_worst:.3g}"
    gain = f"{report.speedup:.2f} x (at least {report.least_speedup:.2f})"
    before, after = report.before, report.after
    lines = [
        *(
            [("products in float", f"{len(report.float_products)} of {report.products}")]
            if report.products
            else []
        ),
        *describe_verdict(verdict, name),
        ("change of outputs", moved),
        ("change by other rows", f"{invariance.mates:.3g}"),
        ("change by padding", f"{invariance.shapes:.3g}"),
        (
            "rows a second",
            f"{before.rows_per_second:.0f} in fp32, {after.rows_per_second:.0f} in {name}: {gain}",
        ),
        ("p95 of a batch", f"{1000 * before.p95:.1f} ms, {1000 * after.p95:.1f} ms in {name}"),
    ]
    return [f"{title:22} {value}" for title, value in lines]


def describe_verdict(verdict: Verdict, name: str) -> list[tuple[str, str]]:
    """Return the results of a comparison, each with its title."""
    unit = "queries" if verdict.measure == "order" else "texts"
    sure = f"{verdict.rows} {unit}, at most {verdict.flips_at_most:.2%} (95 %)"
    lines = [("changes", f"{verdict.flips:.2%} {CHANGES[verdict.measure]}; {sure}")]
    if verdict.swaps is not None:
        lines.append(("pairs swapped", f"{verdict.swaps:.2%}"))
    if verdict.cosine is not None and verdict.cosine_worst is not None:
        worst = f"least {verdict.cosine_worst:.5f}"
        lines.append(("cosine to fp32", f"{verdict.cosine:.5f} of 99 % of texts, {worst}"))
    if verdict.accuracy_before is not None and verdict.accuracy_after is not None:
        change = 100 * (verdict.accuracy_after - verdict.accuracy_before)
        both = f"{verdict.accuracy_before:.2%} in fp32, {verdict.accuracy_after:.2%} in {name}"
        lines.append(("accuracy", f"{both}: {change:+.2f} points"))
    return lines
