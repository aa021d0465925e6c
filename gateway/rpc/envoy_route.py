"""Judges the body of a request to a language model, or of its answer, for Envoy.

Only the gRPC listener calls this route: bodies in, verdicts out.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec
from typing_extensions import override

from sluicegate.gateway.api.inference_route import BodySource
from sluicegate.gateway.api.json_bounds import check_json_size
from sluicegate.gateway.dialects.guards.hooks import HookBody, HookRoute, HookTexts, HookVerdict
from sluicegate.gateway.dialects.guards.model_bodies import ModelBody
from sluicegate.gateway.dialects.oip.errors import OIP_ERRORS

PLACEHOLDERS: Final = b"sluicegate-placeholders"
"""The header with the placeholders to restore in an answer, as a JSON object."""
_PLACEHOLDER: Final = re.compile("<[A-Z0-9_]+>")
_TOO_LARGE: Final = "The answer repeats too much of what was redacted."


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


class EnvoyBody(HookBody, frozen=True, kw_only=True):
    """Holds the body of a request to a language model, or of its answer."""

    raw: bytes
    originals: Mapping[str, str]
    """The original text of each placeholder of the request."""
    most_restored: int
    """The most characters that restoring may add, because an answer can repeat a placeholder."""

    @override
    def asked(self) -> HookTexts:
        body = self._parsed()
        return HookTexts(is_whole=False) if body is None else body.asked()

    @override
    def answer(self, found: HookVerdict) -> BodyVerdict:
        if found.verdict == "block":
            return BodyVerdict(reason=found.reason)
        is_redacted = found.verdict == "redact"
        body = self._parsed() if is_redacted or self.originals else None
        if body is None:
            return BodyVerdict()
        # New placeholders of this answer never collide with the request's: they occur in none of
        # its texts.
        given = [*body.texts(), *body.calls()]
        named = [name for text in given for name in _PLACEHOLDER.findall(text)]
        restored = {name: self.originals[name] for name in self.originals.keys() & named}
        if sum(len(restored.get(name, "")) for name in named) > self.most_restored:
            return BodyVerdict(reason=_TOO_LARGE)
        if not (is_redacted or restored):
            return BodyVerdict()
        written = body.written(
            [_with_originals(text, restored) for text in found.texts],
            lambda text: _with_originals(text, restored),
        )
        return BodyVerdict(
            is_redacted=is_redacted, body=written.decode(), placeholders=found.originals
        )

    def _parsed(self) -> ModelBody | None:
        try:
            return ModelBody(self.raw)
        except (ValueError, RecursionError):
            return None


class EnvoyRoute(HookRoute):
    """Judges a body with a guard."""

    headers = (PLACEHOLDERS,)
    errors = OIP_ERRORS
    # Not for models: this keeps parsed bodies, which hold originals, out of the cache.
    reads_models = True
    takes_json = False

    def __init__(self) -> None:
        super().__init__("/envoy/{name}", EnvoyBody)
        self.metric_name = "envoy"

    @override
    def json_part(self, raw: bytes, fields: tuple[bytes, ...]) -> bytes:
        # `read` bounds each event of a streamed answer.
        return b"" if _is_streamed_answer(raw, fields) else raw

    @override
    def read(self, source: BodySource) -> EnvoyBody:
        if _is_streamed_answer(source.raw, source.fields):
            for line in source.raw.splitlines():
                check_json_size(line, max_values=source.document.request.max_values)
        return EnvoyBody(
            raw=source.raw,
            originals=msgspec.json.decode(source.fields[0] or b"{}", type=dict[str, str]),
            most_restored=source.document.request.max_body_bytes,
        )


def _is_streamed_answer(raw: bytes, fields: tuple[bytes, ...]) -> bool:
    """Return whether a body is an answer of server-sent events. Only answers have the header."""
    return bool(fields[0]) and raw.lstrip()[:1] not in (b"{", b"[")


def _with_originals(text: str, originals: Mapping[str, str]) -> str:
    """Return a text with the original texts of placeholders."""
    if not originals:
        return text
    return _PLACEHOLDER.sub(lambda name: originals.get(name[0], name[0]), text)
