"""Fills in what a `model.yaml` leaves out, from the files beside it.

Fields are read from Hugging Face's files as `transformers` and `sentence-transformers` read them:
the task from `architectures`, the labels from `id2label`, the function from `problem_type`, the
pooling from `1_Pooling/config.json`. A field in no file is an error that names it.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from backends.errors import ModelProblem
from backends.protocol import Task
from backends.repository.graph_file import GraphFile, GraphValue, read_graph_file
from backends.repository.triton import FILE as TRITON
from backends.types import Pooling

Files = Callable[[str], Path]
_GRAPH, _TOKENIZER, _CONFIG = "model.onnx", "tokenizer.json", "config.json"
_TOKENS = ("tokens", "last_hidden_state", "token_embeddings")
_POOLED = ("pooled", "sentence_embedding")
_LOGITS = "logits"
_PER_TOKEN = 3
# What `model_max_length` says where it says nothing is some 10^30.
_NO_LIMIT = 1_000_000
# RoBERTa's positions begin after that of the padding.
_OFFSET_TYPES = {"roberta", "xlm-roberta", "camembert", "mpnet"}
# The flags of sentence transformers' `1_Pooling/config.json`.
POOLINGS: Mapping[str, Pooling] = MappingProxyType(
    {
        "pooling_mode_mean_tokens": "mean",
        "pooling_mode_cls_token": "cls",
        "pooling_mode_max_tokens": "max",
    }
)


def infer(
    document: Mapping[str, Any], folder: Path, files: Files, declared: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the whole manifest of a graph's model, and the source of each inferred field.

    `files` says where a file of the model lies, which need not exist; `declared` is what a
    configuration of Triton says.

    Raises:
        ModelProblem: something cannot be told; the message names the field and where to write it.
    """
    return _ManifestInference(document, folder, files).run(declared)


class _ManifestInference:
    def __init__(self, document: Mapping[str, Any], folder: Path, files: Files) -> None:
        self._document = dict(document)
        self._folder = folder
        self._files = files
        self._sources: dict[str, str] = {}
        self._config = self._json(_CONFIG)

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
                raise ModelProblem(f"{path}: the file `{field}` names is missing")
        graph = read_graph_file(self._files(str(self._document["graph"])))
        outputs = {value.name: value for value in graph.outputs}
        kind = "classifier" if _LOGITS in outputs else "encoder"
        self._set("kind", kind, f"the outputs of {self._document['graph']}")
        self._infer_length()
        if self._document["kind"] == "classifier":
            self._infer_classifier(outputs)
        else:
            self._infer_encoder(outputs)
        self._infer_pairs(graph)
        return self._document, self._sources

    def _is_whole(self) -> bool:
        """Whether a manifest says all by itself, as it had to before anything was inferred."""
        needed = {"kind", "max_tokens", "dimensions", "outputs"}
        return self._document.get("kind") == "encoder" and needed <= self._document.keys()

    def _infer_length(self) -> None:
        """Use the shortest limit of the model, its tokenizer and its publisher."""
        limits: dict[str, int] = {}
        positions = self._config.get("max_position_embeddings")
        if isinstance(positions, int):
            if self._config.get("model_type") in _OFFSET_TYPES:
                positions -= int(self._config.get("pad_token_id") or 0) + 1
            limits[_CONFIG] = positions
        for name, field in (
            ("tokenizer_config.json", "model_max_length"),
            ("sentence_bert_config.json", "max_seq_length"),
        ):
            length = self._json(name).get(field)
            if isinstance(length, int | float) and 0 < length < _NO_LIMIT:
                limits[name] = int(length)
        if limits:
            source = min(limits, key=limits.__getitem__)
            self._set("max_tokens", limits[source], source)
        self._require("max_tokens", "how many tokens the model has positions for")
        published = self._json("sentence_bert_config.json")
        if published:
            # Sentence transformers cut what is too long; so does what serves them.
            self._set("truncate", True, "sentence_bert_config.json")

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
            "outputs", f"which of {', '.join(outputs)} is `pooled`, a vector a text, or `tokens`"
        )
        written = self._document["outputs"]
        if isinstance(written, dict) and "pooled" not in written:
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
            self._set("dimensions", hidden, _CONFIG)
        self._require("dimensions", "how many values a vector has")
        self._set("tasks", [Task.EMBED.value, Task.RERANK.value], "the kind")

    def _infer_pooling(self) -> None:
        pooling = self._json("1_Pooling/config.json")
        chosen = pooling.get("pooling_mode")
        if not isinstance(chosen, str):
            modes = [name for name in POOLINGS if pooling.get(name)]
            chosen = POOLINGS[modes[0]] if len(modes) == 1 else None
        if chosen is not None:
            self._set("pooling", chosen, "1_Pooling/config.json")
        self._require("pooling", "`mean`, `cls` or `max`: how the tokens' vectors make the text's")

    def _infer_classifier(self, outputs: Mapping[str, GraphValue]) -> None:
        self._set("output", _LOGITS, f"the outputs of {self._document['graph']}")
        value = outputs.get(str(self._document["output"]))
        if value is None:
            raise ModelProblem(f"{self._folder}: the graph has no output `{_LOGITS}`")
        self._infer_labels(value.shape[-1] if value.shape else None)
        self._infer_tasks(per_token=value.rank == _PER_TOKEN)
        self._infer_function()

    def _infer_labels(self, width: int | None) -> None:
        names = self._config.get("id2label")
        if isinstance(names, dict):
            try:
                ordered = [str(names[key]) for key in sorted(names, key=int)]
            except ValueError:
                raise ModelProblem(f"{self._files(_CONFIG)}: `id2label` is no list") from None
            self._set("labels", ordered, _CONFIG)
        elif self._choices():
            self._set("labels", ["choice"], _CONFIG)
        elif self._config.get("architectures") and width == 2:  # noqa: PLR2004 - transformers' own
            self._set("labels", ["LABEL_0", "LABEL_1"], "the default of transformers")
        self._require("labels", f"the names of the {width or ''} logits, in their order")
        labels = self._document["labels"]
        if self._choices():
            self._document["labels"] = ["choice"]
        elif width is not None and isinstance(labels, list) and len(labels) != width:
            raise ModelProblem(
                f"{self._folder}: there are {len(labels)} `labels` and {width} logits; name the "
                "labels in `model.yaml`"
            )

    def _choices(self) -> bool:
        return any(str(n).endswith("ForMultipleChoice") for n in self._architectures())

    def _architectures(self) -> list[str]:
        names = self._config.get("architectures")
        return list(names) if isinstance(names, list) else []

    def _infer_tasks(self, *, per_token: bool) -> None:
        labels = self._document["labels"]
        if per_token:
            tasks = [Task.ENTITIES]
        elif self._choices():
            tasks = [Task.CHOOSE]
        else:
            tasks = [Task.CLASSIFY]
            if len(labels) == 1:
                tasks.append(Task.RERANK)
            if any(str(label).lower().startswith("entail") for label in labels):
                tasks.append(Task.ZERO_SHOT)
        source = _CONFIG if self._architectures() else f"the outputs of {self._document['graph']}"
        self._set("tasks", [task.value for task in tasks], source)

    def _infer_function(self) -> None:
        """Choose as transformers' pipelines do."""
        problem = self._config.get("problem_type")
        tasks = self._document["tasks"]
        several = problem == "multi_label_classification"
        if problem == "regression":
            self._set("function", "none", _CONFIG)
        elif Task.ENTITIES.value not in tasks and Task.CHOOSE.value not in tasks:
            alone = len(self._document["labels"]) == 1
            self._set("function", "sigmoid" if several or alone else "softmax", _CONFIG)
        else:
            self._set("function", "softmax", "the task")

    def _infer_pairs(self, graph: GraphFile) -> None:
        """Infer how two texts become one row: the tokenizer decides it."""
        names = [value.name for value in graph.inputs]
        types = "with" if "token_type_ids" in names else "without"
        self._sources["pairs"] = f"{self._document['tokenizer']}, {types} token types"

    def _set(self, field: str, value: Any, source: str) -> None:
        if field not in self._document:
            self._document[field] = value
            self._sources[field] = source

    def _require(self, field: str, meaning: str) -> None:
        if field not in self._document:
            raise ModelProblem(
                f"{self._folder}: `{field}` cannot be told from the files; write it in "
                f"`model.yaml`: {meaning}"
            )

    def _json(self, name: str) -> dict[str, Any]:
        path = self._files(name)
        try:
            document = json.loads(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError) as error:
            raise ModelProblem(f"{path}: it cannot be read as JSON: {error}") from None
        if not isinstance(document, dict):
            raise ModelProblem(f"{path}: it is no JSON object")
        return document
