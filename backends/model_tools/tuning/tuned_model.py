"""Finds the model from which variants are made, its graph, and the way to judge its outputs."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from sluicegate.backends.device_defaults import BatchBounds, batch_bounds
from sluicegate.backends.errors import StartProblem
from sluicegate.backends.executors.base import ModelExecutor
from sluicegate.backends.executors.opening import OpenExecutor, executor_opener
from sluicegate.backends.executors.pooling import PoolingExecutor
from sluicegate.backends.model_tools.tuning.options import ROUNDING
from sluicegate.backends.pipelines.head import read_head_weights
from sluicegate.backends.qualification.gate import Bounds, Measure, Verdict, judge
from sluicegate.backends.qualification.golden_texts import GoldenSet
from sluicegate.backends.qualification.graph_choice import find_quickest
from sluicegate.backends.qualification.measures import kind_of, rank_scores
from sluicegate.backends.qualification.text_runs import TextBatch, make_batches, run_texts
from sluicegate.backends.repository.catalogue import Catalogue
from sluicegate.backends.repository.manifest import (
    ClassifierManifest,
    EncoderManifest,
    GraphManifest,
    HeadManifest,
    SpanManifest,
    builds_on,
)
from sluicegate.backends.repository.model import Model
from sluicegate.backends.serving.loading import graph_source
from sluicegate.backends.settings import BackendSettings
from sluicegate.backends.tokenization.tokenizer import Tokenizer
from sluicegate.backends.types import Encoding, FloatArray, IntArray, OutputKind, Text
from sluicegate.wire.gpus import GPU_PROVIDERS

_EITHER_OR = 2
# For a CPU, eight rows of similar length cost the least per row. A GPU needs more.
_ROWS_CPU, _ROWS_GPU = 8, 64


class TunedModel(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Holds a model to tune, its graph, and the way to compare its outputs.

    `graph_model` is the model that owns the graph: the encoder for a head, otherwise `model`
    itself. `graph` is the quickest fp32 graph, which a backend on this machine opens. `apply` turns
    the graph's outputs into the values to compare. `measure` says how these values are compared.
    With `multi_label`, each logit decides on one label. `dependents` lists the other models that
    build on the graph. `rows` is the batch size.
    """

    model: Model
    graph_model: Model
    manifest: GraphManifest
    graph: Path
    measure: Measure
    reads_pairs: bool
    labels: list[str]
    multi_label: bool
    dependents: list[str]
    rows: int
    tokenizer: Tokenizer
    apply: Callable[[FloatArray], FloatArray]
    provider: str
    bounds: BatchBounds
    open_executor: OpenExecutor

    @property
    def output(self) -> OutputKind:
        """The kind of graph output from which results are computed."""
        return OutputKind.TOKENS if self.measure in {"tokens", "spans"} else OutputKind.POOLED

    def open(self, graph: Path, precision: str = "fp32") -> ModelExecutor:
        """Open a graph that replaces the fp32 graph, and run it in `precision`."""
        source = graph_source(self.graph_model, self.manifest)
        # The digest is omitted, so that nothing is recorded beside the temporary file.
        source = msgspec.structs.replace(source, path=graph, digest="", precision=precision)
        executor = self.open_executor(source)
        if isinstance(self.manifest, EncoderManifest) and self.manifest.pooling is not None:
            return PoolingExecutor(executor, self.manifest.pooling)
        return executor

    def find_graph(self, precision: str) -> Path | None:
        """Return the file of the graph for `precision` on this device; `None` if there is none.

        On CUDA, this is the quickest graph in that precision. Other runtimes round the fp32 graph.
        """
        source = msgspec.structs.replace(
            graph_source(self.graph_model, self.manifest), precision=precision
        )
        rounds = precision in ROUNDING.get(self.provider, ())
        if not rounds and self.provider != "cuda":
            return None
        found = find_quickest(
            source,
            provider=self.provider,
            open_executor=self.open_executor,
            bounds=self.bounds,
        )
        path = source.path.with_name(found.file)
        return path if rounds or path != source.path else None

    def batches(self, texts: Sequence[Text]) -> list[TextBatch]:
        """Return the rows of texts in batches."""
        return make_batches(self.encode(texts), size=self.rows, output=self.output)

    def outputs(
        self, executor: ModelExecutor, batches: Sequence[TextBatch]
    ) -> tuple[FloatArray, IntArray]:
        """Return lines of values to compare, and for each line the index of its text."""
        layout = self.tokenizer.layout
        trim = (layout.before, layout.added - layout.before)
        found, owners = run_texts(executor, batches, trim=trim)
        return self.apply(found), owners

    def encode(self, texts: Sequence[Text]) -> list[Encoding]:
        """Return the tokens of each text, truncated to the length that the graph reads."""
        prompt = ""
        if isinstance(self.manifest, EncoderManifest) and self.output is OutputKind.POOLED:
            prompt = self.manifest.prompt
        template = self.manifest.template if isinstance(self.manifest, ClassifierManifest) else None
        if template is not None:
            texts = [
                text if isinstance(text, str) else template.fill(query=text[0], document=text[1])
                for text in texts
            ]
        return self.tokenizer.encode_now(
            [prompt + text if isinstance(text, str) else text for text in texts]
        )

    def encode_ids(self, texts: Sequence[str]) -> list[IntArray]:
        """Return the token ids of each text, without the model's prompt."""
        return [encoding.ids for encoding in self.tokenizer.encode_now(texts)]

    def places(self, golden: GoldenSet) -> list[int] | None:
        """Return the index of each text's label in `labels`.

        Return `None` if the labels of the texts are unknown, or are not compared.

        Raises:
            StartProblem: the model does not have one of the labels.
        """
        if golden.labels is None or self.multi_label or self.measure != "labels":
            return None
        columns = {label: place for place, label in enumerate(self.labels)}
        unknown = next((label for label in golden.labels if label not in columns), None)
        if unknown is not None:
            raise StartProblem(f"`{self.model.name}` has no label `{unknown}`")
        return [columns[label] for label in golden.labels]

    def judge(
        self,
        reference: FloatArray,
        found: FloatArray,
        *,
        owners: IntArray,
        bounds: Bounds,
        expected: Sequence[int] | None = None,
    ) -> Verdict:
        """Compare outputs for the same texts, in the way that `measure` says."""
        return judge(
            reference,
            found,
            expected=expected,
            bounds=bounds,
            multi_label=self.multi_label,
            measure=self.measure,
            owners=owners,
        )

    def suited(self, golden: GoldenSet, file: Path) -> GoldenSet:
        """Return the texts of a file as this model reads them, without texts that it would refuse.

        Raises:
            StartProblem: no text remains.
        """
        suited = golden.suited_to(self.measure, reads_pairs=self.reads_pairs)
        if not self.manifest.truncate:
            rows = enumerate(self.encode(suited.texts))
            suited = suited.take([place for place, row in rows if not row.truncated_from])
        if not suited.texts:
            raise StartProblem(
                f"`{file}` has too few texts that `{self.model.name}` can read; give hundreds, and "
                "for a ranking model several documents for each query"
            )
        return suited


def find_tuned_model(catalogue: Catalogue, name: str, settings: BackendSettings) -> TunedModel:
    """Return the model `name` of a repository.

    Raises:
        StartProblem: the model does not exist or has no graph, its graph is not in fp32 or has
            adapters, or texts alone cannot show what a variant changes.
    """
    model = find_model(catalogue, name)
    graph_model, graph, apply = _find_graph(catalogue, model)
    manifest = model.manifest
    if isinstance(manifest, SpanManifest):
        raise StartProblem(
            f"`{name}` reads texts with labels of requests, so texts alone cannot judge a variant "
            "of it; serve it in fp32"
        )
    if isinstance(graph, EncoderManifest) and graph.adapters:
        raise StartProblem(
            f"`{graph_model.name}` has adapters, and texts alone judge its base model only; import "
            "each adapter as a model of its own, and make variants of these models"
        )
    measure, reads_pairs = kind_of(manifest)
    labels = [] if isinstance(manifest, EncoderManifest) else list(getattr(manifest, "labels", []))
    if measure == "labels" and len(labels) < _EITHER_OR:
        raise StartProblem(f"`{name}` has one label, which cannot flip, so it cannot be judged")
    if graph.profile != "fp32":
        raise StartProblem(
            f"`{name}` runs in `{graph.profile}` already; to go back to the earlier revision, "
            f"remove the folder `{model.folder}`"
        )
    # Many graphs are opened, so they get no second session for single batches.
    opener = executor_opener(msgspec.structs.replace(settings, wide="never"))
    source = graph_source(graph_model, graph)
    served = find_quickest(
        source,
        provider=settings.provider,
        open_executor=opener,
        bounds=batch_bounds(settings),
    )
    return TunedModel(
        model=model,
        graph_model=graph_model,
        manifest=graph,
        graph=source.path.with_name(served.file),
        measure=measure,
        reads_pairs=reads_pairs,
        labels=labels,
        multi_label=getattr(manifest, "function", "") == "sigmoid",
        dependents=[
            other.name
            for other in catalogue.models.values()
            if graph_model.name in builds_on(other.manifest) and other.name != name
        ],
        rows=_ROWS_GPU if settings.provider in GPU_PROVIDERS else _ROWS_CPU,
        tokenizer=open_tokenizer(graph_model, graph, truncate_to=graph.max_tokens),
        apply=rank_scores if measure == "order" else apply,
        provider=settings.provider,
        bounds=batch_bounds(settings),
        open_executor=opener,
    )


def open_tokenizer(model: Model, manifest: GraphManifest, *, truncate_to: int | None) -> Tokenizer:
    """Return the tokenizer of a model, for use with `encode_now` only."""
    # `encode_now` runs in the calling thread, so the pool may be closed.
    with ThreadPoolExecutor(1) as pool:
        return Tokenizer(
            model.file(manifest.tokenizer),
            pool=pool,
            truncate_to=truncate_to,
            lowercase=manifest.lowercase,
            token_types=manifest.token_types,
            split_special_tokens=manifest.split_special_tokens,
        )


def find_model(catalogue: Catalogue, name: str) -> Model:
    """Return a model of a repository.

    Raises:
        StartProblem: the model does not exist, is broken, or runs on another server.
    """
    if name not in catalogue.models:
        reason = catalogue.problems.get(name, "it is not in the repository")
        raise StartProblem(f"`{name}` cannot be tuned: {reason}")
    if catalogue.models[name].upstream is not None:
        raise StartProblem(f"`{name}` runs on another server; tune it there")
    return catalogue.models[name]


def find_graph_model(catalogue: Catalogue, name: str) -> Model:
    """Return the model whose graph runs a model's rows.

    This is the model itself, or the model that it builds on.

    Raises:
        StartProblem: the model does not exist, or builds on several models.
    """
    model = find_model(catalogue, name)
    if isinstance(model.manifest, GraphManifest):
        return model
    needed = list(dict.fromkeys(builds_on(model.manifest)))
    if len(needed) != 1:
        named = ", ".join(f"`{each}`" for each in needed)
        raise StartProblem(f"`{name}` has no graph; tune the models it builds on: {named}")
    return find_graph_model(catalogue, needed[0])


def _find_graph(
    catalogue: Catalogue, model: Model
) -> tuple[Model, GraphManifest, Callable[[FloatArray], FloatArray]]:
    """Return the model of the graph, its manifest, and the function from its outputs to logits."""
    manifest = model.manifest
    if isinstance(manifest, GraphManifest):
        return model, manifest, lambda output: output
    if not isinstance(manifest, HeadManifest):
        named = ", ".join(f"`{each}`" for each in dict.fromkeys(builds_on(manifest)))
        raise StartProblem(f"`{model.name}` has no graph; tune the models it builds on: {named}")
    graph_model = find_model(catalogue, manifest.encoder)
    if not isinstance(graph_model.manifest, EncoderManifest):
        raise StartProblem(
            f"`{graph_model.name}`, which `{model.name}` builds on, is not an encoder"
        )
    weights = read_head_weights(model, manifest, inputs=graph_model.manifest.dimensions)
    return graph_model, graph_model.manifest, weights.apply
