"""Defines the Litestar application without plugins for libraries that the gateway does not use."""

from litestar import Litestar
from litestar.plugins import PluginProtocol
from litestar.plugins.core import MsgspecDIPlugin
from typing_extensions import override


class Application(Litestar):
    """Extends Litestar: does not import pydantic where that happens to be installed.

    It costs each process 0.2 s at the start and 10 MB, and nothing here is of its types.
    """

    @staticmethod
    @override
    def _get_default_plugins(plugins: list[PluginProtocol]) -> list[PluginProtocol]:
        return [*plugins, MsgspecDIPlugin()]
