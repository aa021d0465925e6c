"""Implements LiteLLM's generic guardrail API: a guard looks at what a model is asked and answers.

LiteLLM (litellm 1.106) posts the texts of messages and answers, and replaces them by the `texts` of
the response. See `generic_guardrail_api` of `litellm.proxy.guardrails.guardrail_hooks`.
"""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any, Literal

import msgspec
from typing_extensions import override

from sluicegate.gateway.api.inference_route import JSON, BodySource, InferenceRoute, Rendered
from sluicegate.gateway.api.openapi_parts import Operation
from sluicegate.gateway.dialects.base import dialect_operation
from sluicegate.gateway.dialects.guards.route import GROWTH, GuardedTexts, GuardResult, guard_of
from sluicegate.gateway.http.body_decoding import BodyDecoder
from sluicegate.gateway.types import Answer, RequestId, Usage
from sluicegate.wire.protocol import Task

_REASON = "The text is not allowed."
_NOT_READ = "The text could not be looked at completely."
# It keeps numbers as they are written, and all values of a name that an object has twice.
_parse = partial(json.loads, strict=False, parse_int=str, parse_float=str, object_pairs_hook=list)


class LiteLlmFunction(msgspec.Struct, frozen=True, omit_defaults=True):
    """A function that a model calls."""

    name: str | None = None
    """Its name."""
    arguments: str | None = None
    """Its arguments as JSON."""

    def text(self) -> str:
        """Return the name, and the names and values of the arguments, in lines."""
        raw = self.arguments or ""
        try:
            strings = [*_strings(_parse(raw))]
        except (ValueError, RecursionError):
            strings = [raw]
        return "\n".join([self.name or "", *strings]).strip("\n")


class LiteLlmToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call of a tool."""

    function: LiteLlmFunction = LiteLlmFunction()
    """The function."""


class LiteLlmGuardBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Look at the texts of a request to a language model, or of its answer.

    Other fields that LiteLLM sends are ignored.
    """

    texts: list[str] | None = None
    """The texts."""
    tool_calls: list[LiteLlmToolCall] | None = None
    """The tools that a model calls. As nothing in a call can be redacted, the call is blocked
    instead."""
    tools: list[Any] | None = None
    """The definitions of tools. A detector whose action is `block` blocks them. Nothing in them is
    redacted."""


class LiteLlmGuardAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What LiteLLM should do."""

    action: Literal["NONE", "BLOCKED", "GUARDRAIL_INTERVENED"]
    """Go on, block the request, or go on with `texts`."""
    texts: list[str] | None = None
    """With `GUARDRAIL_INTERVENED`: all texts, with placeholders for what was redacted."""
    blocked_reason: str = ""
    """With `BLOCKED`: why."""


class _Asked(GuardedTexts, frozen=True):
    """Holds texts, then those of tool calls, then those of the definitions of tools."""

    calls: int = 0
    """The number of tool calls."""
    tools: int = 0
    """The number of definitions."""


class LiteLlmGuardRoute(InferenceRoute):
    """Serves LiteLLM's path below the path of a guard."""

    path = "/guard/{name}/beta/litellm_basic_guardrail_api"
    task = Task.GUARD
    answer_growth = GROWTH
    answers_failures = True
    _decode = BodyDecoder(LiteLlmGuardBody)

    @override
    def decode(self, source: BodySource) -> _Asked:
        name = source.parameters["name"]
        guard, body = guard_of(source, name), self._decode(source.raw)
        calls = [text for call in body.tool_calls or () if (text := call.function.text())]
        tools = [text for tool in body.tools or () if (text := "\n".join(_strings(tool)))]
        # A request without a text, such as one with images only, has an answer, too.
        texts = [*(body.texts or ()), *calls, *tools] or [""]
        return _Asked(name, guard, texts, calls=len(calls), tools=len(tools))

    @override
    def encode(self, body: _Asked, answer: Answer, usage: Usage, request_id: RequestId) -> Rendered:
        results, _ = body.judge(answer)
        return Rendered(JSON, msgspec.json.encode(_answer(body, results)))


def _strings(value: Any) -> Iterator[str]:
    """Yield the texts, names and numbers of a JSON value, in their order."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            one = list(one.items())
        if isinstance(one, list | tuple):
            waiting += reversed(one)
        elif isinstance(one, str):
            yield one.encode(errors="ignore").decode()  # a half of a surrogate pair is no text
        elif isinstance(one, int | float) and not isinstance(one, bool):
            yield str(one)


def _answer(body: _Asked, results: list[GuardResult]) -> LiteLlmGuardAnswer:
    calls_end = len(results) - body.tools
    texts_end = calls_end - body.calls
    texts, calls = results[:texts_end], results[texts_end:calls_end]
    blocking = [one for one in results if one.verdict == "block"]
    blocking += [one for one in calls if one.verdict == "redact"]
    if blocking:
        was_read = any(one.error is None for one in blocking)
        reason = (body.guard.message or _REASON) if was_read else _NOT_READ
        return LiteLlmGuardAnswer(action="BLOCKED", blocked_reason=reason)
    if not any(one.verdict == "redact" for one in texts):
        return LiteLlmGuardAnswer(action="NONE")
    pairs: Any = zip(body.texts, texts, strict=False)
    redacted = [one.text if one.verdict == "redact" else text for text, one in pairs]
    return LiteLlmGuardAnswer(action="GUARDRAIL_INTERVENED", texts=redacted)


_ROUTE = LiteLlmGuardRoute()
LITELLM_ROUTES: dict[InferenceRoute, Operation] = {
    _ROUTE: dialect_operation(
        _ROUTE,
        dialect="guards",
        id="litellm_guard",
        summary="Look at texts for LiteLLM",
        body=LiteLlmGuardBody,
        example={"texts": ["Write to ada@example.com"]},
        answer=LiteLlmGuardAnswer,
        answer_example={"action": "GUARDRAIL_INTERVENED", "texts": ["Write to <EMAIL_1>"]},
        path_example={"name": "chat"},
    )
}
