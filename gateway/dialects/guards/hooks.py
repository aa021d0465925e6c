"""Answers the hooks of gateways for language models, each with a guard's verdict.

Each hook says where its texts are, and how to write the verdict. The rest is shared.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from typing_extensions import override

from sluicegate.gateway.api.inference_route import BodySource, InferenceRoute, Rendered
from sluicegate.gateway.api.openapi_parts import Json, Operation
from sluicegate.gateway.dialects.base import dialect_operation
from sluicegate.gateway.dialects.guards.route import (
    GROWTH,
    GuardedTexts,
    GuardFailure,
    GuardResult,
    guard_of,
)
from sluicegate.gateway.http.body_decoding import BodyDecoder
from sluicegate.gateway.types import Answer, RequestId, Usage
from sluicegate.wire.guards import VERDICTS, Verdict
from sluicegate.wire.protocol import Task

NOT_ALLOWED = "The text is not allowed."
CALL_NOT_REDACTED = "A call of a tool has what cannot be redacted."
_NOT_READ = "The text could not be looked at completely."
_STAND_IN = ""


class HookTexts(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the texts of a request to a language model, or of its answer."""

    texts: Sequence[str] = ()
    """Texts that the hook can replace."""
    calls: Sequence[str] = ()
    """Texts that it cannot replace, such as tool calls. They are blocked instead of redacted."""
    definitions: Sequence[str] = ()
    """Texts that nobody replaces, such as definitions of tools. Only the verdict `block` counts."""
    is_whole: bool = True
    """Whether the guard can read all of it. It cannot read images and token ids, for example."""
    growing: bool = False
    """Whether the texts may be the beginnings of longer ones."""


class HookVerdict(NamedTuple):
    """Holds the verdict about all texts of a request or an answer."""

    verdict: Verdict
    """The strongest verdict. Where redaction is impossible, `redact` counts as `block`."""
    texts: list[str]
    """All texts that the hook can replace, with placeholders for what was redacted."""
    reason: str
    """Why it is blocked, if it is."""
    results: list[GuardResult]
    """The verdicts about all texts in the order of `HookTexts`, and about what is no text."""
    originals: dict[str, str]
    """The original text of each placeholder."""

    def detectors(self) -> list[str]:
        """Return the names of the detectors that found something."""
        return sorted({one.detector for result in self.results for one in result.findings})


class HookBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Holds what a hook was sent. Fields that it does not declare are ignored."""

    def asked(self) -> HookTexts:
        """Return the texts to look at."""
        raise NotImplementedError

    def answer(self, found: HookVerdict) -> Any:
        """Return the answer, which is encoded as JSON. It must not change the body."""
        raise NotImplementedError


class _Asked(GuardedTexts, frozen=True, kw_only=True):
    """Holds texts, then those of calls, then those of definitions."""

    body: HookBody
    calls: int
    definitions: int
    is_whole: bool

    def verdict(self, answer: Answer) -> HookVerdict:
        """Return the verdict about all texts."""
        results, originals = self.judge(answer)
        calls_end = len(results) - self.definitions
        texts_end = calls_end - self.calls
        texts, calls = results[:texts_end], results[texts_end:calls_end]
        redacted = [
            one.text if one.verdict == "redact" else text
            for text, one in zip(self.texts, texts, strict=False)
        ]
        if not self.is_whole:
            failure = GuardFailure(code="not_read", detail=_NOT_READ)
            unread = GuardResult(verdict=self.guard.on_error, findings=[], error=failure)
            results = [unread] if self.texts == [_STAND_IN] else [*results, unread]
        blocking = [one for one in results if one.verdict == "block"]
        blocking += [one for one in calls if one.verdict == "redact"]
        if blocking:
            was_read = any(one.findings or not one.error for one in blocking)
            reason = (self.guard.message or NOT_ALLOWED) if was_read else _NOT_READ
            return HookVerdict("block", redacted, reason, results, originals)
        strongest = max(map(VERDICTS.index, [one.verdict for one in texts]), default=0)
        verdict = VERDICTS[strongest]
        if verdict == "allow" and any(one.verdict != "allow" for one in results):
            verdict = "flag"
        return HookVerdict(verdict, redacted, "", results, originals)


class HookRoute(InferenceRoute):
    """Answers `POST` to a path below a guard's."""

    task = Task.GUARD
    answer_growth = GROWTH
    answers_failures = True

    def __init__(self, path: str, body: type[HookBody]) -> None:
        self.path = path
        self._decode: BodyDecoder[HookBody] = BodyDecoder(body)
        super().__init__()

    def read(self, source: BodySource) -> HookBody:
        """Return what the hook was sent."""
        return self._decode(source.raw)

    @override
    def decode(self, source: BodySource) -> _Asked:
        name = source.parameters["name"]
        guard, body = guard_of(source, name), self.read(source)
        asked = body.asked()
        # A request without a text, such as one with images only, has an answer, too.
        return _Asked(
            name,
            guard,
            [*asked.texts, *asked.calls, *asked.definitions] or [_STAND_IN],
            growing=asked.growing,
            body=body,
            calls=len(asked.calls),
            definitions=len(asked.definitions),
            is_whole=asked.is_whole,
        )

    @override
    def encode(self, body: _Asked, answer: Answer, usage: Usage, request_id: RequestId) -> Rendered:
        found = body.verdict(answer)
        return body.rendered(body.body.answer(found), found.results, answer)


def hook_route(
    path: str,
    body: type[HookBody],
    *,
    id: str,  # noqa: A002 - the OpenAPI document's name
    summary: str,
    example: Json,
    answer: Any,
    answer_example: Json,
) -> dict[InferenceRoute, Operation]:
    """Return the route of a hook with its OpenAPI operation, for `Dialect.routes`."""
    route = HookRoute(path, body)
    operation = dialect_operation(
        route,
        dialect="guards",
        id=id,
        summary=summary,
        body=body,
        example=example,
        answer=answer,
        answer_example=answer_example,
        path_example={"name": "chat"},
    )
    return {route: operation}
