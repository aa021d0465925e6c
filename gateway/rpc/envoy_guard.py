"""Judges HTTP requests to language models, and their answers, for Envoy, and chooses their routes.

Implements `ExternalProcessor.Process` and `Authorization.Check` of Envoy's API v3 with a guard.
Whatever cannot be judged ends the call with an error, and Envoy's `failure_mode_allow` decides.
With a router, the target of a request is in a header, by which Envoy's routes can match.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
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


class EnvoyGuard:
    """Answers the messages of Envoy.

    `headers` returns those of the call, with the API key and the names of guard and router.
    """

    def __init__(self, calls: InProcessCalls) -> None:
        self._calls = calls
        self._route = EnvoyRoute()
        self._router_route = _RouterRoute()
        messages = MessageTable(ENVOY)
        self._processing = messages["ProcessingRequest"]
        self._processed = messages["ProcessingResponse"]
        self._check = messages["CheckRequest"]
        self._checked = messages["CheckResponse"]

    async def process(
        self, messages: AsyncIterator[bytes], headers: Callable[[], Headers]
    ) -> AsyncGenerator[bytes, None]:
        """Yield the answer to each message about an HTTP request and its answer.

        Raises:
            InvalidRequest: Envoy's configuration does not let the guard see whole bodies.
            GuardRefused: the gateway refused to judge or route a body.
        """
        originals: dict[str, str] = {}
        is_first = True
        async for raw in messages:
            message = decode_message(self._processing, raw)
            if is_first:
                _check_modes(message)
                is_first = False
            kind = message.WhichOneof("request")
            if kind in ("request_body", "response_body"):
                body = getattr(message, kind).body
                known = originals if kind == "response_body" else {}
                verdict = await self._judge(body, headers(), known) if body else BodyVerdict()
                originals |= verdict.placeholders if kind == "request_body" else {}
                answer = _body_answer(kind, verdict)
                if kind == "request_body" and not verdict.reason:
                    answer = _with_target(answer, await self._target(body, headers()))
                yield _encoded(self._processed(**answer))
                if verdict.reason:
                    return
            elif kind is None:
                raise InvalidRequest("The message is of an unknown kind.")
            else:
                answer = {}
                if kind == "request_headers":
                    answer = {"response": _ROUTED_HEAD if _named(headers(), _ROUTER) else _HEAD}
                yield _encoded(self._processed(**{kind: answer}))

    async def check(self, raw: bytes, headers: Headers) -> bytes:
        """Return whether a request may pass. As it cannot be changed, `redact` denies it.

        Raises:
            GuardRefused: the gateway refused to judge it.
        """
        request = decode_message(self._check, raw).attributes.request.http
        body = request.raw_body or request.body.encode()
        verdict = BodyVerdict()
        if body or request.method not in _WITHOUT_BODY:
            verdict = await self._judge(body, headers, {})
        if verdict.reason or verdict.is_redacted:
            return _encoded(
                self._checked(
                    status={"code": _PERMISSION_DENIED},
                    denied_response={
                        "status": {"code": _FORBIDDEN},
                        "headers": [_JSON_HEADER],
                        "body": _problem(verdict.reason or NOT_ALLOWED),
                    },
                )
            )
        return _encoded(self._checked(status={}, ok_response={}))

    async def _judge(
        self, body: bytes, headers: Headers, originals: Mapping[str, str]
    ) -> BodyVerdict:
        name = _named(headers, _GUARD)
        if not name and _named(headers, _ROUTER):
            return BodyVerdict()
        if not name:
            raise InvalidRequest(
                "The call names no guard; set `sluicegate-guard` in Envoy's `initial_metadata`."
            )
        match = RouteMatch(self._route, (name,))
        # A caller must not choose what is restored.
        own = [one for one in headers if one[0] != PLACEHOLDERS]
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


def _check_modes(message: Message) -> None:
    """Check that the filter waits for the guard, and that the guard sees whole bodies.

    Envoy has sent its modes since version 1.34.

    Raises:
        InvalidRequest: it does not.
    """
    config = message.protocol_config
    modes = {config.request_body_mode, config.response_body_mode}
    is_known = message.HasField("protocol_config")
    if message.observability_mode or (is_known and not {_BUFFERED} <= modes <= {_NONE, _BUFFERED}):
        raise InvalidRequest(
            "Set `request_body_mode` or `response_body_mode` to BUFFERED, the other one to BUFFERED"
            " or NONE, and no `observability_mode`."
        )


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
# A guard cannot read a compressed answer, and a client must not choose the target.
_HEAD: Final = {"header_mutation": {"remove_headers": ["accept-encoding"]}}
_ROUTED_HEAD: Final = {
    "header_mutation": {"remove_headers": ["accept-encoding", _TARGET]},
    "clear_route_cache": True,
}
