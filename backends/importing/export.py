"""Exports families that no graph is built of here, with optimum where that is installed."""

import importlib
from pathlib import Path

from backends.errors import StartProblem
from backends.graphs.checkpoint import FAMILIES

_EXPORTER = "optimum.exporters.onnx"


def export(folder: Path, target: Path, kind: str) -> None:
    """Write the graph of a folder of `kind` weights to `target`, as `optimum-cli export onnx`.

    Raises:
        StartProblem: optimum is not installed, or cannot export it.
    """
    try:
        exporter = importlib.import_module(_EXPORTER)
    except ImportError as error:
        raise StartProblem(
            f"`{folder}`: no graph can be built of `{kind}` weights without optimum (there is no "
            f"package `{error.name}`): install it with `pip install optimum-onnx`, or bring one of "
            f"{', '.join(FAMILIES)}"
        ) from None
    try:
        exporter.main_export(str(folder), output=target, do_validation=False)
    except Exception as error:  # noqa: BLE001 - whatever torch and the exporter raise is the reason
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise StartProblem(f"`{folder}`: optimum cannot export it: {reason[0]}") from None
