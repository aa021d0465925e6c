"""Answers `HEAD` as `GET`: the server leaves the body out."""

from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send


class HeadAsGet:
    """Hands requests to `app`, `HEAD` as `GET`.

    `Allow` of an answer then names `HEAD` beside `GET`, as Litestar knows of no such method.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == ScopeType.HTTP and scope["method"] == "HEAD":
            scope = _as_get(scope)

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [_with_head(*header) for header in message["headers"]]
            await send(message)

        await self._app(scope, receive, answer)


def _with_head(name: bytes, value: bytes) -> tuple[bytes, bytes]:
    """Return a header as it was, or `Allow` with `HEAD` where it has `GET`."""
    methods = set(value.split(b", ")) if name == b"allow" else set()
    return name, b", ".join(sorted({b"HEAD", *methods})) if b"GET" in methods else value


def _as_get(scope: HTTPScope) -> HTTPScope:
    """Return a copy: the server's own still says that no body is to be sent."""
    copied = scope.copy()
    copied["method"] = "GET"
    return copied
