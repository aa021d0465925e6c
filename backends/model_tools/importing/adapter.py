"""Merges a LoRA adapter, which `peft` wrote, into the weights of its base model.

The rules are those of `peft` 0.21 (Apache-2.0). An option that changes results in another way is
refused by its name.
"""

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from sluicegate.backends.errors import StartProblem
from sluicegate.backends.model_tools.graphs.adapters import Factors, merge_factors
from sluicegate.backends.model_tools.graphs.weights import Weights, WeightsError, read_safetensors
from sluicegate.backends.repository.sentence_modules import read_object

CONFIG, WEIGHTS, PICKLE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
_REMEDY = "merge it with `merge_and_unload()`, save the model and import that"
# Fields that are used here, or that change only training.
_KNOWN = {
    *("alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias", "ensure_weight_tying"),
    *("eva_config", "exclude_modules", "fan_in_fan_out", "inference_mode", "init_lora_weights"),
    *("layers_pattern", "layers_to_transform", "lora_alpha", "lora_dropout", "megatron_core"),
    *("modules_to_save", "peft_type", "peft_version", "qalora_group_size", "r", "rank_pattern"),
    *("revision", "target_modules", "task_type", "use_rslora"),
}
# Other ways to initialize an adapter also change the weights of the base model.
_STARTS = (None, True, False, "gaussian", "eva", "orthogonal")
# The end of the class's name by the task of the adapter. `None` keeps the class of the base.
_CLASSES: Mapping[str | None, str | None] = MappingProxyType(
    {
        None: None,
        "CAUSAL_LM": None,
        "FEATURE_EXTRACTION": "Model",
        "SEQ_CLS": "ForSequenceClassification",
        "TOKEN_CLS": "ForTokenClassification",
    }
)
_TYPES: Mapping[str, type | UnionType] = MappingProxyType(
    {
        "alpha_pattern": dict | None,
        "auto_mapping": dict | None,
        "lora_alpha": int | float | None,
        "task_type": str | None,
    }
)
_PURPOSE = re.compile(r"(LMHeadModel|Model|For[A-Z]\w+)$")
_MATRIX = re.compile(r"(.+)\.lora_(embedding_)?([AB])(?:\.weight)?")
_LABELS = re.compile(r"(classifier|classifier\.out_proj|score)\.weight")
# The table of words of a decoder, and its last layer, which may be tied to the table.
_TABLE, _HEAD = "embed_tokens", "lm_head"
# Copies of weights that a module to save replaces.
_COPIES = (".modules_to_save.", ".original_module.")


class Adapter(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Holds an adapter: its matrices by module, and the weights that it replaces.

    The matrices of `embeddings` are transposed.
    """

    folder: Path
    config: dict[str, Any]
    matrices: dict[str, dict[str, NDArray[np.float32]]]
    embeddings: frozenset[str]
    replaced: Weights

    def complete(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the configuration of the base model with the class and labels of the adapter."""
        kind = self.config.get("task_type")
        if kind not in _CLASSES:
            raise self._problem(f"`task_type` is `{kind}`, which is not served")
        own = str((config.get("architectures") or ["Model"])[0])
        named = (self.config.get("auto_mapping") or {}).get("base_model_class")
        end = _CLASSES[kind]
        own = _PURPOSE.sub("", own) + end if end else str(named or own)
        completed = {**config, "architectures": [own]}
        if self._unties and config.get("tie_word_embeddings"):
            completed["tie_word_embeddings"] = False
        numbers = [len(t) for name, t in self.replaced.items() if _LABELS.fullmatch(name)]
        if numbers and len(config.get("id2label") or ()) != numbers[0]:
            completed["id2label"] = {str(place): f"LABEL_{place}" for place in range(numbers[0])}
        return completed

    @property
    def _unties(self) -> bool:
        """Whether the table of words and the last layer differ afterwards, if they were tied."""
        changed = {*self.matrices, *(name.removesuffix(".weight") for name in self.replaced)}
        return any(name.rpartition(".")[2] in {_TABLE, _HEAD} for name in changed)

    def merge(self, weights: Weights, prefix: str) -> Weights:
        """Return the weights of the base model with the adapter merged into them.

        `prefix` begins the names of weights in checkpoints of the family that have a head.

        Raises:
            StartProblem: the adapter does not fit the base model.
        """
        merged = dict(weights)
        table = _find(f"{_TABLE}.weight", weights, prefix)
        head = f"{_HEAD}.weight"
        if self._unties and table is not None and _find(head, weights, prefix) is None:
            merged[head] = weights[table]
        for name, tensor in self.replaced.items():
            merged[_find(name, merged, prefix) or name] = tensor
        return merge_factors(merged, self.factors(merged, prefix))

    def changed(self, merged: Weights, prefix: str) -> set[str]:
        """Return the names of the weights in which `merged` differs from the base model."""
        names = (*(f"{module}.weight" for module in self.matrices), *self.replaced)
        return {_find(name, merged, prefix) or name for name in names}

    def check_shared(self, weights: Weights, prefix: str) -> None:
        """Check that the adapter only adds to the weights of the base model.

        Raises:
            StartProblem: the adapter replaces a weight.
        """
        for name, tensor in self.replaced.items():
            found = _find(name, weights, prefix)
            # `peft` also saves a table that it only adds to.
            if found is None or not np.array_equal(weights[found], tensor):
                raise StartProblem(
                    f"`{self.folder}`: the adapter replaces the weight `{name}`, so it cannot "
                    "share a model with others; import it as a model of its own with `--base`"
                )

    def factors(self, weights: Weights, prefix: str) -> Factors:
        """Return the matrices whose products are added to weights of the base model.

        Raises:
            StartProblem: the adapter does not fit the base model.
        """
        found = {}
        for module, pair in self.matrices.items():
            name = _find(f"{module}.weight", weights, prefix)
            if name is None or set(pair) != {"A", "B"}:
                raise self._problem(f"the base model has no weight `{module}.weight`")
            second, first = self._scaled(module, pair["A"], pair["B"])
            shape = (len(second), first.shape[-1])
            if shape != weights[name].shape:
                raise self._problem(
                    f"`{name}` is {weights[name].shape} in the base model, not {shape}"
                )
            found[name] = (second, first)
        return found

    def _scaled(
        self, module: str, first: NDArray[np.float32], second: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        alpha = self._of_module("alpha_pattern", module, self.config.get("lora_alpha", 8))
        rank = len(first)
        scale = np.float32(alpha / (math.sqrt(rank) if self.config.get("use_rslora") else rank))
        if module in self.embeddings or self.config.get("fan_in_fan_out"):
            return first.T * scale, second.T
        return second * scale, first

    def _of_module(self, field: str, module: str, default: float) -> float:
        patterns: dict[str, float] = self.config.get(field) or {}
        found = (n for key, n in patterns.items() if re.match(rf"(.*\.)?({key})$", module))
        return next(found, default)

    def _problem(self, what: str) -> StartProblem:
        return StartProblem(f"`{self.folder / CONFIG}`: {what}; {_REMEDY}")


def read_adapter(folder: Path) -> Adapter | None:
    """Return the adapter in a folder; `None` if the folder has none.

    Raises:
        StartProblem: the adapter cannot be read, or its kind or an option is not supported.
    """
    path = folder / CONFIG
    if not path.is_file():
        return None
    config = read_object(path)
    for problem in _problems(config):
        raise StartProblem(f"`{path}`: {problem}; {_REMEDY}")
    if not (folder / WEIGHTS).is_file():
        pickle = f"; `{PICKLE}` is a pickle, which runs code" if (folder / PICKLE).exists() else ""
        raise StartProblem(f"`{folder / WEIGHTS}` is missing{pickle}; save the adapter again")
    try:
        tensors = read_safetensors(folder / WEIGHTS)
    except WeightsError as error:
        raise StartProblem(str(error)) from None
    return _sorted(folder, config, tensors)


def _sorted(folder: Path, config: dict[str, Any], tensors: Weights) -> Adapter:
    """Tell the matrices of an adapter from the weights that it replaces."""
    matrices: dict[str, dict[str, NDArray[np.float32]]] = {}
    embeddings: set[str] = set()
    replaced: dict[str, NDArray[np.float32]] = {}
    for full, tensor in tensors.items():
        name = full.removeprefix("base_model.model.").replace(".base_layer.", ".")
        if any(copy in name for copy in _COPIES):
            continue
        if (found := _MATRIX.fullmatch(name)) is not None:
            matrices.setdefault(found[1], {})[found[3]] = tensor
            embeddings.update([found[1]] if found[2] else [])
        elif ".lora_" in name or ".token_adapter." in name:
            raise StartProblem(f"`{folder / WEIGHTS}`: `{full}` is not supported; {_REMEDY}")
        else:
            replaced[name] = tensor
    return Adapter(
        folder=folder,
        config=config,
        matrices=matrices,
        embeddings=frozenset(embeddings),
        replaced=replaced,
    )


def _problems(config: Mapping[str, Any]) -> Iterator[str]:
    yield from _wrong_types(config)
    if config.get("peft_type") != "LORA":
        yield f"`peft_type` is `{config.get('peft_type')}`, and only `LORA` can be merged"
    for field, value in config.items():
        if field not in _KNOWN and value not in (None, False, [], {}):
            yield f"`{field}` is not supported"
    start = config.get("init_lora_weights", True)
    if start not in _STARTS:
        yield f"`init_lora_weights` is `{start}`, which also changes the base model"


def _wrong_types(config: Mapping[str, Any]) -> Iterator[str]:
    for field, kinds in _TYPES.items():
        if not isinstance(config.get(field), kinds):
            yield f"`{field}` cannot be `{config[field]}`"
    patterns = config.get("alpha_pattern") or {}
    if not all(isinstance(value, int | float) for value in patterns.values()):
        yield "`alpha_pattern` must map names to numbers"
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error:
            yield f"`alpha_pattern` has `{pattern}`, which is no regular expression"


def _find(name: str, weights: Weights, prefix: str) -> str | None:
    """Return the name of a weight in a checkpoint, which may be with or without a head."""
    for each in (name, f"{prefix}{name}", name.removeprefix(prefix)):
        if each in weights:
            return each
    return None
