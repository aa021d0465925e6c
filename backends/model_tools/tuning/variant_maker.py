"""Makes variants of a model in other precisions: converts its graph, or uses a device graph."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec
import numpy as np
import onnx
from onnx import ModelProto
from onnx.external_data_helper import uses_external_data

from sluicegate.backends.errors import StartProblem
from sluicegate.backends.model_tools.graphs.half import halve
from sluicegate.backends.model_tools.graphs.quantize import find_products, quantize
from sluicegate.backends.model_tools.graphs.ranges import ProductPlan, plan_product
from sluicegate.backends.model_tools.graphs.weight_file import include_weights, temporary_graph
from sluicegate.backends.model_tools.tuning.calibration import collect
from sluicegate.backends.model_tools.tuning.options import Echo, VariantPrecision
from sluicegate.backends.model_tools.tuning.tuned_model import TunedModel
from sluicegate.backends.model_tools.tuning.variant_gate import VariantGate, VariantReport
from sluicegate.backends.qualification.gate import CHANGES, Bounds
from sluicegate.backends.qualification.golden_texts import GoldenSet
from sluicegate.backends.qualification.text_runs import TextBatch
from sluicegate.backends.types import FloatArray, IntArray, Text

# Few texts suffice to find the ranges of int8. To find the share of changed labels, more texts are
# needed.
_RANGE_TEXTS = 500
_SEARCH_TEXTS = 2000
_DAMAGE_TEXTS = 200
# The search for sensitive products overfits its own texts, so its bound is stricter than the final
# bound.
_MARGIN = 0.5
T = TypeVar("T")
Flips = Callable[[frozenset[str]], float]


class VariantMaker:
    """Makes variants of one model."""

    def __init__(self, subject: TunedModel, *, bounds: Bounds, echo: Echo) -> None:
        self._subject = subject
        self._bounds = bounds
        self._echo = echo
        # Weights in a file beside the graph stay there.
        self._model = onnx.load(subject.graph, load_external_data=False)

    def make(
        self, precision: VariantPrecision, gate: VariantGate, *, calibrate: GoldenSet | None
    ) -> tuple[bytes | None, VariantReport]:
        """Return a graph in `precision`, and its report.

        For int8, `calibrate` must hold the texts with which the ranges are calibrated.

        The graph is `None` if the model's own files can run in that precision.

        Raises:
            StartProblem: no product can be computed in int8, there is no text to calibrate with,
                there is no graph in bf16, or the graph is too large for fp16.
        """
        if precision != "int8" and (found := self._subject.find_graph(precision)) is not None:
            return None, gate.judge(found, precision=precision)
        if precision == "bf16":
            raise StartProblem(
                f"`{self._subject.graph_model.folder}` has no graph in bf16 that runs here; "
                "import the model again"
            )
        if precision == "fp16" or calibrate is None:
            graph = self._halve()
            return graph, self._judge(gate, graph, "fp16")
        graph, products, floats = self._quantize(calibrate, judging=gate.texts)
        report = self._judge(gate, graph, "int8")
        graph = include_weights(graph, self._subject.graph)
        return graph, msgspec.structs.replace(report, products=products, float_products=floats)

    def _halve(self) -> bytes:
        path = self._subject.graph
        whole = ModelProto.FromString(include_weights(self._model.SerializeToString(), path))
        if any(map(uses_external_data, whole.graph.initializer)):
            raise StartProblem(f"`{path}` is too large for a variant in fp16; use int8")
        halved: bytes = halve(whole).SerializeToString()
        return halved

    def _judge(self, gate: VariantGate, graph: bytes, precision: VariantPrecision) -> VariantReport:
        with temporary_graph(graph, self._subject.graph) as path:
            return gate.judge(path, precision=precision)

    def _quantize(
        self, calibrate: GoldenSet, *, judging: Sequence[Text]
    ) -> tuple[bytes, int, list[str]]:
        """Return a graph in int8, its number of products, and the products that stay in float."""
        products = find_products(self._model, self._subject.graph.parent)
        if not products:
            raise StartProblem(f"`{self._subject.graph}` has no product that int8 can compute")
        others = set(judging)
        kept = [place for place, text in enumerate(calibrate.texts) if text not in others]
        if not kept:
            raise StartProblem("all texts to calibrate with are texts to judge by; use other texts")
        sample = _Sample.of(calibrate, _spread(kept, _SEARCH_TEXTS))
        self._echo(f"Measuring {len(products)} products on {len(sample.texts)} texts")
        batches = self._subject.batches(_spread(sample.texts, _RANGE_TEXTS))
        samples = collect(self._model, products, batches, beside=self._subject.graph)
        plans = {
            product.name: plan_product(samples[product.name], product.kernel)
            for product in products
        }
        sizes = {product.name: product.kernel.size for product in products}
        floats = self._find_kept(plans, sizes, sample)
        graph = self._build({n: plan for n, plan in plans.items() if n not in floats})
        return graph, len(products), [each.name for each in products if each.name in floats]

    def _find_kept(
        self, plans: dict[str, ProductPlan], sizes: dict[str, int], sample: "_Sample"
    ) -> frozenset[str]:
        fp32 = self._subject.open(self._subject.graph)
        whole = self._subject.batches(sample.texts)
        few = self._subject.batches(_spread(sample.texts, _DAMAGE_TEXTS))
        reference, owners = self._subject.outputs(fp32, whole)
        reference_few, _ = self._subject.outputs(fp32, few)
        groups = owners if sample.groups is None else sample.groups

        def flips(kept: frozenset[str]) -> float:
            graph = self._build({n: plan for n, plan in plans.items() if n not in kept})
            verdict = self._subject.judge(
                reference, self._outputs(graph, whole), owners=groups, bounds=self._bounds
            )
            self._echo(
                f"{len(kept)} of {len(plans)} products in float: {verdict.flips:.2%} "
                f"{CHANGES[verdict.measure]}"
            )
            return max(verdict.flips, verdict.swaps or 0.0)

        def damage(name: str) -> float:
            found = self._outputs(self._build({name: plans[name]}), few)
            return float(np.abs(found - reference_few).mean())

        bound = self._bounds.flips * _MARGIN
        return find_sensitive(sizes, flips=flips, damage=damage, bound=bound)

    def _build(self, plans: dict[str, ProductPlan]) -> bytes:
        content: bytes = quantize(self._model, plans).SerializeToString()
        return content

    def _outputs(self, graph: bytes, batches: Sequence[TextBatch]) -> FloatArray:
        with temporary_graph(graph, self._subject.graph) as path:
            executor = self._subject.open(path)
        return self._subject.outputs(executor, batches)[0]


class _Sample(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Holds texts for the search and, if documents are ranked, the query of each text."""

    texts: list[Text]
    groups: IntArray | None

    @classmethod
    def of(cls, golden: GoldenSet, places: Sequence[int]) -> "_Sample":
        groups = None
        if golden.groups is not None:
            groups = np.array([golden.groups[place] for place in places], dtype=np.int32)
        return cls(texts=[golden.texts[place] for place in places], groups=groups)


def _spread(values: Sequence[T], most: int) -> list[T]:
    """Return at most `most` values, evenly spread, because files are often sorted by label."""
    if len(values) <= most:
        return list(values)
    return [values[place] for place in np.linspace(0, len(values) - 1, most).astype(int)]


def find_sensitive(
    sizes: Mapping[str, int], *, flips: Flips, damage: Callable[[str], float], bound: float
) -> frozenset[str]:
    """Return products to keep in float, so that `flips` of these products is at most `bound`.

    `flips` gets the products that stay in float, and returns the share of labels that change.
    `damage` returns how much logits change if only the given product is in int8. The search begins
    with the products that do the most damage in relation to their size. `damage` is called only if
    int8 for all products exceeds `bound`.
    """
    if flips(frozenset()) <= bound:
        return frozenset()
    order = sorted(sizes, key=lambda name: damage(name) / sizes[name], reverse=True)
    too_few, enough = 0, len(order)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if flips(frozenset(order[:middle])) <= bound:
            enough = middle
        else:
            too_few = middle
    return frozenset(order[:enough])
