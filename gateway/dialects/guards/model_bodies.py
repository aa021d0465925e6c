"""Finds the texts in the body of a request to a language model or of its answer, to replace them.

The body is JSON as OpenAI's chat completions, completions, responses and embeddings and Anthropic's
messages have it, or server-sent events of chat completions. Everything that is not known to be a
text, a call or a name is a text that cannot be replaced.
"""

import json
import math
import re
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final

from sluicegate.gateway.dialects.guards.hooks import HookTexts
from sluicegate.gateway.dialects.guards.tool_calls import (
    call_text,
    redacted_arguments,
    strings,
    with_strings,
)

_TEXTS: Final = frozenset(
    (
        *("content", "input", "instructions", "prompt", "reasoning", "reasoning_content"),
        *("refusal", "suffix", "system", "text", "thinking"),
    )
)
_MESSAGES: Final = frozenset(("choices", "delta", "message", "messages", "output", "prediction"))
_TEXT_PARTS: Final = frozenset(
    (
        *("function_call_output", "input_text", "message", "output_text", "reasoning"),
        *("summary_text", "text", "thinking", "tool_result"),
    )
)
_DEFINITIONS: Final = frozenset(("functions", "response_format", "tools"))
# Settings of a request, if they are objects.
_SETTINGS: Final = frozenset(("reasoning", "text", "thinking"))
_CALLS: Final = frozenset(("function_call", "tool_calls"))
_MEDIA: Final = frozenset(
    (
        *("audio", "fileData", "file_data", "file_uri", "file_url", "image_url"),
        *("images", "inlineData", "inline_data", "input_audio"),
    )
)
# What no model reads. `logprobs` has the tokens of a text.
_SKIPPED: Final = frozenset(
    (
        *("cache_control", "content_filter_results", "encrypted_content", "logprobs"),
        *("obfuscation", "prompt_filter_results", "provider", "signature", "stream_options"),
        "usage",
    )
)
# Values that are identifiers, unless they are long or have spaces.
_NAMES: Final = frozenset(
    (
        *("call_id", "finish_reason", "id", "model", "native_finish_reason", "object"),
        *("reasoning_effort", "service_tier", "status", "system_fingerprint", "tool_call_id"),
        *("type", "verbosity"),
    )
)
_NAME: Final = re.compile(r"[\w.:/-]{0,128}", re.ASCII)
_ROLES: Final = frozenset(
    ("assistant", "developer", "function", "model", "system", "tool", "user"),
)
_ENCODED: Final = re.compile(r"(?:data:[\w./+;=-]{1,64},)?[A-Za-z0-9+/]{256,}={0,2}", re.ASCII)
# Lines of server-sent events that have no text of a model.
_OTHER_LINES: Final = (b":", b"event:", b"id:", b"retry:")
_DONE: Final = b"[DONE]"
_Slots = list[tuple[Any, Any]]
"""Objects or lists, and the name or place of a text in each."""
_Place = tuple[Hashable, ...]


class ModelBody:
    """Parses a body and remembers where its texts are.

    A streamed text has several parts; the first part receives the whole replacement.

    Raises:
        ValueError: the body is ambiguous or no JSON.
    """

    def __init__(self, raw: bytes) -> None:
        self.is_whole = True
        """False if the body has content that no detector can read, such as an image."""
        self.definitions: list[str] = []
        """The definitions of tools and formats, which are not replaced."""
        self._texts: dict[Hashable, _Slots] = {}
        self._calls: dict[Hashable, _Slots] = {}
        self._uses: list[dict[str, Any]] = []
        self._others: dict[Hashable, list[str]] = {}
        self._lines: list[Any] = []
        self._is_stream = raw.lstrip()[:1] not in (b"{", b"[", b"")
        if self._is_stream:
            self._lines = [*map(_line, raw.splitlines())]
        else:
            self._lines = [_json(raw)]
        for line in self._lines:
            if isinstance(line, dict):
                # Events of other APIs have pieces of texts in other places.
                self.is_whole &= not self._is_stream or isinstance(line.get("choices"), list)
                self._read_message((), line)
            elif isinstance(line, bytes):
                comment = line.partition(b":")[2].strip().decode()
                if comment != _DONE.decode() and not _NAME.fullmatch(comment):
                    self._others[line] = [comment]
            else:
                self._read_other((), "", line)

    @property
    def others(self) -> list[str]:
        """Texts that cannot be replaced."""
        return [*map("".join, self._others.values())]

    def texts(self) -> list[str]:
        """Return the texts that can be replaced."""
        return [*map(_joined, self._texts.values())]

    def calls(self) -> list[str]:
        """Return the text of each call of a tool: its name, and names and values of arguments."""
        return [
            *[call_text(*_call(slots)) for slots in self._calls.values()],
            *[call_text(use.get("name"), use.get("input")) for use in self._uses],
        ]

    def asked(self, *, is_request: bool) -> HookTexts:
        """Return what a guard looks at.

        The calls in a request are redacted like its texts: they are those of an earlier answer. In
        an answer, the tool needs them as they are.
        """
        others = "\n".join(self.others)
        texts, calls = self.texts(), self.calls()
        if is_request:
            texts, calls = [*texts, *calls], []
        return HookTexts(
            texts=texts,
            calls=[*calls, *([others] if others else ())],
            definitions=self.definitions,
            is_whole=self.is_whole,
        )

    def redacted(self, texts: list[str], originals: Mapping[str, str]) -> bytes | None:
        """Return the body with `texts` in the order of `asked`, redacted with some placeholders.

        Return `None` if a call has what cannot be replaced, such as a name of a tool or a number.
        The values of this object change, too.
        """
        calls = iter(texts[len(self._texts) :])
        try:
            for slots, text in zip(self._calls.values(), calls, strict=False):
                _write(_arguments(slots), redacted_arguments(*_call(slots), text, originals))
            for use, text in zip(self._uses, calls, strict=False):
                new = redacted_arguments(use.get("name"), use.get("input"), text, originals)
                if "input" in use:
                    use["input"] = new
        except ValueError:
            return None
        return self.written(texts[: len(self._texts)], str)

    def written(self, texts: list[str], change: Callable[[str], str]) -> bytes:
        """Return the body with other `texts`; `change` maps each string of a call's arguments.

        The values of this object change, too.
        """
        for slots, text in zip(self._texts.values(), texts, strict=True):
            _write(slots, text)
        for slots in self._calls.values():
            arguments = _arguments(slots)
            _write(arguments, with_strings(_joined(arguments), change))
        for use in self._uses:
            if "input" in use:
                use["input"] = json.loads(with_strings(json.dumps(use["input"]), change))
        objects = [one for one in self._lines if isinstance(one, dict)]
        for choice in (each for one in objects for each in _listed(one.get("choices"))):
            if isinstance(choice, dict) and choice.get("logprobs"):
                choice["logprobs"] = None
        if not self._is_stream:
            return _dump(self._lines[0])
        lines = [one if isinstance(one, bytes) else b"data: " + _dump(one) for one in self._lines]
        return b"".join([b"%b\n" % line for line in lines])

    def _read_message(self, place: _Place, message: Any) -> None:
        """Read a body, a message, a choice, or a part that has a text."""
        if not isinstance(message, dict):
            self._read_other(place, "", message)
            return
        if message.get("type") == "function_call":
            self._read_calls(place, message)
            return
        for name, value in message.items():
            is_setting = name in _SETTINGS and isinstance(value, dict)
            if not place and (name in _DEFINITIONS or is_setting):
                self.definitions += map("\n".join, map(strings, _listed(value)))
            elif name in _TEXTS or (name in _MESSAGES and isinstance(value, str)):
                self._read_text((*place, name), message, name)
            elif name in _MESSAGES:
                self._read_messages((*place, name), _listed(value))
            elif name in _CALLS:
                self._read_calls((*place, name), value)
            else:
                self._read_other(place, name, value)

    def _read_messages(self, place: _Place, messages: list[Any]) -> None:
        for number, one in enumerate(messages):
            self._read_message((*place, self._index(one, number)), one)

    def _read_text(self, place: _Place, holder: Any, name: Any) -> None:
        """Read a text, or the parts of one."""
        value = holder[name]
        if isinstance(value, str):
            self._texts.setdefault(place, []).append((holder, name))
        elif isinstance(value, list) and isinstance(name, str):
            for index in range(len(value)):
                self._read_text((*place, index), value, index)
        elif isinstance(value, dict):
            self._read_part(place, value)
        else:
            self.is_whole &= value is None  # token ids

    def _read_part(self, place: _Place, part: dict[str, Any]) -> None:
        kind = part.get("type")
        if isinstance(kind, str) and kind.endswith("tool_use"):
            self._uses.append(part)
            for name, value in part.items():
                if name not in ("input", "name"):
                    self._read_other(place, name, value)
        elif kind in _TEXT_PARTS or kind == "function_call" or "role" in part:
            self._read_message(place, part)
        else:
            self.is_whole = False
            self._read_other(place, "", part)

    def _read_calls(self, place: _Place, calls: Any) -> None:
        for number, call in enumerate(_listed(calls)):
            own = (*place, self._index(call, number))
            if not isinstance(call, dict):
                self._read_other(own, "", call)
                continue
            function = call.get("function")
            holders = [call, function] if isinstance(function, dict) else [call]
            for part, holder in enumerate(holders):
                for name, value in holder.items():
                    if name in ("name", "arguments") and isinstance(value, str):
                        self._calls.setdefault((*own, part), []).append((holder, name))
                    elif value is not function or not isinstance(value, dict):
                        self._read_other((*own, part), name, value)

    def _read_other(self, place: _Place, name: str, value: Any) -> None:
        """Read a value that may have texts in any place."""
        is_number = isinstance(value, int | float | None)
        if not (is_number or name in _SKIPPED or _is_name(name, value)):
            self._find_media(place, name, value)
            self._read_value((*place, name), value)

    def _read_value(self, place: _Place, value: Any) -> None:
        """Read the names, numbers and texts of a value. Pieces of a streamed text are joined."""
        if isinstance(value, dict):
            for name, one in value.items():
                self._others[*place, name, None] = [name]
                self._find_media(place, name, one)
                if not (self._is_stream and _is_name(name, one)):
                    self._read_value((*place, name), one)
        elif isinstance(value, list):
            for number, one in enumerate(value):
                self._read_value((*place, self._index(one, number)), one)
        elif isinstance(value, str) and (self.is_whole or not _ENCODED.fullmatch(value)):
            self._others.setdefault(place, []).append(value)
        elif type(value) in (int, float):
            self._others[*place, value, None] = [str(value)]

    def _find_media(self, place: _Place, name: str, value: Any) -> None:
        if name in _MEDIA and value and "metadata" not in place:
            self.is_whole = False

    def _index(self, value: Any, number: int) -> int:
        """Return the place of a value in its list: pieces of streams say where they belong."""
        found = value.get("index") if self._is_stream and isinstance(value, dict) else None
        return found if isinstance(found, int) else number


def _is_name(name: str, value: Any) -> bool:
    """Return whether a value is an identifier, which no model reads as a text."""
    if not isinstance(value, str):
        return False
    return value in _ROLES if name == "role" else name in _NAMES and bool(_NAME.fullmatch(value))


def _joined(slots: _Slots) -> str:
    return "".join([values[name] for values, name in slots])


def _write(slots: _Slots, text: str) -> None:
    for values, name in slots:
        values[name], text = text, ""


def _call(slots: _Slots) -> tuple[str, str]:
    """Return the name and the arguments of a call."""
    return _joined([slot for slot in slots if slot[1] == "name"]), _joined(_arguments(slots))


def _arguments(slots: _Slots) -> _Slots:
    return [slot for slot in slots if slot[1] == "arguments"]


def _line(line: bytes) -> Any:
    """Return the values of a line of server-sent events, or the line if it has none."""
    if not line.strip() or line.startswith(_OTHER_LINES):
        return line
    field, _, value = line.partition(b":")
    if field != b"data":
        raise ValueError("the line has no known field")
    return line if value.strip() == _DONE else _json(value)


def _json(raw: bytes) -> Any:
    """Return the values of JSON. Parsers differ in what they make of equal names and of NaN."""
    text = raw.decode()
    value = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_finite)
    if "\\ud" in text.lower():
        _dump(value)  # a half of a surrogate pair is an error
    return value


def _finite(number: str) -> float:
    found = float(number)
    if not math.isfinite(found):
        _refuse(number)
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is there twice")
    return found


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
