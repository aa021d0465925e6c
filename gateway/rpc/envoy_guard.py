"""Judges HTTP requests to language models, and their answers, for Envoy, and chooses their routes.

Implements `ExternalProcessor.Process` and `Authorization.Check` of Envoy's API v3 with a guard.
If a body cannot be judged, the call ends with an error. Envoy's `failure_mode_allow` then decides.
With a router, the target of a request is in a header, by which Envoy's routes can match.
"""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from sluicegate.gateway.api.http import Headers, HttpReply
from sluicegate.gateway.api.inference_route import RouteMatch
from sluicegate.gateway.dialects.guards.hooks import NOT_ALLOWED
from sluicegate.gateway.dialects.oip.errors import OIP_ERRORS
from sluicegate.gateway.dialects.routers.route import RouteAnswer, RouteRoute
from sluicegate.gateway.errors import InvalidRequest
from sluicegate.gateway.rpc.envoy_route import PLACEHOLDERS, BodyVerdict, EnvoyRoute
from sluicegate.gateway.rpc.envoy_texts import last_text
from sluicegate.gateway.rpc.in_process import InProcessCalls
from sluicegate.gateway.rpc.messages import ENVOY, Message, MessageTable, decode_message

PROCESS: Final = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
CHECK: Final = "/envoy.service.auth.v3.Authorization/Check"
_GUARD: Final = b"sluicegate-guard"
_ROUTER: Final = b"sluicegate-router"
_TARGET: Final = "sluicegate-target"
_OK, _FORBIDDEN = 200, 403
_PERMISSION_DENIED: Final = 7  # a code of gRPC
_NONE, _BUFFERED = 0, 2
_OVERWRITE: Final = 2
_WITHOUT_BODY: Final = frozenset(("DELETE", "GET", "HEAD", "OPTIONS"))
_FIRST_ERROR: Final = 400
_LONGEST_UPLOAD: Final = 60.0
"""The most seconds that Envoy may wait for the body of a request."""
_verdict = msgspec.json.Decoder(BodyVerdict).decode
_routed = msgspec.json.Decoder(RouteAnswer).decode


class GuardRefused(Exception):
    """Reports that the gateway refused to judge or route a body, as `reply` says."""

    def __init__(self, reply: HttpReply) -> None:
        super().__init__()
        self.reply = reply


class _RouterRoute(RouteRoute):
    """Chooses a target, and writes errors as the listener reads them."""

    errors = OIP_ERRORS


class _Exchange:
    """Holds what is known of one HTTP request and its answer. `first` has the filter's modes."""

    def __init__(self, first: Message) -> None:
        self.originals: Mapping[str, str] = {}
        self.status = b""
        config = first.protocol_config
        is_request_only = first.HasField("protocol_config") and config.response_body_mode == _NONE
        self._last = "request" if is_request_only else "response"
        self._has_body = config.request_body_mode == _BUFFERED

    def is_last(self, message: Message) -> bool:
        """Return whether Envoy sends nothing more that a guard looks at.

        A stream that ends then does not stay open while a client reads its answer.
        """
        kind = message.WhichOneof("request")
        # Trailers have no such field.
        is_end = getattr(getattr(message, kind), "end_of_stream", True)
        return is_end and kind.startswith(self._last)

    def is_before_body(self, message: Message) -> bool:
        """Return whether the body of a request is the next message."""
        is_head = message.WhichOneof("request") == "request_headers"
        return is_head and self._has_body and not message.request_headers.end_of_stream


class EnvoyGuard:
    """Answers the messages of Envoy.

    `headers` returns the headers of the gRPC call: the API key and the names of guard and router.
    The first message has `first_timeout` seconds to arrive.
    """

    def __init__(self, calls: InProcessCalls, *, first_timeout: float) -> None:
        self._calls = calls
        self._first_timeout = first_timeout
        self._route = EnvoyRoute()
        self._router_route = _RouterRoute()
        messages = MessageTable(ENVOY)
        self._processing = messages["ProcessingRequest"]
        self._processed = messages["ProcessingResponse"]
        self._check = messages["CheckRequest"]
        self._checked = messages["CheckResponse"]

    async def process(
        self,
        receive: Callable[[float | None], Awaitable[bytes | None]],
        headers: Callable[[], Headers],
    ) -> AsyncGenerator[bytes, None]:
        """Yield the answer to each message about an HTTP request and its answer.

        `receive` returns the next message, or `None` at the end. Its argument is the most seconds
        to wait; `None` while Envoy waits for the answer, which may take as long as the model.

        Raises:
            InvalidRequest: Envoy's configuration does not let the guard see whole bodies.
            GuardRefused: the gateway refused to judge or route a body.
        """
        exchange: _Exchange | None = None
        most: float | None = self._first_timeout
        while (raw := await receive(most)) is not None:
            message = decode_message(self._processing, raw)
            if exchange is None:
                _check_modes(message)
                exchange = _Exchange(message)
            answer = await self._answer(exchange, message, headers())
            yield _encoded(self._processed(**answer))
            if "immediate_response" in answer or exchange.is_last(message):
                return
            most = _LONGEST_UPLOAD if exchange.is_before_body(message) else None

    async def _answer(
        self, exchange: "_Exchange", message: Message, headers: Headers
    ) -> dict[str, Any]:
        """Return the fields of the answer to a message."""
        kind = message.WhichOneof("request")
        if kind is None:
            raise InvalidRequest("The message is of an unknown kind.")
        if kind == "request_headers":
            return {kind: {"response": _ROUTED_HEAD if _named(headers, _ROUTER) else _HEAD}}
        if kind == "response_headers":
            exchange.status = _status(message.response_headers)
        if kind == "request_body":
            body = message.request_body.body
            is_judged = body and not _only_routes(headers)
            verdict = await self._judge(body, headers) if is_judged else BodyVerdict()
            exchange.originals = verdict.placeholders
            answer = _body_answer(kind, verdict)
            return (
                answer
                if verdict.reason
                else _with_target(answer, await self._target(body, headers))
            )
        if kind == "response_body":
            body, verdict = message.response_body.body, BodyVerdict()
            is_judged = body and not _only_routes(headers)
            if is_judged and not _is_plain_error(exchange.status, body):
                verdict = await self._judge(body, headers, exchange.originals)
            return _body_answer(kind, verdict)
        return {kind: {}}

    async def check(self, raw: bytes, headers: Headers) -> bytes:
        """Return whether a request may pass. As it cannot be changed, `redact` denies it.

        Raises:
            GuardRefused: the gateway refused to judge it.
        """
        request = decode_message(self._check, raw).attributes.request.http
        body = request.raw_body or request.body.encode()
        verdict = BodyVerdict()
        if body or request.method not in _WITHOUT_BODY:
            verdict = await self._judge(body, headers)
        if verdict.reason or verdict.is_redacted:
            return _encoded(
                self._checked(
                    status={"code": _PERMISSION_DENIED},
                    denied_response={
                        "status": {"code": _FORBIDDEN},
                        "headers": [_CHECKED_JSON_HEADER],
                        "body": _problem(verdict.reason or NOT_ALLOWED),
                    },
                )
            )
        return _encoded(self._checked(status={}, ok_response={}))

    async def _judge(
        self, body: bytes, headers: Headers, originals: Mapping[str, str] | None = None
    ) -> BodyVerdict:
        """Return the verdict about the body of a request, or with `originals`, of an answer."""
        name = _named(headers, _GUARD)
        if not name:
            raise InvalidRequest(
                "The call names no guard; set `sluicegate-guard` in Envoy's `initial_metadata`."
            )
        match = RouteMatch(self._route, (name,))
        # A caller must not choose what is restored.
        own = [one for one in headers if one[0] != PLACEHOLDERS]
        if originals is not None:
            own.append((PLACEHOLDERS, json.dumps(originals).encode()))
        reply = await self._calls.post(match, body, own)
        if reply.status != _OK:
            raise GuardRefused(reply)
        return _verdict(reply.body)

    async def _target(self, body: bytes, headers: Headers) -> str:
        """Return the target of a request, or an empty text if the call names no router."""
        name = _named(headers, _ROUTER)
        if not name:
            return ""
        asked = msgspec.json.encode({"input": last_text(body)})
        reply = await self._calls.post(RouteMatch(self._router_route, (name,)), asked, headers)
        if reply.status != _OK:
            raise GuardRefused(reply)
        return _routed(reply.body).results[0].target


def _named(headers: Headers, header: bytes) -> str:
    return dict(headers).get(header, b"").decode("latin-1")


def _only_routes(headers: Headers) -> bool:
    return bool(_named(headers, _ROUTER)) and not _named(headers, _GUARD)


def _check_modes(message: Message) -> None:
    """Check that the filter waits for the guard, and that the guard sees whole bodies.

    Envoy has sent its modes since version 1.34.

    Raises:
        InvalidRequest: the filter does not wait, or sends partial bodies.
    """
    config = message.protocol_config
    modes = {config.request_body_mode, config.response_body_mode}
    is_known = message.HasField("protocol_config")
    if message.observability_mode or (is_known and not {_BUFFERED} <= modes <= {_NONE, _BUFFERED}):
        raise InvalidRequest(
            "Set `request_body_mode` or `response_body_mode` to BUFFERED, the other one to BUFFERED"
            " or NONE, and no `observability_mode`."
        )


def _status(head: Message) -> bytes:
    """Return the status in the head of an answer."""
    found = [one for one in head.headers.headers if one.key == ":status"]
    return found[0].raw_value or found[0].value.encode() if found else b""


def _is_plain_error(status: bytes, body: bytes) -> bool:
    """Return whether an answer is an error without JSON, as proxies write it: no model wrote it."""
    is_error = status.isdigit() and int(status) >= _FIRST_ERROR
    return is_error and body.lstrip()[:1] not in (b"{", b"[")


def _body_answer(kind: str, verdict: BodyVerdict) -> dict[str, Any]:
    """Return the fields of the answer to a message with a body."""
    if verdict.reason:
        return {
            "immediate_response": {
                "status": {"code": _FORBIDDEN},
                "headers": {"set_headers": [_JSON_HEADER]},
                "body": _problem(verdict.reason).encode(),
                "details": "sluicegate_guard_blocked",
            }
        }
    if verdict.body is None:
        return {kind: {}}
    body = verdict.body.encode()
    # Envoy refuses a body whose length is not that of the head.
    length = _header("content-length", str(len(body)))
    return {
        kind: {
            "response": {
                "header_mutation": {"set_headers": [length]},
                "body_mutation": {"body": body},
            }
        }
    }


def _with_target(answer: dict[str, Any], target: str) -> dict[str, Any]:
    """Return the answer to a request's body with its target, by which Envoy finds a route anew."""
    if not target:
        return answer
    (kind,) = answer
    common = dict(answer[kind].get("response", {}))
    changed = common.get("header_mutation", {}).get("set_headers", [])
    common["header_mutation"] = {"set_headers": [*changed, _header(_TARGET, target)]}
    return {kind: {"response": common | {"clear_route_cache": True}}}


def _header(name: str, value: str) -> dict[str, Any]:
    return {
        "header": {"key": name, "raw_value": value.encode()},
        "append_action": _OVERWRITE,
    }


def _problem(reason: str) -> str:
    """Return an error as OpenAI's clients read it."""
    error = {"message": reason, "type": "invalid_request_error", "code": "content_filter"}
    return json.dumps({"error": error})


def _encoded(message: Message) -> bytes:
    encoded: bytes = message.SerializeToString()
    return encoded


_JSON_HEADER: Final = _header("content-type", "application/json")
# `Check` ignores `raw_value`.
_CHECKED_JSON_HEADER: Final = {
    "header": {"key": "content-type", "value": "application/json"},
    "append_action": _OVERWRITE,
}
# A guard cannot read a compressed answer, and a client must not choose the target.
_HEAD: Final = {"header_mutation": {"remove_headers": ["accept-encoding"]}}
_ROUTED_HEAD: Final = {
    "header_mutation": {"remove_headers": ["accept-encoding", _TARGET]},
    "clear_route_cache": True,
}
