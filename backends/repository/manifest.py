"""Defines the fields of a `model.yaml`."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml

from sluicegate.backends.errors import ModelProblem
from sluicegate.backends.open_inference.address import RemoteModelServer
from sluicegate.backends.repository.manifest_defaults import infer
from sluicegate.backends.repository.names import Name, Reference
from sluicegate.backends.repository.sentence_modules import Files
from sluicegate.backends.types import AdaptedPrompt, Pooling, Prompt
from sluicegate.wire.protocol import Function, Task, TokenId

File = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Count = Annotated[int, msgspec.Meta(ge=1)]
_SLOT = re.compile(r"(\{query\}|\{document\}|\{instruction\})")


class Outputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds the names of a graph's outputs.

    The output `pooled` has one vector for each row. The output `tokens` has one vector for each
    token. The output `joined` has all vectors of a row in one line: the pooled vector, a sparse
    vector over the vocabulary, and then for each token its vector and its weight.
    """

    pooled: str | None = None
    tokens: str | None = None
    joined: str | None = None


class SparseOutput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Describes a sparse vector, which has a weight for each token of the vocabulary.

    If the graph computes the vector, `vocabulary` is its length. Otherwise, the graph has a weight
    for each token of the text: then the largest weight of each token counts, and tokens in
    `skipped` are left out.
    """

    vocabulary: Count | None = None
    skipped: list[TokenId] = []


class MultiVectorOutput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Describes token vectors for late interaction, as in ColBERT.

    - `query_prefix` and `document_prefix` are the tokens that mark a text, after the first token.
    - `query_length` and `document_length` are the most tokens of a text with its marks.
    - A query is filled with `expansion` tokens up to its length, and their vectors count. Tokens
      attend to them only with `attends_to_expansion`.
    - The vectors of the tokens `skipped` in documents, and of the first `leading` tokens of every
      text, are left out.
    """

    dimensions: Count
    query_prefix: TokenId | None = None
    document_prefix: TokenId | None = None
    query_length: Count | None = None
    document_length: Count | None = None
    expansion: TokenId | None = None
    attends_to_expansion: bool = False
    skipped: list[TokenId] = []
    leading: Annotated[int, msgspec.Meta(ge=0)] = 0


class _Manifest(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"
):
    description: str = ""
    demonstration: bool = False


class RankingTemplate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Says how a decoder reads a query with an instruction, and a document.

    `query` has the slots `{instruction}` and `{query}`, and `document` the slot `{document}`.
    `instruction` is the instruction of requests without one.
    """

    query: str = "{query}"
    document: str = "{document}"
    instruction: str = ""

    def fill(self, *, query: str, document: str, instruction: str | None = None) -> tuple[str, str]:
        """Return the pair of texts that the model reads."""
        wanted = self.instruction if instruction is None else instruction
        given = {"{query}": query, "{document}": document, "{instruction}": wanted}
        first, second = (
            "".join(given.get(part, part) for part in _SLOT.split(text))
            for text in (self.query, self.document)
        )
        return first, second


class _GraphManifest(_Manifest, frozen=True, kw_only=True):
    """Describes a model with a graph and a tokenizer."""

    graph: File = ""
    upstream: RemoteModelServer | None = None
    """The server that runs the model, instead of a local `graph`."""
    tokenizer: File
    max_tokens: Count
    profile: Name = "fp32"
    """The precision of the graph."""
    max_batch_rows: Count | None = None
    """The most rows of a batch on a CPU, if neither a setting nor `models tune` says it."""
    truncate: bool = False
    """Whether texts that are too long are cut, instead of refused."""
    max_characters: Count | None = None
    """Where texts are cut before they are tokenized."""
    lowercase: bool = False
    """Whether texts are lower-cased before they are tokenized."""
    token_types: bool = True
    """Whether the second text of a pair gets token type 1, instead of 0."""
    split_special_tokens: bool = False
    """Whether a special token that occurs in a text is tokenized like ordinary text."""


class EncoderManifest(_GraphManifest, frozen=True, kw_only=True, tag="encoder"):
    """Describes an encoder.

    `pooling` says how to pool the token vectors, if the graph does not pool them. `prompt` is put
    before every text to embed. `prompts` are the prompts that a request can name instead; `query`
    and `document` are also used to rank documents. `adapters` are the LoRA adapters of the graph,
    among which `prompt_name` of a request chooses; a prompt with the same name is put before the
    text.
    """

    dimensions: Count
    tasks: list[Task] = []
    outputs: Outputs = Outputs(pooled="pooled")
    pooling: Pooling | None = None
    prompt: str = ""
    prompts: dict[str, str] = {}
    adapters: list[Name] = []
    sparse: SparseOutput | None = None
    multi_vector: MultiVectorOutput | None = None

    @property
    def named_prompts(self) -> dict[str, Prompt]:
        """The prompts that a request can name, with their adapters."""
        adapted = {
            name: AdaptedPrompt(self.prompts.get(name, self.prompt), number)
            for number, name in enumerate(self.adapters, 1)
        }
        return {**self.prompts, **adapted}

    @property
    def is_dense(self) -> bool:
        """Whether the model has one dense vector for a text."""
        own = self.sparse is not None or self.multi_vector is not None
        return not own or self.outputs.joined is not None


class ClassifierManifest(_GraphManifest, frozen=True, kw_only=True, tag="classifier"):
    """Describes a graph that returns logits for a text, a pair of texts, or every token.

    `function` turns logits into scores. If the graph returns one logit, the task `rerank` uses
    `rerank_function` instead, and puts its texts into the `template`.
    """

    output: str
    labels: Annotated[list[str], msgspec.Meta(min_length=1)]
    tasks: Annotated[list[Task], msgspec.Meta(min_length=1)]
    function: Function = "softmax"
    rerank_function: Function = "sigmoid"
    no_answer_token: str | None = None
    """The token at the start of a row whose logits stand for "no answer", in the task `answer`."""
    template: RankingTemplate | None = None

    @property
    def per_token(self) -> bool:
        """Whether the graph returns logits for each token, instead of for the whole text."""
        return self.tasks in ([Task.ENTITIES], [Task.ANSWER])


class LabelClasses(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Describes the output with a score of each label for a whole text.

    The rows for it have another `label_token` and `schema`. It is as wide as the output of spans.
    """

    output: str
    label_token: str
    schema: str


class LabelRelations(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Describes the output with the relations of a row.

    The output has the scores, and then the places, of the best spans for the heads and the tails:
    of at most `max_count` relations of each of `max_labels` types. The rows for it have another
    `label_token`.
    """

    output: str
    label_token: str
    max_count: Count
    max_labels: Count

    @property
    def width(self) -> int:
        """The values of a row."""
        return 2 * self.max_count * self.max_labels * 2


class SpanManifest(_GraphManifest, frozen=True, kw_only=True, tag="spans"):
    """Describes a graph that scores spans of words for the labels of a request, as GLiNER does.

    `WordFormat` describes the fields that say how a row is made. The `output` has a score for each
    of `max_labels` labels.
    """

    output: str
    max_labels: Count
    max_width: Count
    max_words: Count
    label_token: str
    text_token: str
    label_place: Literal["token", "after"] = "token"
    word_place: Literal["first", "last"] = "first"
    schema: str = ""
    classes: LabelClasses | None = None
    relations: LabelRelations | None = None

    @property
    def tasks(self) -> list[Task]:
        """The tasks."""
        return [Task.ENTITIES] if self.classes is None else [Task.ENTITIES, Task.ZERO_SHOT]


class HeadManifest(_Manifest, frozen=True, kw_only=True, tag="head"):
    """Describes a trained head over an encoder."""

    encoder: Reference
    task: Task
    output: Literal["pooled", "tokens"]
    labels: Annotated[list[str], msgspec.Meta(min_length=1)]
    weights: File
    function: Function = "softmax"
    activation: Literal["relu", "gelu"] = "relu"
    normalize_input: bool = False


class AlgorithmManifest(_Manifest, frozen=True, kw_only=True, tag="algorithm"):
    """Describes an algorithm over other models: one `encoder`, or the models in `uses`.

    `options` are passed to the algorithm. `code` names the code of a `custom` algorithm.
    """

    algorithm: Name
    encoder: Reference | None = None
    uses: list[Reference] = []
    tasks: Annotated[list[Task], msgspec.Meta(min_length=1)]
    options: dict[str, Any] = {}
    code: str | None = None


class SplitManifest(_Manifest, frozen=True, kw_only=True, tag="split"):
    """Describes a traffic split: `weights` maps revisions to their weights."""

    weights: Annotated[dict[Reference, Count], msgspec.Meta(min_length=1)]


GraphManifest = EncoderManifest | ClassifierManifest | SpanManifest
Manifest = GraphManifest | HeadManifest | AlgorithmManifest | SplitManifest
FILE = "model.yaml"
_INFERRED = (None, "encoder", "classifier")
# The logits of `answer`: the start and the end.
_ENDS = 2
# A folder with one of these files was written by `save_pretrained`.
_AS_SAVED = ("config.json", "adapter_config.json", "modules.json", "model.safetensors")


def read_manifest(
    folder: Path, files: Files, declared: Mapping[str, Any]
) -> tuple[Manifest, dict[str, str]]:
    """Read the `model.yaml` of a folder, and infer the fields that it leaves out.

    Fields are inferred only for a local graph in an `.onnx` file. Such a model needs no
    `model.yaml` if all fields can be inferred from its other files.
    `declared` holds fields from a Triton configuration; fields of `model.yaml` take precedence over
    them.

    Returns:
        The manifest, and the source of each inferred field by the field's name.

    Raises:
        ModelProblem: the file is missing, is not YAML, has wrong fields, or lacks a field that
            cannot be inferred. The message names the file and the field.
    """
    path = files(FILE)
    document = _read_yaml(path)
    if document is None:
        graph = declared.get("graph", "model.onnx")
        if not files(graph).is_file():
            raise ModelProblem(_missing(folder, path, graph))
        document = {}
    sources: dict[str, str] = {}
    inferable = (
        isinstance(document, dict)
        and "upstream" not in document
        and str(document.get("graph", ".onnx")).endswith(".onnx")
    )
    if inferable and document.get("kind") in _INFERRED:
        document, sources = infer(document, folder, files, declared)
    try:
        manifest: Manifest = msgspec.convert(document, Manifest)
    except msgspec.ValidationError as error:
        raise ModelProblem(f"{path}: {error}") from None
    _check(manifest, path)
    return manifest, sources


def _missing(folder: Path, path: Path, graph: str) -> str:
    """Return the message for a folder that has neither a manifest nor a graph."""
    if is_as_saved(folder):
        return as_saved(folder)
    return f"{path}: the folder has neither this file nor `{graph}`"


def is_as_saved(folder: Path) -> bool:
    """Return whether a folder was written by `save_pretrained` or fetched from the hub."""
    return any((folder / name).is_file() for name in _AS_SAVED)


def as_saved(folder: Path) -> str:
    """Return the error message for a folder in the repository that `save_pretrained` wrote."""
    return (
        f"{folder}: this is a Hugging Face folder, not a revision; move it out of the "
        "repository, and import it with `sluicegate models import`"
    )


def _read_yaml(path: Path) -> Any:
    """Return the content of a YAML file; `None` if there is no file."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        where = " ".join(str(error).split())
        raise ModelProblem(f"{path}: cannot be read as YAML: {where}") from None
    return {} if document is None else document


def _check(manifest: Manifest, path: Path) -> None:
    """Refuse fields that are valid one by one, but contradict each other."""
    if isinstance(manifest, GraphManifest) and bool(manifest.graph) == bool(manifest.upstream):
        wrong: str | None = "name either a `graph` or an `upstream`"
    elif isinstance(manifest, EncoderManifest):
        is_twice = len(set(manifest.adapters)) != len(manifest.adapters)
        wrong = "`adapters` names an adapter twice" if is_twice else _check_encoder(manifest)
    elif isinstance(manifest, HeadManifest):
        wrong = _check_head(manifest)
    elif isinstance(manifest, ClassifierManifest):
        wrong = _check_classifier(manifest)
    elif isinstance(manifest, SplitManifest | SpanManifest):
        wrong = None
    else:
        wrong = None if builds_on(manifest) else "`encoder` or `uses` must name a model"
    if wrong is not None:
        raise ModelProblem(f"{path}: {wrong}")


def _check_encoder(manifest: EncoderManifest) -> str | None:
    if manifest.outputs == Outputs():
        return "`outputs` is empty; name `pooled` or `tokens`"
    if not set(manifest.tasks) <= {Task.EMBED, Task.RERANK}:
        return "an encoder can have the `tasks` `embed` and `rerank` only"
    if manifest.sparse is not None or manifest.multi_vector is not None:
        return _check_outputs(manifest, manifest.sparse, manifest.multi_vector)
    if manifest.outputs.joined is not None:
        return "the output `joined` needs a field `sparse` or `multi_vector`"
    if manifest.tasks and manifest.outputs.pooled is None and manifest.pooling is None:
        return "`tasks` need an output `pooled`, or `pooling` to pool the tokens"
    return None


def _check_outputs(
    manifest: EncoderManifest, sparse: SparseOutput | None, vectors: MultiVectorOutput | None
) -> str | None:
    if manifest.pooling is not None or manifest.adapters:
        return "`pooling` and `adapters` cannot be combined with `sparse` or `multi_vector`"
    if manifest.outputs.joined is not None:
        return None if manifest.outputs.pooled else "`joined` also needs an output `pooled`"
    if manifest.prompts and vectors is not None:
        return "`multi_vector` alone has prefixes in place of `prompts`; set `prompts` to {}"
    if sparse is not None and vectors is not None:
        return "`sparse` with `multi_vector` needs an output `joined`"
    if sparse is not None and sparse.vocabulary is not None:
        output, width = manifest.outputs.pooled, sparse.vocabulary
    else:
        output, width = manifest.outputs.tokens, 1 if vectors is None else vectors.dimensions
    if output is None or manifest.dimensions != width:
        return f"the graph's only output must be {width} wide, and `dimensions` the same"
    return None


def _check_classifier(manifest: ClassifierManifest) -> str | None:
    per_token = {Task.ENTITIES, Task.ANSWER}
    known = {Task.CLASSIFY, Task.ZERO_SHOT, Task.RERANK, Task.CHOOSE, *per_token}
    if not set(manifest.tasks) <= known:
        return f"`tasks` of a classifier can be {', '.join(f'`{task}`' for task in sorted(known))}"
    if not per_token.isdisjoint(manifest.tasks) and not manifest.per_token:
        task = next(task for task in manifest.tasks if task in per_token)
        return f"`{task}` cannot be combined with another task, because its logits are per token"
    if Task.ANSWER in manifest.tasks and len(manifest.labels) != _ENDS:
        return (
            f"`answer` needs {_ENDS} `labels`: one for the start and one for the end of an answer"
        )
    if len(set(manifest.labels)) != len(manifest.labels):
        return "`labels` names a label twice"
    return None


def _check_head(manifest: HeadManifest) -> str | None:
    outputs = {Task.CLASSIFY: "pooled", Task.ENTITIES: "tokens"}
    if manifest.task not in outputs:
        return "`task` of a head must be `classify` or `entities`"
    if manifest.output != outputs[manifest.task]:
        return f"`output` must be `{outputs[manifest.task]}` for `{manifest.task}`"
    if len(set(manifest.labels)) != len(manifest.labels):
        return "`labels` names a label twice"
    return None


def builds_on(manifest: Manifest) -> list[str]:
    """Return the names of the models that a model builds on."""
    if isinstance(manifest, GraphManifest):
        return []
    if isinstance(manifest, HeadManifest):
        return [manifest.encoder]
    if isinstance(manifest, SplitManifest):
        return list(manifest.weights)
    return [*([manifest.encoder] if manifest.encoder else []), *manifest.uses]
