"""The model a precision is made for: a classifier, its encoder, and what texts they answer."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from backends.errors import StartProblem
from backends.executors.base import ModelExecutor
from backends.executors.graph import GraphSource
from backends.executors.onnx import OnnxExecutor
from backends.pipelines.head import HeadWeights, read_head
from backends.protocol import Task
from backends.repository.catalogue import Catalogue, Model
from backends.repository.manifest import EncoderManifest, HeadManifest
from backends.tokenization.tokenizer import Tokenizer
from backends.tuning.runs import Batch, pooled
from backends.types import FloatArray, IntArray, OutputKind


class Subject(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A classifier over the pooled output of an encoder."""

    head: Model
    head_manifest: HeadManifest
    encoder: Model
    encoder_manifest: EncoderManifest
    weights: HeadWeights
    lanes: int

    @property
    def graph(self) -> Path:
        """The encoder's graph."""
        return self.encoder.file(self.encoder_manifest.graph)

    def open(self, graph: Path) -> ModelExecutor:
        """Open a graph in the place of the encoder's."""
        names = self.encoder_manifest.outputs
        given = {OutputKind.POOLED: names.pooled, OutputKind.TOKENS: names.tokens}
        source = GraphSource(
            path=graph,
            outputs={kind: name for kind, name in given.items() if name is not None},
            dimensions=self.encoder_manifest.dimensions,
        )
        return OnnxExecutor(source, lanes=self.lanes)

    def logits(self, executor: ModelExecutor, batches: Sequence[Batch]) -> FloatArray:
        """Return the logits of every text over `executor`."""
        return self.weights.apply(pooled(executor, batches))

    def encode(self, texts: Sequence[str]) -> list[IntArray]:
        """Return the token ids of texts, each cut to what the encoder reads."""
        longest = self.encoder_manifest.max_tokens
        with ThreadPoolExecutor(1) as pool:
            path = self.encoder.file(self.encoder_manifest.tokenizer)
            tokenizer = Tokenizer(path, pool=pool, truncate_to=longest)
            return [encoding.ids for encoding in tokenizer.encode_now(texts)]

    def places(self, labels: Sequence[str]) -> list[int]:
        """Return the column of each label.

        Raises:
            StartProblem: the model knows no such label.
        """
        columns = {label: place for place, label in enumerate(self.head_manifest.labels)}
        unknown = next((label for label in labels if label not in columns), None)
        if unknown is not None:
            raise StartProblem(f"`{self.head.name}` has no label `{unknown}`")
        return [columns[label] for label in labels]


def find_subject(catalogue: Catalogue, name: str, *, lanes: int) -> Subject:
    """Return the classifier `name` of a repository.

    Raises:
        StartProblem: it is not there, or is no classifier over an encoder in fp32.
    """
    model = find_model(catalogue, name)
    if not isinstance(model.manifest, HeadManifest) or model.manifest.task is not Task.CLASSIFY:
        raise StartProblem(f"`{name}` is no classifier: a precision is judged by labels that flip")
    encoder = find_model(catalogue, model.manifest.encoder)
    if not isinstance(encoder.manifest, EncoderManifest):
        raise StartProblem(f"`{encoder.name}`, which `{name}` builds on, is no encoder")
    if encoder.manifest.profile != "fp32":
        raise StartProblem(
            f"`{name}` runs in `{encoder.manifest.profile}` already; remove the folder "
            f"`{model.folder}` to go back to the revision before"
        )
    layers = read_head(
        model.file(model.manifest.weights),
        inputs=encoder.manifest.dimensions,
        outputs=len(model.manifest.labels),
    )
    return Subject(
        head=model,
        head_manifest=model.manifest,
        encoder=encoder,
        encoder_manifest=encoder.manifest,
        weights=HeadWeights(
            layers,
            activation=model.manifest.activation,
            normalize_input=model.manifest.normalize_input,
        ),
        lanes=lanes,
    )


def find_model(catalogue: Catalogue, name: str) -> Model:
    """Return a model of a repository.

    Raises:
        StartProblem: it is not there, or broken.
    """
    if name not in catalogue.models:
        reason = catalogue.problems.get(name, "it is not in the repository")
        raise StartProblem(f"`{name}` cannot be tuned: {reason}")
    return catalogue.models[name]
