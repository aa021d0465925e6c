"""Makes a variant of a classifier's graph in int8 or fp16, and evaluates it."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import onnx

from backends.errors import StartProblem
from backends.model_tools.graphs.half import halve
from backends.model_tools.graphs.quantize import find_products, quantize
from backends.model_tools.graphs.ranges import ProductPlan, plan_product
from backends.model_tools.tuning.calibration import collect
from backends.model_tools.tuning.profile import Echo, Profile
from backends.model_tools.tuning.runs import TextBatch, compare_speed, make_batches
from backends.model_tools.tuning.sensitivity import find_sensitive
from backends.model_tools.tuning.texts import GoldenSet
from backends.model_tools.tuning.tuned_model import TunedModel
from backends.qualification.certificate import answer
from backends.qualification.gate import Bounds, Verdict, judge
from backends.qualification.invariance import Invariance, measure_invariance
from backends.types import FloatArray, IntArray, OutputKind

# Ranges converge within a few thousand tokens; counting flips needs more texts.
_RANGE_TEXTS = 500
_SEARCH_TEXTS = 2000
_DAMAGE_TEXTS = 200
_SPEED_TEXTS = 1000
# The search overfits to its texts, so it must stay well within the bound.
_MARGIN = 0.5
_MAX_TOKENS = 48
T = TypeVar("T")


class PrecisionReport(msgspec.Struct, frozen=True, kw_only=True):
    """Reports a candidate's numbers; `reasons` is empty when it may be served.

    `expected` is what it answers to a few texts: it must do so wherever it is served.
    """

    profile: Profile = "int8"
    products: int = 0
    float_products: list[str] = []
    verdict: Verdict
    invariance: Invariance
    rows_per_second_before: float
    rows_per_second_after: float
    expected: list[list[float]]
    reasons: list[str]

    @property
    def speedup(self) -> float:
        """How many times as fast as fp32 it is, on this machine."""
        return self.rows_per_second_after / self.rows_per_second_before


class Precision:
    """Makes and evaluates variants of one classifier, on different texts."""

    def __init__(
        self, subject: TunedModel, *, bounds: Bounds, least_speedup: float, echo: Echo
    ) -> None:
        self._subject = subject
        self._bounds = bounds
        self._least_speedup = least_speedup
        self._echo = echo
        self._model = onnx.load(subject.graph)
        self._fp32 = subject.open(subject.graph)
        self._products = find_products(self._model)

    def halve(self, against: GoldenSet) -> tuple[bytes, PrecisionReport]:
        """Return a graph in fp16 and what it is worth."""
        graph: bytes = halve(self._model).SerializeToString()
        self._echo(f"Judging on {len(against.texts)} texts")
        return graph, self._judge(graph, against, profile="fp16")

    def make(self, calibrate: GoldenSet, against: GoldenSet) -> tuple[bytes, PrecisionReport]:
        """Return a graph in int8 and what it is worth.

        Raises:
            StartProblem: there is nothing to compute in int8, or no text to calibrate on.
        """
        if not self._products:
            raise StartProblem(f"`{self._subject.graph}` holds no product that int8 could compute")
        judging = set(against.texts)
        texts = [text for text in calibrate.texts if text not in judging]
        if not texts:
            raise StartProblem("every text to calibrate on is one to judge by; name other texts")
        rows = self._subject.encode(_spread(texts, _SEARCH_TEXTS))
        self._echo(f"Measuring {len(self._products)} products on {len(rows)} texts")
        plans = self._plan(make_batches(_spread(rows, _RANGE_TEXTS)))
        kept = self._find_kept(plans, rows)
        graph = self._build({name: plan for name, plan in plans.items() if name not in kept})
        self._echo(f"Judging on {len(against.texts)} texts")
        report = self._judge(graph, against, profile="int8")
        floats = [product.name for product in self._products if product.name in kept]
        return graph, msgspec.structs.replace(
            report, products=len(self._products), float_products=floats
        )

    def _plan(self, batches: Sequence[TextBatch]) -> dict[str, ProductPlan]:
        samples = collect(self._model, self._products, batches)
        return {
            product.name: plan_product(samples[product.name], product.kernel)
            for product in self._products
        }

    def _find_kept(self, plans: dict[str, ProductPlan], rows: Sequence[IntArray]) -> frozenset[str]:
        searched, few = make_batches(rows), make_batches(_spread(rows, _DAMAGE_TEXTS))
        reference = self._subject.logits(self._fp32, searched)
        reference_few = self._subject.logits(self._fp32, few)

        def flips(kept: frozenset[str]) -> float:
            graph = self._build({n: plan for n, plan in plans.items() if n not in kept})
            found, several = self._logits(graph, searched), self._subject.several
            share = judge(reference, found, bounds=self._bounds, several=several).flips
            self._echo(f"{len(kept)} of {len(plans)} products in float: {share:.2%} of labels flip")
            return share

        def damage(name: str) -> float:
            graph = self._build({name: plans[name]})
            return judge(reference_few, self._logits(graph, few), bounds=self._bounds).logit_mean

        sizes = {product.name: product.kernel.size for product in self._products}
        bound = self._bounds.flips * _MARGIN
        return find_sensitive(sizes, flips=flips, damage=damage, bound=bound)

    def _judge(self, graph: bytes, against: GoldenSet, *, profile: Profile) -> PrecisionReport:
        subject = self._subject
        batches = make_batches(subject.encode(against.texts))
        with _written(graph) as path:
            candidate = subject.open(path)
        verdict = judge(
            subject.logits(self._fp32, batches),
            subject.logits(candidate, batches),
            expected=self._places(against),
            bounds=self._bounds,
            several=subject.several,
        )
        invariance = measure_invariance(
            candidate,
            outputs=[OutputKind.POOLED],
            encode=subject.encode,
            max_tokens=min(subject.manifest.max_tokens, _MAX_TOKENS),
        )
        few = batches[:: max(1, len(batches) * len(batches[0].places) // _SPEED_TEXTS)]
        before, after = compare_speed(self._fp32, candidate, few)
        return PrecisionReport(
            profile=profile,
            verdict=verdict,
            invariance=invariance,
            rows_per_second_before=before,
            rows_per_second_after=after,
            expected=answer(candidate, subject.encode),
            reasons=self._reasons(verdict, invariance, after / before),
        )

    def _places(self, against: GoldenSet) -> list[int] | None:
        """Return the right columns, where they are known and one text has one of them."""
        if against.labels is None or self._subject.several:
            return None
        return self._subject.places(against.labels)

    def _reasons(self, verdict: Verdict, invariance: Invariance, speedup: float) -> list[str]:
        reasons = [*verdict.reasons]
        if not invariance.shares_batches:
            reasons.append("its answers depend on the rows beside them")
        if speedup < self._least_speedup:
            reasons.append(
                f"it is {speedup:.2f} times as fast as fp32, {self._least_speedup:g} is asked for"
            )
        return reasons

    def _build(self, plans: dict[str, ProductPlan]) -> bytes:
        content: bytes = quantize(self._model, plans).SerializeToString()
        return content

    def _logits(self, graph: bytes, batches: Sequence[TextBatch]) -> FloatArray:
        with _written(graph) as path:
            executor = self._subject.open(path)
        return self._subject.logits(executor, batches)


@contextmanager
def _written(graph: bytes) -> Iterator[Path]:
    """Put a graph where a session can be opened on it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        path.write_bytes(graph)
        yield path


def _spread(values: Sequence[T], most: int) -> list[T]:
    """Return at most `most` values, from all over the list: files are often sorted by label."""
    if len(values) <= most:
        return list(values)
    return [values[place] for place in np.linspace(0, len(values) - 1, most).astype(int)]


def describe(report: PrecisionReport) -> list[str]:
    """Return the numbers of a report, a line each."""
    verdict, invariance = report.verdict, report.invariance
    moved = f"{verdict.logit_mean:.3g}, p99 {verdict.logit_p99:.3g}, most {verdict.logit_worst:.3g}"
    before, after = report.rows_per_second_before, report.rows_per_second_after
    name, gain = report.profile, f"{report.speedup:.2f} x"
    lines = [
        *(
            [f"products in float      {len(report.float_products)} of {report.products}"]
            if report.products
            else []
        ),
        f"labels that flip       {verdict.flips:.2%} of {verdict.rows}",
        f"logits move by         {moved}",
        f"moved by other rows    {invariance.mates:.3g}",
        f"moved by padding       {invariance.shapes:.3g}",
        f"rows a second          {before:.0f} in fp32, {after:.0f} in {name}: {gain}",
    ]
    if verdict.accuracy_before is not None and verdict.accuracy_after is not None:
        change = 100 * (verdict.accuracy_after - verdict.accuracy_before)
        lines.append(
            f"accuracy               {verdict.accuracy_before:.2%} in fp32, "
            f"{verdict.accuracy_after:.2%} in {name}: {change:+.2f} points"
        )
    return lines
