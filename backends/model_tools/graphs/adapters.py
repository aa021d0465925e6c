"""Merges an adapter of jina-embeddings-v3 into the weights.

The published checkpoint has a low-rank adapter (LoRA, arXiv:2106.09685) for each of five tasks, in
every linear layer and every table of embeddings. The formulas are those of `modeling_lora.py` of
`jinaai/xlm-roberta-flash-implementation`.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluicegate.backends.model_tools.graphs.weights import Weights, WeightsError

NO_ADAPTER = "none"
_PART = re.compile(r"(.+)\.parametrizations\.weight\.(original|0\.lora_A|0\.lora_B)")


def merge_adapter(weights: Weights, config: Mapping[str, Any], chosen: str | None) -> Weights:
    """Return the weights with the adapter `chosen` added; `none` chooses no adapter.

    Raises:
        WeightsError: no adapter of that name exists, or the weights have adapters but none is
            chosen.
    """
    parts = {name: found for name in weights if (found := _PART.fullmatch(name))}
    names = [str(name) for name in config.get("lora_adaptations") or []] if parts else []
    if chosen is None and not parts:
        return weights
    if chosen not in (*names, NO_ADAPTER):
        known = ", ".join(f"`{name}`" for name in names)
        if not names:
            raise WeightsError(f"there is no adapter `{chosen}`; leave `--adapter` out")
        raise WeightsError(
            f"the adapters are {known}; choose one with `--adapter NAME`, or none of them with "
            f"`--adapter {NO_ADAPTER}`"
        )
    merged = {name: tensor for name, tensor in weights.items() if name not in parts}
    scale = np.float32(config.get("lora_alpha", 1) / config.get("lora_rank", 4))
    for name, part in parts.items():
        if part[2] == "original":
            tensor = weights[name]
            if chosen in names:
                tensor = tensor + scale * _change(weights, part[1], names.index(str(chosen)))
            merged[f"{part[1]}.weight"] = tensor
    return merged


def _change(weights: Weights, layer: str, task: int) -> NDArray[np.float32]:
    first, second = (weights[f"{layer}.parametrizations.weight.0.lora_{each}"] for each in "AB")
    if layer.endswith("_embeddings"):
        first, second = second, first
    change: NDArray[np.float32] = second[task] @ first[task]
    return change
