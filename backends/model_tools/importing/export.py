"""Exports models with optimum, for families that Sluicegate builds no graph for."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from backends.errors import StartProblem
from backends.model_tools.graphs.checkpoint import FAMILIES

_EXPORTER = "optimum.exporters.onnx"
# The names of optimum's tasks, by the head of the model.
_TASKS: Mapping[str, str] = MappingProxyType(
    {
        "ForSequenceClassification": "text-classification",
        "ForTokenClassification": "token-classification",
        "ForMultipleChoice": "multiple-choice",
    }
)


def export(folder: Path, config: Mapping[str, Any], target: Path) -> None:
    """Write the graph of a folder to `target`, as `optimum-cli export onnx` does.

    Raises:
        StartProblem: optimum is not installed, or cannot export the model.
    """
    kind = config.get("model_type")
    try:
        exporter = importlib.import_module(_EXPORTER)
    except ImportError as error:
        raise StartProblem(
            f"`{folder}`: `{kind}` models must be exported by optimum, but the package "
            f"`{error.name}` is missing; it needs transformers 4, so use a separate environment: "
            f"`pip install optimum-onnx`, `optimum-cli export onnx --model {folder} --task "
            f"{_task(config)} FOLDER`, then import FOLDER; these models need no export: "
            f"{', '.join(FAMILIES)}"
        ) from None
    try:
        exporter.main_export(str(folder), output=target, task=_task(config), do_validation=False)
    except Exception as error:  # noqa: BLE001 - torch and the exporter raise many types of errors
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise StartProblem(
            f"`{folder}`: optimum cannot export the model: {reason[0]}; export it with "
            "`torch.onnx.export` and inputs `input_ids` and `attention_mask`, and import the result"
        ) from None


def _task(config: Mapping[str, Any]) -> str:
    names = config.get("architectures") or [""]
    found = (task for end, task in _TASKS.items() if str(names[0]).endswith(end))
    return next(found, "feature-extraction")
