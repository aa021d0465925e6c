"""Calls a Sluicegate gateway, with `Sluicegate` (blocking) or `AsyncSluicegate` (asyncio).

from sluicegate import Sluicegate

with Sluicegate("http://127.0.0.1:8080", key="sk-...") as client:
    answer = client.classify("sentiment", ["a gorgeous, witty movie"])
    print(answer.results[0].labels[0].label)

The names of `sluicegate.client` are imported when they are first used, because this package also
contains the gateway and the backends, and a backend's machine has no httpx.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sluicegate.client import *  # noqa: F403 - the names are listed there

    __version__: str


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("sluicegate")
    if name.startswith("__") and name != "__all__":
        raise AttributeError(f"module `sluicegate` has no attribute `{name}`")
    client = import_module("sluicegate.client")
    if name != "__all__" and name not in client.__all__:
        raise AttributeError(f"module `sluicegate` has no attribute `{name}`")
    return getattr(client, name)
