"""Routes paths to their handlers."""

import json

from backends.api.asgi import Handler, Receive, Scope, Send, respond
from backends.api.calls import CallHandler
from backends.api.status import ReloadHandler, StatusHandlers
from backends.protocol import CALL_PATH, RELOAD_PATH, STATE_PATH


class Routes:
    """Dispatches ASGI requests by path and method."""

    def __init__(
        self, *, calls: CallHandler, status: StatusHandlers, reload: ReloadHandler
    ) -> None:
        self._handlers: dict[str, tuple[str, Handler]] = {
            CALL_PATH: ("POST", calls),
            STATE_PATH: ("GET", status.state),
            RELOAD_PATH: ("POST", reload),
            "/health/live": ("GET", status.live),
            "/health/ready": ("GET", status.ready),
            "/metrics": ("GET", status.metrics),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        found = self._handlers.get(scope["path"])
        if found is None:
            await _refuse(send, 404, "not_found", "there is nothing at this path")
            return
        method, handler = found
        if scope["method"] != method:
            allow = [(b"allow", method.encode())]
            body = json.dumps({"code": "method_not_allowed", "detail": f"use {method}"}).encode()
            await respond(send, 405, body, b"application/json", allow)
            return
        await handler(scope, receive, send)


async def _refuse(send: Send, status: int, code: str, detail: str) -> None:
    body = json.dumps({"code": code, "detail": detail}).encode()
    await respond(send, status, body, b"application/json")
