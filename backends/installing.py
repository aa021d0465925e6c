"""Says how to install extras of this package, which is in no package index."""

import importlib.metadata


def install_command(extras: str) -> str:
    """Return the commands that install `extras`, names with commas between, from wheel or clone."""
    try:
        version = importlib.metadata.version("sluicegate")
    except importlib.metadata.PackageNotFoundError:  # run from sources, without an installation
        version = "0.1.0"
    wheel = f"sluicegate-{version}-py3-none-any.whl"
    return f"`pip install '{wheel}[{extras}]'`, or in a clone `pip install '.[{extras}]'`"
