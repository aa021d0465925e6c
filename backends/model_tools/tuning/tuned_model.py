"""Finds the classifier that a variant is made of, and the graph below it."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from backends.errors import StartProblem
from backends.executors.base import ModelExecutor
from backends.executors.opening import executor_opener
from backends.executors.pooling import PoolingExecutor
from backends.model_tools.tuning.runs import TextBatch, pooled
from backends.pipelines.head import read_head_weights
from backends.protocol import Task
from backends.repository.catalogue import Catalogue
from backends.repository.manifest import (
    ClassifierManifest,
    EncoderManifest,
    GraphManifest,
    HeadManifest,
)
from backends.repository.model import Model
from backends.serving.loading import OpenExecutor, graph_source
from backends.settings import BackendSettings
from backends.tokenization.tokenizer import Tokenizer
from backends.types import FloatArray, IntArray

_EITHER_OR = 2


class TunedModel(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Holds a classifier `model`, and `below` it the graph's: itself, or its encoder.

    `apply` makes logits of the graph's vectors; with `several` each of them is a decision.
    """

    model: Model
    below: Model
    manifest: GraphManifest
    labels: list[str]
    several: bool
    apply: Callable[[FloatArray], FloatArray]
    open_executor: OpenExecutor

    @property
    def graph(self) -> Path:
        """The graph in fp32."""
        return self.below.file(self.manifest.graph)

    def open(self, graph: Path) -> ModelExecutor:
        """Open a graph in the place of the one in fp32."""
        source = graph_source(self.below, self.manifest)
        # Without a digest nothing is kept beside a file that will be gone.
        executor = self.open_executor(msgspec.structs.replace(source, path=graph, digest=""))
        if isinstance(self.manifest, EncoderManifest) and self.manifest.pooling is not None:
            return PoolingExecutor(executor, self.manifest.pooling)
        return executor

    def logits(self, executor: ModelExecutor, batches: Sequence[TextBatch]) -> FloatArray:
        """Return the logits of every text over `executor`."""
        return self.apply(pooled(executor, batches))

    def encode(self, texts: Sequence[str]) -> list[IntArray]:
        """Return the token ids of texts, each cut to what the graph reads."""
        with ThreadPoolExecutor(1) as pool:
            path = self.below.file(self.manifest.tokenizer)
            tokenizer = Tokenizer(path, pool=pool, truncate_to=self.manifest.max_tokens)
            return [encoding.ids for encoding in tokenizer.encode_now(texts)]

    def places(self, labels: Sequence[str]) -> list[int]:
        """Return the column of each label.

        Raises:
            StartProblem: the model knows no such label.
        """
        columns = {label: place for place, label in enumerate(self.labels)}
        unknown = next((label for label in labels if label not in columns), None)
        if unknown is not None:
            raise StartProblem(f"`{self.model.name}` has no label `{unknown}`")
        return [columns[label] for label in labels]


def find_tuned_model(catalogue: Catalogue, name: str, settings: BackendSettings) -> TunedModel:
    """Return the classifier `name` of a repository.

    Raises:
        StartProblem: it is not there, or is no classifier of texts in fp32.
    """
    model = find_model(catalogue, name)
    manifest = model.manifest
    graph: GraphManifest
    apply: Callable[[FloatArray], FloatArray]
    if isinstance(manifest, ClassifierManifest) and Task.CLASSIFY in manifest.tasks:
        below, graph, apply = model, manifest, lambda logits: logits
    elif isinstance(manifest, HeadManifest) and manifest.task is Task.CLASSIFY:
        below = find_model(catalogue, manifest.encoder)
        if not isinstance(below.manifest, EncoderManifest):
            raise StartProblem(f"`{below.name}`, which `{name}` builds on, is no encoder")
        graph = below.manifest
        apply = read_head_weights(model, manifest, inputs=graph.dimensions).apply
    else:
        raise StartProblem(f"`{name}` is no classifier: a precision is judged by labels that flip")
    if len(manifest.labels) < _EITHER_OR:
        raise StartProblem(f"`{name}` has one label, which cannot flip: nothing could be judged")
    if graph.profile != "fp32":
        raise StartProblem(
            f"`{name}` runs in `{graph.profile}` already; remove the folder `{model.folder}` to go "
            "back to the revision before"
        )
    return TunedModel(
        model=model,
        below=below,
        manifest=graph,
        labels=manifest.labels,
        several=manifest.function == "sigmoid",
        apply=apply,
        # Graphs are opened by the dozen: a wide session of each, for single batches, is waste.
        open_executor=executor_opener(msgspec.structs.replace(settings, wide="never")),
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
