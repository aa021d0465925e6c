"""Exports families that no graph is built of here, with optimum where that is installed."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from backends.errors import StartProblem
from backends.model_tools.graphs.checkpoint import FAMILIES

_EXPORTER = "optimum.exporters.onnx"
# How optimum names what a head is for; without one a model gives its last hidden states.
_TASKS: Mapping[str, str] = MappingProxyType(
    {
        "ForSequenceClassification": "text-classification",
        "ForTokenClassification": "token-classification",
        "ForMultipleChoice": "multiple-choice",
    }
)


def export(folder: Path, config: Mapping[str, Any], target: Path) -> None:
    """Write the graph of a folder of weights to `target`, as `optimum-cli export onnx` does.

    Raises:
        StartProblem: optimum is not installed, or cannot export it.
    """
    kind = config.get("model_type")
    try:
        exporter = importlib.import_module(_EXPORTER)
    except ImportError as error:
        raise StartProblem(
            f"`{folder}`: `{kind}` models must be exported by optimum (the package `{error.name}` "
            "is missing): in a separate environment, since it needs transformers 4, run `pip "
            f"install optimum-onnx` and `optimum-cli export onnx --model {folder} --task "
            f"{_task(config)} FOLDER`, then import FOLDER; these need no export: "
            f"{', '.join(FAMILIES)}"
        ) from None
    try:
        exporter.main_export(str(folder), output=target, task=_task(config), do_validation=False)
    except Exception as error:  # noqa: BLE001 - whatever torch and the exporter raise is the reason
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise StartProblem(
            f"`{folder}`: optimum cannot export it: {reason[0]}; export it with "
            "`torch.onnx.export` and inputs `input_ids` and `attention_mask`, and import the result"
        ) from None


def _task(config: Mapping[str, Any]) -> str:
    names = config.get("architectures") or [""]
    found = (task for end, task in _TASKS.items() if str(names[0]).endswith(end))
    return next(found, "feature-extraction")
