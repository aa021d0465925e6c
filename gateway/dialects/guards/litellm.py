"""Implements LiteLLM's generic guardrail API: a guard looks at what a model is asked and answers.

LiteLLM (litellm 1.106) posts the texts of messages and answers, and replaces them by the `texts` of
the response. See `generic_guardrail_api` of `litellm.proxy.guardrails.guardrail_hooks`.
"""

from typing import Any, Literal

import msgspec
from typing_extensions import override

from sluicegate.gateway.dialects.guards.hooks import HookBody, HookTexts, HookVerdict, hook_route
from sluicegate.gateway.dialects.guards.tool_calls import strings, text_of_call


class LiteLlmGuardBody(HookBody, frozen=True, kw_only=True, omit_defaults=True):
    """Look at the texts of a request to a language model, or of its answer.

    Other fields that LiteLLM sends are ignored.
    """

    input_type: str = "request"
    """Whether the texts are those of a `request` or of a `response`. The text of a response may be
    the beginning of a longer one."""
    texts: list[str] | None = None
    """The texts."""
    tool_calls: list[Any] | None = None
    """The tools that a model calls. As nothing in a call can be redacted, the call is blocked
    instead."""
    tools: list[Any] | None = None
    """The definitions of tools. A detector whose action is `block` blocks them. Nothing in them is
    redacted."""

    @override
    def asked(self) -> HookTexts:
        calls = map(text_of_call, self.tool_calls or ())
        definitions = ["\n".join(strings(tool)) for tool in self.tools or ()]
        return HookTexts(
            texts=self.texts or (),
            calls=[*filter(None, calls)],
            definitions=[*filter(None, definitions)],
            growing=self.input_type == "response",
        )

    @override
    def answer(self, found: HookVerdict) -> "LiteLlmGuardAnswer":
        if found.verdict == "block":
            return LiteLlmGuardAnswer(action="BLOCKED", blocked_reason=found.reason)
        held = [one.holdback or 0 for one in found.results[: len(found.texts)]]
        return LiteLlmGuardAnswer(
            action="GUARDRAIL_INTERVENED" if found.verdict == "redact" else "NONE",
            texts=found.texts if found.verdict == "redact" else None,
            stream_holdback_chars=held if self.input_type == "response" else None,
        )


class LiteLlmGuardAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What LiteLLM should do."""

    action: Literal["NONE", "BLOCKED", "GUARDRAIL_INTERVENED"]
    """Go on, block the request, or go on with `texts`."""
    texts: list[str] | None = None
    """With `GUARDRAIL_INTERVENED`: all texts, with placeholders for what was redacted."""
    blocked_reason: str = ""
    """With `BLOCKED`: why."""
    stream_holdback_chars: list[int] | None = None
    """With the texts of a response: how many characters at the end of each text wait for more
    text, where LiteLLM streams it."""


LITELLM_ROUTES = hook_route(
    "/guard/{name}/beta/litellm_basic_guardrail_api",
    LiteLlmGuardBody,
    id="litellm_guard",
    summary="Look at texts for LiteLLM",
    example={"texts": ["Write to ada@example.com"]},
    answer=LiteLlmGuardAnswer,
    answer_example={"action": "GUARDRAIL_INTERVENED", "texts": ["Write to <EMAIL_1>"]},
)
