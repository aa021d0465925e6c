"""Judges the body of a request to a language model, or of its answer, for Envoy.

Only the gRPC listener calls this route: bodies in, verdicts out.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from typing_extensions import override

from sluicegate.gateway.api.inference_route import JSON, BodySource, InferenceRoute, Rendered
from sluicegate.gateway.dialects.guards.model_bodies import ModelBody
from sluicegate.gateway.dialects.guards.route import GROWTH, GuardedTexts, guard_of
from sluicegate.gateway.dialects.oip.errors import OIP_ERRORS
from sluicegate.gateway.types import Answer, RequestId, Usage
from sluicegate.wire.protocol import Task

PLACEHOLDERS: Final = b"sluicegate-placeholders"
"""The header with the placeholders to restore in an answer, as a JSON object."""
_PLACEHOLDER: Final = re.compile("<[A-Z0-9_]+>")
NOT_ALLOWED: Final = "The text is not allowed."
_TOO_LARGE: Final = "The answer repeats too much of what was redacted."
_NOT_READ: Final = "The text could not be looked at completely."


class BodyVerdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Says what to do with a body."""

    reason: str = ""
    """Why it is blocked, if it is."""
    is_redacted: bool = False
    """Whether something in it has to be redacted."""
    body: str | None = None
    """The new body, if it changes."""
    placeholders: dict[str, str] = {}
    """What was redacted, by its placeholder."""


class _Asked(GuardedTexts, frozen=True):
    """Holds the texts of a body, then those of calls and others, then those of definitions."""

    raw: bytes = b""
    count: int = 0
    """The number of texts that can be replaced."""
    definitions: int = 0
    is_whole: bool = True
    originals: Mapping[str, str] = {}
    """The original text of each placeholder of the request."""
    most_restored: int = 0
    """The most characters that they may add: an answer can repeat a placeholder."""

    def verdict(self, answer: Answer) -> BodyVerdict:
        """Return what to do with the body."""
        results, placeholders = self.judge(answer)
        fixed = results[self.count : len(results) - self.definitions]
        blocking = [one for one in results if one.verdict == "block"]
        blocking += [one for one in fixed if one.verdict == "redact"]
        if any(one.error is None for one in blocking):
            return BodyVerdict(reason=self.guard.message or NOT_ALLOWED)
        if blocking or not (self.is_whole or self.guard.on_error == "allow"):
            return BodyVerdict(reason=_NOT_READ)
        texts = [
            one.text if one.verdict == "redact" else text
            for text, one in zip(self.texts[: self.count], results, strict=False)
        ]
        # Placeholders that this answer gets are no placeholders of the request: they occur nowhere.
        named = [name for text in self.texts for name in _PLACEHOLDER.findall(text)]
        restored = {name: self.originals[name] for name in self.originals.keys() & named}
        if sum(len(restored.get(name, "")) for name in named) > self.most_restored:
            return BodyVerdict(reason=_TOO_LARGE)
        is_redacted = any(one.verdict == "redact" for one in results[: self.count])
        if not (is_redacted or restored):
            return BodyVerdict()
        body = ModelBody(self.raw).written(
            [_with_originals(text, restored, str) for text in texts],
            lambda arguments: _with_originals(arguments, restored, _in_json),
        )
        return BodyVerdict(is_redacted=is_redacted, body=body.decode(), placeholders=placeholders)


class EnvoyRoute(InferenceRoute):
    """Judges a body with a guard."""

    path = "/envoy/{name}"
    task = Task.GUARD
    headers = (PLACEHOLDERS,)
    errors = OIP_ERRORS
    answer_growth = GROWTH
    answers_failures = True
    reads_models = True  # the cache of parsed bodies would keep what placeholders stand for
    takes_json = False

    def __init__(self) -> None:
        super().__init__()
        self.metric_name = "envoy"

    @override
    def decode(self, source: BodySource) -> _Asked:
        name = source.parameters["name"]
        guard = guard_of(source, name)
        originals = json.loads(source.fields[0] or b"{}")
        try:
            body = ModelBody(source.raw)
        except (ValueError, RecursionError):
            # There is a verdict about what cannot be read, too.
            return _Asked(name, guard, [""], is_whole=False, definitions=1)
        texts, others = body.texts(), "\n".join(body.others)
        fixed = [*body.calls(), *([others] if others else ())]
        return _Asked(
            name,
            guard,
            [*texts, *fixed, *body.definitions] or [""],
            raw=source.raw,
            count=len(texts),
            definitions=len(body.definitions),
            is_whole=body.is_whole,
            originals=originals,
            most_restored=source.document.request.max_body_bytes,
        )

    @override
    def encode(self, body: _Asked, answer: Answer, usage: Usage, request_id: RequestId) -> Rendered:
        return Rendered(JSON, msgspec.json.encode(body.verdict(answer)))


def _with_originals(text: str, originals: Mapping[str, str], written: Callable[[str], str]) -> str:
    """Return a text with the original texts of placeholders."""
    if not originals:
        return text
    return _PLACEHOLDER.sub(lambda name: written(originals.get(name[0], name[0])), text)


def _in_json(text: str) -> str:
    """Return a text as it is written in a string of JSON."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
