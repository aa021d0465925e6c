"""Finds the model that a variant is made of, the graph below it, and how answers are judged."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from backends.device_defaults import BatchBounds, batch_bounds
from backends.errors import StartProblem
from backends.executors.base import ModelExecutor
from backends.executors.opening import executor_opener
from backends.executors.pooling import PoolingExecutor
from backends.gpus import GPU_PROVIDERS
from backends.model_tools.tuning.profile import ROUNDING
from backends.pipelines.head import read_head_weights
from backends.qualification.forms import find_quickest
from backends.qualification.gate import Measure
from backends.qualification.golden_texts import GoldenSet
from backends.qualification.judged import kind_of, rank_scores
from backends.qualification.text_runs import TextBatch, make_batches, run_texts
from backends.repository.catalogue import Catalogue
from backends.repository.manifest import (
    EncoderManifest,
    GraphManifest,
    HeadManifest,
    builds_on,
)
from backends.repository.model import Model
from backends.serving.loading import OpenExecutor, graph_source
from backends.settings import BackendSettings
from backends.tokenization.tokenizer import Tokenizer
from backends.types import Encoding, FloatArray, IntArray, OutputKind, Text

_EITHER_OR = 2
# Eight rows of like length cost a CPU the least per row; a GPU is idle with so few.
_ROWS_CPU, _ROWS_GPU = 8, 64


class TunedModel(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Holds a `model`, and `below` it the graph's: itself, or the encoder of a head.

    `graph` is the file in fp32 that a backend opens here: the quickest of its forms.

    `apply` makes what is judged of the graph's output, by `measure`; with `several` each logit is
    a decision. `dependents` names the models that build on the graph, but for `model`. It is run
    in batches of `rows`.
    """

    model: Model
    below: Model
    manifest: GraphManifest
    graph: Path
    measure: Measure
    reads_pairs: bool
    labels: list[str]
    several: bool
    dependents: list[str]
    rows: int
    tokenizer: Tokenizer
    apply: Callable[[FloatArray], FloatArray]
    provider: str
    bounds: BatchBounds
    open_executor: OpenExecutor

    @property
    def output(self) -> OutputKind:
        """The output of the graph that answers are made of."""
        return OutputKind.TOKENS if self.measure == "tokens" else OutputKind.POOLED

    def open(self, graph: Path, profile: str = "fp32") -> ModelExecutor:
        """Open a graph in the place of the one in fp32, to be run in `profile`."""
        source = graph_source(self.below, self.manifest)
        # Without a digest nothing is kept beside a file that will be gone.
        source = msgspec.structs.replace(source, path=graph, digest="", profile=profile)
        executor = self.open_executor(source)
        if isinstance(self.manifest, EncoderManifest) and self.manifest.pooling is not None:
            return PoolingExecutor(executor, self.manifest.pooling)
        return executor

    def find_form(self, profile: str) -> Path | None:
        """Return the file that runs in `profile` here, the graph being in fp32; `None` without one.

        On CUDA it is the quickest form in that precision; other runtimes round by themselves.
        """
        source = msgspec.structs.replace(graph_source(self.below, self.manifest), profile=profile)
        rounds = profile in ROUNDING.get(self.provider, ())
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

    def answers(
        self, executor: ModelExecutor, batches: Sequence[TextBatch]
    ) -> tuple[FloatArray, IntArray]:
        """Return what is judged of every text over `executor`, and the text of each line."""
        layout = self.tokenizer.layout
        trim = (layout.before, layout.added - layout.before)
        found, owners = run_texts(executor, batches, trim=trim)
        return self.apply(found), owners

    def encode(self, texts: Sequence[Text]) -> list[Encoding]:
        """Return the rows of texts, each cut to what the graph reads."""
        prompt = ""
        if isinstance(self.manifest, EncoderManifest) and self.output is OutputKind.POOLED:
            prompt = self.manifest.prompt
        return self.tokenizer.encode_now(
            [prompt + text if isinstance(text, str) else text for text in texts]
        )

    def encode_ids(self, texts: Sequence[str]) -> list[IntArray]:
        """Return the token ids of texts without a prompt, as qualification runs them."""
        return [encoding.ids for encoding in self.tokenizer.encode_now(texts)]

    def places(self, golden: GoldenSet) -> list[int] | None:
        """Return the column of each text's label, where labels are known and a text has one.

        Raises:
            StartProblem: the model knows no such label.
        """
        if golden.labels is None or self.several or self.measure != "labels":
            return None
        columns = {label: place for place, label in enumerate(self.labels)}
        unknown = next((label for label in golden.labels if label not in columns), None)
        if unknown is not None:
            raise StartProblem(f"`{self.model.name}` has no label `{unknown}`")
        return [columns[label] for label in golden.labels]

    def suited(self, golden: GoldenSet, file: Path) -> GoldenSet:
        """Return the texts of a file as this model reads them, without those it would refuse.

        Raises:
            StartProblem: none is left.
        """
        suited = golden.suited_to(self.measure, reads_pairs=self.reads_pairs)
        if not self.manifest.truncate:
            rows = enumerate(self.encode(suited.texts))
            suited = suited.take([place for place, row in rows if not row.truncated_from])
        if not suited.texts:
            raise StartProblem(
                f"`{file}` holds too few texts that `{self.model.name}` reads: give hundreds, of a "
                "ranking several documents for each query"
            )
        return suited


def find_tuned_model(catalogue: Catalogue, name: str, settings: BackendSettings) -> TunedModel:
    """Return the model `name` of a repository.

    Raises:
        StartProblem: it is not there, runs no graph of its own, or none in fp32.
    """
    model = find_model(catalogue, name)
    below, graph, apply = _find_graph(catalogue, model)
    manifest = model.manifest
    measure, reads_pairs = kind_of(manifest)
    labels = [] if isinstance(manifest, EncoderManifest) else list(getattr(manifest, "labels", []))
    if measure == "labels" and len(labels) < _EITHER_OR:
        raise StartProblem(f"`{name}` has one label, which cannot flip: nothing could be judged")
    if graph.profile != "fp32":
        raise StartProblem(
            f"`{name}` runs in `{graph.profile}` already; remove the folder `{model.folder}` to go "
            "back to the revision before"
        )
    with ThreadPoolExecutor(1) as pool:
        # No thread of it is used: everything is encoded in the calling one.
        file = below.file(graph.tokenizer)
        tokenizer = Tokenizer(
            file,
            pool=pool,
            truncate_to=graph.max_tokens,
            lowercase=graph.lowercase,
            token_types=graph.token_types,
            split_special_tokens=graph.split_special_tokens,
        )
    # Graphs are opened by the dozen: a wide session of each, for single batches, is waste.
    opener = executor_opener(msgspec.structs.replace(settings, wide="never"))
    source = graph_source(below, graph)
    served = find_quickest(
        source,
        provider=settings.provider,
        open_executor=opener,
        bounds=batch_bounds(settings),
    )
    return TunedModel(
        model=model,
        below=below,
        manifest=graph,
        graph=source.path.with_name(served.file),
        measure=measure,
        reads_pairs=reads_pairs,
        labels=labels,
        several=getattr(manifest, "function", "") == "sigmoid",
        dependents=[
            other.name
            for other in catalogue.models.values()
            if below.name in builds_on(other.manifest) and other.name != name
        ],
        rows=_ROWS_GPU if settings.provider in GPU_PROVIDERS else _ROWS_CPU,
        tokenizer=tokenizer,
        apply=rank_scores if measure == "order" else apply,
        provider=settings.provider,
        bounds=batch_bounds(settings),
        open_executor=opener,
    )


def find_model(catalogue: Catalogue, name: str) -> Model:
    """Return a model of a repository.

    Raises:
        StartProblem: it is not there, broken, or run by another server.
    """
    if name not in catalogue.models:
        reason = catalogue.problems.get(name, "it is not in the repository")
        raise StartProblem(f"`{name}` cannot be tuned: {reason}")
    if catalogue.models[name].upstream is not None:
        raise StartProblem(f"`{name}` is run by another server, and tuned there")
    return catalogue.models[name]


def find_graph_model(catalogue: Catalogue, name: str) -> Model:
    """Return the model whose graph a model's rows go through: itself, or the one it builds on.

    Raises:
        StartProblem: it is not there, or builds on several.
    """
    model = find_model(catalogue, name)
    if isinstance(model.manifest, GraphManifest):
        return model
    below = list(dict.fromkeys(builds_on(model.manifest)))
    if len(below) != 1:
        named = ", ".join(f"`{each}`" for each in below)
        raise StartProblem(f"`{name}` has no graph of its own; tune those it builds on: {named}")
    return find_graph_model(catalogue, below[0])


def _find_graph(
    catalogue: Catalogue, model: Model
) -> tuple[Model, GraphManifest, Callable[[FloatArray], FloatArray]]:
    """Return the model of the graph below, its manifest, and what makes logits of its output."""
    manifest = model.manifest
    if isinstance(manifest, GraphManifest):
        return model, manifest, lambda output: output
    if not isinstance(manifest, HeadManifest):
        named = ", ".join(f"`{each}`" for each in dict.fromkeys(builds_on(manifest)))
        raise StartProblem(
            f"`{model.name}` has no graph of its own; tune those it builds on: {named}"
        )
    below = find_model(catalogue, manifest.encoder)
    if not isinstance(below.manifest, EncoderManifest):
        raise StartProblem(f"`{below.name}`, which `{model.name}` builds on, is no encoder")
    weights = read_head_weights(model, manifest, inputs=below.manifest.dimensions)
    return below, below.manifest, weights.apply
