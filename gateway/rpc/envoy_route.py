"""Judges the body of a request to a language model, or of its answer, for Envoy.

Only the gRPC listener calls this route: bodies in, verdicts out.
"""

from collections.abc import Mapping
from functools import partial
from typing import Final

import msgspec
from typing_extensions import override

from sluicegate.gateway.api.inference_route import BodySource
from sluicegate.gateway.api.json_bounds import check_json_size
from sluicegate.gateway.dialects.guards.hooks import (
    CALL_NOT_REDACTED,
    HookBody,
    HookRoute,
    HookTexts,
    HookVerdict,
)
from sluicegate.gateway.dialects.guards.model_bodies import ModelBody
from sluicegate.gateway.dialects.guards.redaction import PLACEHOLDER
from sluicegate.gateway.dialects.oip.errors import OIP_ERRORS

PLACEHOLDERS: Final = b"sluicegate-placeholders"
"""The header with the placeholders to restore in an answer, as a JSON object."""
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
    """The body."""
    originals: Mapping[str, str] | None
    """If it is an answer, the original text of each placeholder of the request."""
    most_restored: int
    """The most characters that restoring may add, because an answer can repeat a placeholder."""

    @override
    def asked(self) -> HookTexts:
        body = self._read()
        if body is None:
            return HookTexts(is_whole=False)
        return body.asked(is_request=self.originals is None)

    @override
    def answer(self, found: HookVerdict) -> BodyVerdict:
        if found.verdict == "block":
            return BodyVerdict(reason=found.reason)
        is_redacted = found.verdict == "redact"
        body = self._read() if is_redacted or self.originals else None
        if body is None:
            return BodyVerdict()
        if self.originals is None:
            written = body.redacted(found.texts, found.originals)
            if written is None:
                return BodyVerdict(reason=CALL_NOT_REDACTED)
        else:
            # New placeholders of this answer never collide with the request's: they occur in none
            # of its texts.
            given = [*body.texts(), *body.calls()]
            named = [name for text in given for name in PLACEHOLDER.findall(text)]
            restored = {name: self.originals[name] for name in self.originals.keys() & named}
            if sum(len(restored.get(name, "")) for name in named) > self.most_restored:
                return BodyVerdict(reason=_TOO_LARGE)
            if not (is_redacted or restored):
                return BodyVerdict()
            restore = partial(_with_originals, originals=restored)
            written = body.written([*map(restore, found.texts)], restore)
        return BodyVerdict(
            is_redacted=is_redacted, body=written.decode(), placeholders=found.originals
        )

    def _read(self) -> ModelBody | None:
        """Return the values of the body, or `None` if it cannot be read."""
        try:
            return ModelBody(self.raw)
        except (ValueError, RecursionError):
            return None


class EnvoyRoute(HookRoute):
    """Judges a body with a guard."""

    headers = (PLACEHOLDERS,)
    errors = OIP_ERRORS
    # Not for models: this keeps bodies, which may hold originals, out of the cache.
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
        originals = source.fields[0]
        return EnvoyBody(
            raw=source.raw,
            originals=msgspec.json.decode(originals, type=dict[str, str]) if originals else None,
            most_restored=source.document.request.max_body_bytes,
        )


def _is_streamed_answer(raw: bytes, fields: tuple[bytes, ...]) -> bool:
    """Return whether a body is an answer of server-sent events. Only answers have the header."""
    return bool(fields[0]) and raw.lstrip()[:1] not in (b"{", b"[")


def _with_originals(text: str, originals: Mapping[str, str]) -> str:
    """Return a text with the original texts of placeholders."""
    if not originals:
        return text
    return PLACEHOLDER.sub(lambda name: originals.get(name[0], name[0]), text)
