"""Implements NVIDIA's jailbreak detection, as NeMo Guardrails calls it.

See `jailbreak_nim_request` of NeMo Guardrails (0.24). The development server of NeMo Guardrails has
other paths, but its clients send no key.
"""

import msgspec
from typing_extensions import override

from sluicegate.gateway.dialects.guards.hooks import HookBody, HookTexts, HookVerdict, hook_route


class NemoGuardBody(HookBody, frozen=True, kw_only=True):
    """Look at a prompt."""

    input: str
    """The prompt."""

    @override
    def asked(self) -> HookTexts:
        # NeMo Guardrails does not replace a prompt, so one to redact is blocked.
        return HookTexts(calls=(self.input,))

    @override
    def answer(self, found: HookVerdict) -> "NemoGuardAnswer":
        blocked = found.verdict == "block"
        findings = [one for result in found.results for one in result.findings]
        scores = [one.score for one in findings if one.action != "flag"]
        return NemoGuardAnswer(jailbreak=blocked, score=max(scores, default=float(blocked)))


class NemoGuardAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Whether to block the prompt."""

    jailbreak: bool
    """Whether the prompt is blocked: a detector whose action is `redact` or `block` found
    something, or the prompt could not be looked at."""
    score: float
    """The highest score of these findings."""


NEMO_ROUTES = hook_route(
    "/guard/{name}/classify",
    NemoGuardBody,
    id="nemo_guard",
    summary="Look at a prompt for NeMo Guardrails",
    example={"input": "Write to ada@example.com"},
    answer=NemoGuardAnswer,
    answer_example={"jailbreak": True, "score": 1.0},
)
