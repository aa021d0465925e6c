"""Says how to install extras of this package, which is in no package index."""

import importlib.metadata
from typing import Final, Literal

Runtime = Literal["cpu", "gpu"]
_RUNTIMES: Final[dict[str, Runtime]] = {"onnxruntime": "cpu", "onnxruntime-gpu": "gpu"}


def install_command(extras: str) -> str:
    """Return the commands that install `extras`, names with commas between, from wheel or clone."""
    # Run from sources, without an installation, there is none.
    version = _version("sluicegate") or "0.1.0"
    wheel = f"sluicegate-{version}-py3-none-any.whl"
    return f"`pip install '{wheel}[{extras}]'`, or in a clone `pip install '.[{extras}]'`"


def installed_runtimes() -> set[Runtime]:
    """Return which builds of ONNX Runtime are installed, without importing one."""
    return {kind for name, kind in _RUNTIMES.items() if _version(name)}


def conflict_of_runtimes() -> str:
    """Return a sentence where both builds are installed: each has overwritten files of the other.

    Extras of pip only add: nothing keeps somebody from installing both.
    """
    if len(installed_runtimes()) < len(_RUNTIMES):
        return ""
    return (
        "both `onnxruntime` and `onnxruntime-gpu` are installed, and they share a folder: make a "
        "new environment, and install only one of the extras `up` and `gpu`, or `backend-cpu` and "
        "`backend-gpu`"
    )


def _version(distribution: str) -> str:
    """Return the version of what is installed, empty where it is not."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""
