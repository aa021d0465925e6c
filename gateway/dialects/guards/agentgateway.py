"""Implements the guardrail webhook of agentgateway, kgateway and Gloo AI Gateway.

See `llm/policy/webhook.rs` of agentgateway (1.0), and the OpenAPI document of its API.
"""

import msgspec
from msgspec.structs import replace
from typing_extensions import override

from sluicegate.gateway.dialects.guards.hooks import HookBody, HookTexts, HookVerdict, hook_route


class AgentgatewayMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message."""

    role: str
    """Who wrote it."""
    content: str
    """Its text."""


class AgentgatewayChoice(msgspec.Struct, frozen=True, kw_only=True):
    """An answer of a language model."""

    message: AgentgatewayMessage
    """Its message."""


class AgentgatewayTexts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The texts of a request or of its answer."""

    messages: list[AgentgatewayMessage] = []
    """The messages of a request."""
    choices: list[AgentgatewayChoice] = []
    """The answers to a request."""


class AgentgatewayGuardBody(HookBody, frozen=True, kw_only=True):
    """Look at the messages of a request to a language model, or at its answers."""

    body: AgentgatewayTexts
    """The messages or the answers."""

    @override
    def asked(self) -> HookTexts:
        messages = [*self.body.messages, *(one.message for one in self.body.choices)]
        return HookTexts(texts=[one.content for one in messages])

    @override
    def answer(self, found: HookVerdict) -> "AgentgatewayGuardAnswer":
        reason = ": ".join(filter(None, [found.verdict, ", ".join(found.detectors())]))
        action = AgentgatewayAction(reason=reason)
        if found.verdict == "block":
            action = AgentgatewayAction(reason=reason, body=found.reason, status_code=403)
        elif found.verdict == "redact":
            texts = iter(found.texts)
            masked = AgentgatewayTexts(
                messages=[replace(one, content=next(texts)) for one in self.body.messages],
                choices=[
                    AgentgatewayChoice(message=replace(one.message, content=next(texts)))
                    for one in self.body.choices
                ],
            )
            action = AgentgatewayAction(reason=reason, body=masked)
        return AgentgatewayGuardAnswer(action=action)


class AgentgatewayAction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Passes the texts, masks them with `body`, or rejects them with `body` and `status_code`."""

    reason: str
    """The verdict of the guard, and the detectors that found something."""
    body: AgentgatewayTexts | str | None = None
    """All messages or answers, with placeholders for what was redacted. If the texts are rejected,
    the body of the response."""
    status_code: int | None = None
    """If the texts are rejected: the status of the response."""


class AgentgatewayGuardAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What agentgateway should do."""

    action: AgentgatewayAction
    """Pass, mask or reject."""


_MESSAGE = {"role": "user", "content": "Write to ada@example.com"}
_MASKED = {"role": "user", "content": "Write to <EMAIL_1>"}
AGENTGATEWAY_ROUTES = hook_route(
    "/guard/{name}/agentgateway/request",
    AgentgatewayGuardBody,
    id="agentgateway_guard_request",
    summary="Look at a request for agentgateway",
    example={"body": {"messages": [_MESSAGE]}},
    answer=AgentgatewayGuardAnswer,
    answer_example={"action": {"reason": "redact: contacts", "body": {"messages": [_MASKED]}}},
) | hook_route(
    "/guard/{name}/agentgateway/response",
    AgentgatewayGuardBody,
    id="agentgateway_guard_response",
    summary="Look at an answer for agentgateway",
    example={"body": {"choices": [{"message": _MESSAGE}]}},
    answer=AgentgatewayGuardAnswer,
    answer_example={
        "action": {
            "reason": "redact: contacts",
            "body": {"choices": [{"message": _MASKED}]},
        }
    },
)
