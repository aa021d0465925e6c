"""Infers the fields that a `model.yaml` leaves out, from the files beside it.

The files are read as `transformers` and `sentence-transformers` read them: the task comes from
`architectures`, the labels from `id2label`, the function from `problem_type`, and the pooling from
`1_Pooling/config.json`. If no file has a required field, that is an error.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from sluicegate.backends.errors import ModelProblem
from sluicegate.backends.repository.config_defaults import complete_config, padding_position
from sluicegate.backends.repository.graph_file import GraphFile, GraphValue, read_graph_file
from sluicegate.backends.repository.sentence_modules import (
    FILE as MODULES,
    Files,
    NormalizeModule,
    read_modules,
    read_object,
)
from sluicegate.backends.repository.sentence_settings import (
    PROMPT_FILE,
    read_limits,
    read_prompts,
    read_score_function,
)
from sluicegate.backends.repository.tokenizer_class import CLASS_TOKENS, find_class, sends_types
from sluicegate.backends.repository.tokenizer_files import (
    CONFIG as TOKENIZER_CONFIG,
    check_tokenizer,
)
from sluicegate.backends.repository.triton import FILE as TRITON
from sluicegate.backends.types import Pooling
from sluicegate.wire.protocol import Task

_GRAPH, _TOKENIZER, _CONFIG = "model.onnx", "tokenizer.json", "config.json"
_TOKENS = ("tokens", "last_hidden_state", "token_embeddings")
_POOLED = ("pooled", "sentence_embedding")
_LOGITS = "logits"
_PER_TOKEN = 3
# In a tokenizer without a limit, `model_max_length` is about 10^30.
_NO_LIMIT = 1_000_000
_INPUTS = {"input_ids", "attention_mask", "token_type_ids"}
# The names of logits that are no labels, by what the model is for.
_LABELS = {"MultipleChoice": ["choice"], "QuestionAnswering": ["start", "end"]}
# Attention of long texts needs memory that grows with the square of their length.
_MOST_TOKENS = {"qwen3": 8192, "gemma3_text": 8192}
# The prompts that every sentence transformer has.
_USUAL_PROMPTS = {"query": "", "document": ""}
_PROBLEMS = {"regression", "single_label_classification", "multi_label_classification", None}


def infer(
    document: Mapping[str, Any], folder: Path, files: Files, declared: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the complete manifest of a model with a graph, and the source of each inferred field.

    `files` returns the path of a file of the model; the file need not exist. `declared` holds
    fields from a Triton configuration.

    Raises:
        ModelProblem: a field cannot be inferred. The message names the field and where to set it.
    """
    return _ManifestInference(document, folder, files).run(declared)


class _ManifestInference:
    def __init__(self, document: Mapping[str, Any], folder: Path, files: Files) -> None:
        self._document = dict(document)
        self._folder = folder
        self._files = files
        self._sources: dict[str, str] = {}
        self._config = complete_config(self._json(_CONFIG))

    def run(self, declared: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        for field, value in declared.items():
            self._set(field, value, TRITON)
        self._set("graph", _GRAPH, "the default")
        self._set("tokenizer", _TOKENIZER, "the default")
        if self._is_whole():
            return self._document, self._sources
        for field in ("graph", "tokenizer"):
            path = self._files(Path(str(self._document[field])).name)
            if not path.is_file():
                raise ModelProblem(f"{path}: the file is missing; `{field}` names it")
        graph = read_graph_file(self._files(str(self._document["graph"])))
        outputs = {value.name: value for value in graph.outputs}
        kind = "classifier" if {_LOGITS, self._document.get("output")} & set(outputs) else "encoder"
        self._set("kind", kind, f"the outputs of {self._document['graph']}")
        self._check_inputs(graph)
        self._infer_length()
        check_tokenizer(
            self._files,
            str(self._document["tokenizer"]),
            kind=find_class(self._config, self._json(TOKENIZER_CONFIG)),
            truncates=bool(self._document.get("truncate")),
        )
        if self._document["kind"] == "classifier":
            self._infer_classifier(outputs)
        else:
            self._infer_encoder(outputs)
        self._infer_pairs(graph)
        return self._document, self._sources

    def _is_whole(self) -> bool:
        """Whether `model.yaml` has every required field, so that nothing is inferred."""
        needed = {"kind", "max_tokens", "dimensions", "outputs"}
        return self._document.get("kind") == "encoder" and needed <= self._document.keys()

    def _infer_length(self) -> None:
        """Use the shortest of the limits that the model's files name."""
        limits: dict[str, int] = {}
        published = read_limits(self._files)
        positions = self._config.get("max_position_embeddings")
        if isinstance(positions, int):
            try:
                padding = padding_position(self._config)
            except ValueError as error:
                raise ModelProblem(f"{self._files(_CONFIG)}: {error}") from None
            positions -= 0 if padding is None else padding + 1
            bound = _MOST_TOKENS.get(str(self._config.get("model_type")), positions)
            limits[_field("max_position_embeddings", _CONFIG)] = min(positions, bound)
        if published is not None and published.max_tokens:
            # This limit replaces the tokenizer's limit, even if the tokenizer's is shorter.
            limits[_field("max_seq_length", published.source)] = published.max_tokens
        else:
            length = self._json(TOKENIZER_CONFIG).get("model_max_length")
            if isinstance(length, int | float) and 0 < length < _NO_LIMIT:
                limits[_field("model_max_length", TOKENIZER_CONFIG)] = int(length)
        if limits:
            source = min(limits, key=limits.__getitem__)
            self._set("max_tokens", limits[source], source)
        self._require("max_tokens", "the number of tokens that the model accepts")
        if published is not None:
            # The library sentence-transformers truncates long texts, so its models truncate them
            # here, too.
            self._set("truncate", True, published.source)
            if published.lowercase:
                self._set("lowercase", True, _field("do_lower_case", published.source))

    def _check_inputs(self, graph: GraphFile) -> None:
        """Refuse graphs with inputs other than token ids, attention mask and token types."""
        path = self._files(str(self._document["graph"]))
        names = [value.name for value in graph.inputs]
        if not {"input_ids"} <= set(names) <= _INPUTS:
            raise ModelProblem(
                f"{path}: the inputs are {_quoted(names)}, but must be among "
                f"{_quoted(sorted(_INPUTS))}; map them with `models import --input input_ids=NAME`"
            )
        for value in graph.inputs:
            if any(size is not None for size in value.shape):
                raise ModelProblem(
                    f"{path}: the input `{value.name}` has the fixed shape {value.shape}; export "
                    "the graph with dynamic axes for rows and tokens"
                )

    def _infer_encoder(self, outputs: Mapping[str, GraphValue]) -> None:
        graph = str(self._document["graph"])
        found = {
            "tokens": next((name for name in _TOKENS if name in outputs), None),
            "pooled": next((name for name in _POOLED if name in outputs), None),
        }
        named = {kind: name for kind, name in found.items() if name is not None}
        if named:
            self._set("outputs", named, f"the outputs of {graph}")
        self._require(
            "outputs", f"which of {', '.join(outputs)} is `pooled` (per text) or `tokens`"
        )
        written = self._document["outputs"]
        if (
            isinstance(written, dict)
            and "pooled" not in written
            and not {"pooling", "sparse", "multi_vector"} & set(self._document)
        ):
            self._infer_pooling()
        wide = [
            outputs[name].shape[-1]
            for name in (written.values() if isinstance(written, dict) else ())
            if name in outputs and outputs[name].shape
        ]
        width = next((size for size in wide if size is not None), None)
        hidden = self._config.get("hidden_size", self._config.get("dim"))
        if width is not None:
            self._set("dimensions", width, f"the outputs of {graph}")
        elif isinstance(hidden, int):
            self._set("dimensions", hidden, _field("hidden_size", _CONFIG))
        self._require("dimensions", "how many values a vector has")
        self._infer_prompts()

    def _infer_pooling(self) -> None:
        """Infer how to pool the tokens' vectors outside of the graph.

        Only pooling and a normalization may be missing in the graph. An import puts all other
        modules of a sentence transformer into the graph.
        """
        modules = read_modules(self._files)
        if modules is not None:
            simple = modules.pooling[0] if len(modules.pooling) == 1 else None
            later = [m for m in modules.after if not isinstance(m, NormalizeModule)]
            if simple not in get_args(Pooling) or later or not modules.include_prompt:
                raise ModelProblem(
                    f"{self._files(MODULES)}: the graph lacks modules that this file lists; "
                    "import the folder with `models import`, which adds them"
                )
            self._set("pooling", simple, "1_Pooling/config.json")
        self._require("pooling", "`mean`, `cls` or `max`: how token vectors become one vector")

    def _infer_prompts(self) -> None:
        prompts = read_prompts(self._files)
        if prompts.default:
            self._set("prompt", prompts.default, _field("default_prompt_name", PROMPT_FILE))
        modules = read_modules(self._files)
        # Without `include_prompt`, the graph leaves out the tokens of the default prompt only.
        if any(prompts.named.values()) and (modules is None or modules.include_prompt):
            is_usual = prompts.named.keys() <= _USUAL_PROMPTS.keys()
            named = {**(_USUAL_PROMPTS if is_usual else {}), **prompts.named}
            self._set("prompts", named, _field("prompts", PROMPT_FILE))
        if prompts.similarity is not None:
            # Ranking supports only the cosine, so a model with another similarity gets no `rerank`.
            self._set("tasks", [Task.EMBED.value], _field("similarity_fn_name", PROMPT_FILE))
        self._set("tasks", [Task.EMBED.value, Task.RERANK.value], "the kind")

    def _infer_classifier(self, outputs: Mapping[str, GraphValue]) -> None:
        self._set("output", _LOGITS, f"the outputs of {self._document['graph']}")
        value = outputs.get(str(self._document["output"]))
        if value is None:
            raise ModelProblem(f"{self._folder}: the graph has no output `{_LOGITS}`")
        self._infer_labels(value.shape[-1] if value.shape else None)
        self._infer_tasks(per_token=value.rank == _PER_TOKEN)
        if Task.ANSWER in self._document["tasks"]:
            self._infer_no_answer()
        self._infer_function()

    def _infer_labels(self, width: int | None) -> None:
        names = self._config.get("id2label")
        fixed = [labels for purpose, labels in _LABELS.items() if self._is_for(purpose)]
        if fixed:
            self._document["labels"] = fixed[0]
            self._sources["labels"] = _field("architectures", _CONFIG)
        elif isinstance(names, dict):
            numbers = [str(number) for number in range(len(names))]
            if set(names) != set(numbers):
                raise ModelProblem(
                    f"{self._files(_CONFIG)}: `id2label` does not count from 0; set `labels` in "
                    "`model.yaml`"
                )
            ordered = [str(names[number]) for number in numbers]
            self._set("labels", ordered, _field("id2label", _CONFIG))
        elif self._architectures():
            number = self._config.get("num_labels", 2)
            if isinstance(number, int) and number == width:
                numbered = [f"LABEL_{place}" for place in range(number)]
                self._set("labels", numbered, "the default of transformers")
        self._require("labels", f"the names of the {width or ''} logits, in order")
        labels = self._document["labels"]
        if width is not None and isinstance(labels, list) and len(labels) != width:
            raise ModelProblem(
                f"{self._folder}: there are {len(labels)} `labels` for {width} logits; correct "
                "`labels` in `model.yaml`"
            )

    def _is_for(self, purpose: str) -> bool:
        return any(str(name).endswith(f"For{purpose}") for name in self._architectures())

    def _architectures(self) -> list[str]:
        names = self._config.get("architectures")
        return list(names) if isinstance(names, list) else []

    def _infer_tasks(self, *, per_token: bool) -> None:
        labels = self._document["labels"]
        if self._is_for("QuestionAnswering"):
            tasks = [Task.ANSWER]
        elif per_token:
            tasks = [Task.ENTITIES]
        elif self._is_for("MultipleChoice"):
            tasks = [Task.CHOOSE]
        else:
            tasks = [Task.CLASSIFY]
            if len(labels) == 1:
                tasks.append(Task.RERANK)
            if any(str(label).lower().startswith("entail") for label in labels):
                tasks.append(Task.ZERO_SHOT)
        source = (
            _field("architectures", _CONFIG)
            if self._architectures()
            else f"the outputs of {self._document['graph']}"
        )
        self._set("tasks", [task.value for task in tasks], source)

    def _infer_function(self) -> None:
        """Choose the function as the pipelines of `transformers` do."""
        problem = self._config.get("problem_type")
        if problem not in _PROBLEMS:
            raise ModelProblem(f"{self._files(_CONFIG)}: `problem_type` `{problem}` is unknown")
        tasks = self._document["tasks"]
        several = problem == "multi_label_classification"
        source = _field("problem_type", _CONFIG)
        if problem == "regression":
            self._set("function", "none", source)
        elif not {Task.ENTITIES, Task.CHOOSE, Task.ANSWER} & set(tasks):
            alone = len(self._document["labels"]) == 1
            source = source if problem else "the number of labels"
            self._set("function", "sigmoid" if several or alone else "softmax", source)
        else:
            self._set("function", "softmax", "the task")
        published = read_limits(self._files)
        if published is not None and published.chats and "template" not in self._document:
            raise ModelProblem(
                f"{self._files(published.source)}: the model reads texts in a chat template; "
                "import the folder with `models import`, which applies the template"
            )
        if Task.RERANK.value in tasks and len(self._document["labels"]) == 1:
            if "template" not in self._document and read_prompts(self._files).default:
                raise ModelProblem(
                    f"{self._files(PROMPT_FILE)}: `default_prompt_name` is not supported for a "
                    "cross-encoder; remove it, and send the prompt with each query"
                )
            found = read_score_function(self._files)
            if found is not None:
                self._set("rerank_function", *found)

    def _infer_no_answer(self) -> None:
        """Find the token that stands for "no answer": the one that classifies a text."""
        given = self._json(TOKENIZER_CONFIG)
        if given.get("padding_side", "right") != "right":
            raise ModelProblem(
                f"{self._files(TOKENIZER_CONFIG)}: `padding_side` must be `right` for questions, "
                "which then come before their texts"
            )
        token = given.get("cls_token", CLASS_TOKENS.get(find_class(self._config, given) or ""))
        if isinstance(token, dict):
            token = token.get("content")
        if token is not None:
            self._set("no_answer_token", token, _field("cls_token", TOKENIZER_CONFIG))

    def _infer_pairs(self, graph: GraphFile) -> None:
        takes = any(value.name == "token_type_ids" for value in graph.inputs)
        given = self._json(TOKENIZER_CONFIG)
        if takes and sends_types(self._config, given) is False:
            self._set("token_types", False, TOKENIZER_CONFIG)
        types = "with" if takes and self._document.get("token_types", True) else "without"
        if given.get("split_special_tokens"):
            source = _field("split_special_tokens", TOKENIZER_CONFIG)
            self._set("split_special_tokens", True, source)
        self._sources["pairs"] = f"{self._document['tokenizer']}, {types} token types"

    def _set(self, field: str, value: Any, source: str) -> None:
        if field not in self._document:
            self._document[field] = value
            self._sources[field] = source

    def _require(self, field: str, meaning: str) -> None:
        if field not in self._document:
            raise ModelProblem(
                f"{self._folder}: `{field}` cannot be inferred from the files; set it in "
                f"`model.yaml`: {meaning}"
            )

    def _json(self, name: str) -> dict[str, Any]:
        return read_object(self._files(name))


def _field(name: str, file: str) -> str:
    """Return the source of a value that a field of a file gives."""
    return f"`{name}` in {file}"


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
