"""Adds low-rank adapters (LoRA, arXiv:2106.09685) to the weights of a checkpoint.

One adapter is merged into the weights. Several are stacked: a graph then computes them beside the
weights that they share, and each row of a batch chooses one (as in Punica, arXiv:2310.18547).

The published jina-embeddings-v3 has an adapter for each of five tasks, in every linear layer and
every table of embeddings. The formulas are those of `modeling_lora.py` of
`jinaai/xlm-roberta-flash-implementation`.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluicegate.backends.model_tools.graphs.weights import Weights, WeightsError

NO_ADAPTER = "none"
_PART = re.compile(r"(.+)\.parametrizations\.weight\.(original|0\.lora_A|0\.lora_B)")
# By the name of a weight: two matrices, whose product is added to it.
Factors = Mapping[str, tuple[NDArray[np.float32], NDArray[np.float32]]]
# The weight with a line for each choice: 1 at the columns of the chosen adapter. No adapter is the
# first choice.
CHOICES = "adapters.choices"
DOWN, UP = "lora_A", "lora_B"
"""The parts of a layer with adapters: `[columns, inputs]` and `[outputs, columns]`."""
STACKED = (f".{DOWN}", f".{UP}", CHOICES)
"""The ends of the names of stacked adapters."""


def merge_factors(weights: Weights, factors: Factors) -> Weights:
    """Return the weights with one adapter added."""
    changed = {name: weights[name] + second @ first for name, (second, first) in factors.items()}
    return {**weights, **changed}


def stack_factors(weights: Weights, adapters: Sequence[Factors]) -> Weights:
    """Return the weights with the matrices of several adapters beside them."""
    ranks = [len(first) for factors in adapters for _, first in factors.values()]
    rank, count = max(ranks, default=1), len(adapters)
    stacked = dict(weights)
    for name in {name: None for factors in adapters for name in factors}:
        outputs, inputs = weights[name].shape
        up = np.zeros((outputs, count * rank), dtype=np.float32)
        down = np.zeros((count * rank, inputs), dtype=np.float32)
        for place, factors in enumerate(adapters):
            if name in factors:
                second, first = factors[name]
                columns = slice(place * rank, place * rank + len(first))
                up[:, columns], down[columns] = second, first
        module = name.removesuffix("weight")
        stacked |= {f"{module}{DOWN}": down, f"{module}{UP}": up}
    chosen = np.repeat(np.eye(count, dtype=np.float32), rank, axis=1)
    return {**stacked, CHOICES: np.concatenate([np.zeros_like(chosen[:1]), chosen])}


def adapted_modules(weights: Weights) -> set[str]:
    """Return the names of the layers and tables that have stacked adapters."""
    return {name.removesuffix(f".{DOWN}") for name in weights if name.endswith(f".{DOWN}")}


def read_task_adapters(
    weights: Weights, config: Mapping[str, Any], chosen: str | None
) -> tuple[Weights, list[Factors]]:
    """Return the weights without adapters, and the adapters: all, or the `chosen` one.

    `none` chooses no adapter.

    Raises:
        WeightsError: no adapter of that name exists, or not every adapter has a name.
    """
    parts = {name: found for name in weights if (found := _PART.fullmatch(name))}
    names = [str(name) for name in config.get("lora_adaptations") or []] if parts else []
    counts = {len(weights[name]) for name, part in parts.items() if part[2] != "original"}
    if counts - {len(names)}:
        raise WeightsError(
            f"`config.json` names {len(names)} adapters in `lora_adaptations`, but the weights "
            f"have {max(counts)}; name each adapter, in the order of the weights"
        )
    if chosen is not None and chosen not in (*names, NO_ADAPTER):
        known = ", ".join(f"`{name}`" for name in names)
        if not parts:
            raise WeightsError(f"there is no adapter `{chosen}`; leave `--adapter` out")
        raise WeightsError(
            f"the adapters are {known}; choose one with `--adapter NAME`, none of them with "
            f"`--adapter {NO_ADAPTER}`, or leave `--adapter` out to keep them all"
        )
    own = {name: tensor for name, tensor in weights.items() if name not in parts}
    scale = np.float32(config.get("lora_alpha", 1) / config.get("lora_rank", 4))
    wanted = [place for place, name in enumerate(names) if chosen in (None, name)]
    adapters: list[dict[str, tuple[NDArray[np.float32], NDArray[np.float32]]]]
    adapters = [{} for _ in wanted]
    for name, part in parts.items():
        if part[2] == "original":
            own[f"{part[1]}.weight"] = weights[name]
            for adapter, place in zip(adapters, wanted, strict=True):
                second, first = _matrices(weights, part[1], place)
                adapter[f"{part[1]}.weight"] = (scale * second, first)
    return own, list(adapters)


def _matrices(
    weights: Weights, layer: str, task: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    first, second = (weights[f"{layer}.parametrizations.weight.0.lora_{each}"] for each in "AB")
    if layer.endswith("_embeddings"):
        first, second = second, first
    return second[task], first[task]
