"""Defines the Litestar application of both listeners."""

from typing import Any

from litestar import Litestar
from litestar.enums import ScopeType
from litestar.plugins import PluginProtocol
from litestar.plugins.core import MsgspecDIPlugin
from litestar.types import Message
from typing_extensions import override


class Application(Litestar):
    """Extends Litestar: answers `HEAD` as `GET`, and does not import pydantic.

    The server leaves the body of an answer to `HEAD` out. Pydantic, where it happens to be
    installed, costs each process 0.2 s at the start and 10 MB, and nothing here is of its types.
    """

    @override
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != ScopeType.HTTP:
            await super().__call__(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            scope = scope | {"method": "GET"}  # the server's own scope stays as it is

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [_with_head(*header) for header in message["headers"]]
            await send(message)

        await super().__call__(scope, receive, answer)

    @staticmethod
    @override
    def _get_default_plugins(plugins: list[PluginProtocol]) -> list[PluginProtocol]:
        return [*plugins, MsgspecDIPlugin()]


def _with_head(name: bytes, value: bytes) -> tuple[bytes, bytes]:
    """Return a header as it was, or `Allow` in order, with `HEAD` where it has `GET`."""
    if name != b"allow":
        return name, value
    methods = set(value.split(b", "))
    return name, b", ".join(sorted(methods | {b"HEAD"} if b"GET" in methods else methods))
