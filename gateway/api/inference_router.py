"""Routes inference requests past Litestar, whose routing costs more than a cache hit."""

from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send

from gateway.api.inference_handler import InferenceHandler
from gateway.api.inference_route import InferenceRoutes


class InferenceRouter:
    """Passes requests to an inference route to its handler, all others to `app`, the application.

    Paths that differ in any way, and the native route that names a model, are routed by `app`.
    """

    def __init__(self, app: ASGIApp, handler: InferenceHandler, routes: InferenceRoutes) -> None:
        self._app = HeadAsGet(app)
        self._handler = handler
        self._find = routes.find

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if (
            scope["type"] == ScopeType.HTTP
            and (match := self._find(scope["path"]))
            and (scope["method"] == "POST" or not match.route.has_other_methods)
        ):
            await self._handler.handle(match, scope, receive, send)
        else:
            await self._app(scope, receive, send)


class HeadAsGet:
    """Hands requests to `app`, `HEAD` as `GET`: the server leaves the body out.

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
