"""Gives the commands to install extras of this package, which is not on a package index."""

import importlib.metadata
from typing import Final, Literal

Runtime = Literal["cpu", "gpu"]
_RUNTIMES: Final[dict[str, Runtime]] = {"onnxruntime": "cpu", "onnxruntime-gpu": "gpu"}


def install_command(extras: str) -> str:
    """Return the commands that install `extras` (comma-separated) from a wheel or a clone."""
    # There is no version if the package runs from source without an installation.
    version = _version("sluicegate") or "0.1.0"
    wheel = f"sluicegate-{version}-py3-none-any.whl"
    return f"`pip install '{wheel}[{extras}]'`, or in a clone `pip install '.[{extras}]'`"


def installed_runtimes() -> set[Runtime]:
    """Return which builds of ONNX Runtime are installed, without importing one."""
    return {kind for name, kind in _RUNTIMES.items() if _version(name)}


def conflict_of_runtimes() -> str:
    """Return a problem if both builds of ONNX Runtime are installed, else "".

    Both builds write to one folder and overwrite each other's files. pip cannot prevent that.
    """
    if len(installed_runtimes()) < len(_RUNTIMES):
        return ""
    return (
        "both `onnxruntime` and `onnxruntime-gpu` are installed, and they overwrite each other's "
        "files; create a new environment, and install only one of the extras `up` and `gpu`, or "
        "`backend-cpu` and `backend-gpu`"
    )


def _version(distribution: str) -> str:
    """Return the version of an installed distribution, or ""."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""
