"""Implements the webhook of Portkey's guardrails: a guard looks at requests and answers.

See the check `default.webhook` of Portkey's gateway (1.15).
"""

from typing import Any, Literal

import msgspec
from typing_extensions import override

from sluicegate.gateway.dialects.guards.hooks import (
    CALL_NOT_REDACTED,
    HookBody,
    HookTexts,
    HookVerdict,
    hook_route,
)
from sluicegate.gateway.dialects.guards.model_bodies import ModelBody
from sluicegate.wire.guards import Verdict


class PortkeyRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The request to the language model."""

    json: Any = None
    """Its body."""
    is_streaming_request: bool = False
    """Whether the answer is streamed."""


class PortkeyResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the language model."""

    json: Any = None
    """Its body."""


class PortkeyGuardBody(HookBody, frozen=True, kw_only=True, rename="camel"):
    """Look at the body of a request to a language model, or of its answer.

    Other fields that Portkey sends are ignored.
    """

    event_type: Literal["beforeRequestHook", "afterRequestHook"]
    """Whether to look at the request or at the answer."""
    request: PortkeyRequest = PortkeyRequest()
    """The request."""
    response: PortkeyResponse = PortkeyResponse()
    """The answer."""

    @property
    def _part(self) -> Literal["request", "response"]:
        return "response" if self.event_type == "afterRequestHook" else "request"

    def _body(self) -> ModelBody | None:
        json = getattr(self, self._part).json
        try:
            return ModelBody(msgspec.json.encode({} if json is None else json))
        except (ValueError, RecursionError):
            return None

    @override
    def asked(self) -> HookTexts:
        body = self._body()
        found = (
            HookTexts(is_whole=False)
            if body is None
            else body.asked(is_request=self._part == "request")
        )
        if self._part == "response" and self.request.is_streaming_request:
            # The caller already has the answer, so its texts cannot be replaced any more.
            calls = [*found.texts, *found.calls]
            return msgspec.structs.replace(found, texts=(), calls=calls)
        return found

    @override
    def answer(self, found: HookVerdict) -> "PortkeyGuardAnswer":
        transformed: dict[str, dict[str, Any]] = {}
        if found.verdict == "redact" and (body := self._body()) is not None:
            redacted = body.redacted(found.texts, found.originals)
            if redacted is None:
                found = found._replace(verdict="block", reason=CALL_NOT_REDACTED)
            else:
                transformed = {self._part: {"json": msgspec.Raw(redacted)}}
        return PortkeyGuardAnswer(
            verdict=found.verdict != "block",
            data=PortkeyData(
                verdict=found.verdict, reason=found.reason, detectors=found.detectors()
            ),
            transformed_data=transformed,
        )


class PortkeyData(msgspec.Struct, frozen=True, kw_only=True):
    """What Portkey writes to its log."""

    verdict: Verdict
    """The verdict of the guard."""
    reason: str
    """Why the texts are blocked, if they are."""
    detectors: list[str]
    """The names of the detectors that found something."""


class PortkeyGuardAnswer(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True
):
    """What Portkey should do."""

    verdict: bool
    """Whether the check has passed."""
    data: PortkeyData
    """What Portkey writes to its log."""
    transformed_data: dict[str, dict[str, Any]] = {}
    """The `json` of the request or of the response with placeholders for what was redacted."""


_MESSAGE = "Write to ada@example.com"
PORTKEY_ROUTES = hook_route(
    "/guard/{name}/portkey",
    PortkeyGuardBody,
    id="portkey_guard",
    summary="Look at a request or an answer for Portkey",
    example={
        "eventType": "beforeRequestHook",
        "request": {"json": {"messages": [{"role": "user", "content": _MESSAGE}]}},
    },
    answer=PortkeyGuardAnswer,
    answer_example={
        "verdict": True,
        "data": {"verdict": "redact", "reason": "", "detectors": ["contacts"]},
        "transformedData": {
            "request": {"json": {"messages": [{"role": "user", "content": "Write to <EMAIL_1>"}]}}
        },
    },
)
