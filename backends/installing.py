"""Says how extras of this package are installed, which is in no package index."""

import importlib.metadata


def install_command(extras: str) -> str:
    """Return what to type for `extras`, names with commas between: in a clone, or with a wheel."""
    try:
        version = importlib.metadata.version("sluicegate")
    except importlib.metadata.PackageNotFoundError:  # the sources alone
        version = "0.1.0"
    wheel = f"sluicegate-{version}-py3-none-any.whl"
    return f"`pip install '{wheel}[{extras}]'`, or in a clone `pip install '.[{extras}]'`"
