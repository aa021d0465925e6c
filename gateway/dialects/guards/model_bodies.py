"""Finds the texts in the body of a request to a language model or of its answer, to replace them.

The body is JSON as OpenAI's chat completions, completions, responses and embeddings and Anthropic's
messages have it, or server-sent events of chat completions. What is not known to be a text, a call
or a name counts as a text that cannot be replaced, or as not looked at.
"""

import json
import re
from collections.abc import Callable, Hashable
from typing import Any, Final

from sluicegate.gateway.dialects.guards.hooks import HookTexts
from sluicegate.gateway.dialects.guards.tool_calls import call_text, strings

_TEXTS: Final = frozenset(
    (
        *("content", "input", "prompt", "reasoning", "reasoning_content", "refusal", "suffix"),
        *("system", "text", "thinking"),
    )
)
_MESSAGES: Final = frozenset(("choices", "delta", "message", "messages", "output", "prediction"))
_TEXT_PARTS: Final = frozenset(
    ("input_text", "message", "output_text", "text", "thinking", "tool_result")
)
_DEFINITIONS: Final = frozenset(("functions", "response_format", "tools"))
_CALLS: Final = frozenset(("function_call", "tool_calls"))
# What no model reads. `logprobs` has the tokens of a text.
_SKIPPED: Final = frozenset(("cache_control", "logprobs", "stream_options", "usage"))
# What is no text if it is a short name.
_NAMES: Final = frozenset(
    (
        *("finish_reason", "id", "model", "name", "object", "reasoning_effort", "role"),
        *("service_tier", "system_fingerprint", "tool_call_id", "type", "verbosity"),
    )
)
_NAME: Final = re.compile(r"[\w.:/-]{0,128}", re.ASCII)
# Lines of server-sent events that have no text of a model.
_OTHER_LINES: Final = (b":", b"event:", b"id:", b"retry:", b"data: [DONE]", b"data:[DONE]")
_Slots = list[tuple[Any, Any]]
"""Objects or lists, and the name or place of a text in each."""
_Place = tuple[Hashable, ...]


class ModelBody:
    """Holds the values of a body, and where its texts are. It raises `ValueError` if it cannot.

    A streamed text is in parts, of which the first gets the whole new text.
    """

    def __init__(self, raw: bytes) -> None:
        self.is_whole = True
        """Whether everything that may be a text was found; images, for example, are none."""
        self.others: list[str] = []
        """Texts that cannot be replaced."""
        self.definitions: list[str] = []
        """The definitions of tools and formats, which are not replaced."""
        self._texts: dict[Hashable, _Slots] = {}
        self._calls: dict[Hashable, _Slots] = {}
        self._uses: list[str] = []
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
            elif not isinstance(line, bytes):
                self.others += strings(line)

    def texts(self) -> list[str]:
        """Return the texts that can be replaced."""
        return [*map(_joined, self._texts.values())]

    def calls(self) -> list[str]:
        """Return the text of each call of a tool: its name, and names and values of arguments."""
        return [*map(_call_text, self._calls.values()), *self._uses]

    def asked(self) -> HookTexts:
        """Return what a guard looks at."""
        others = "\n".join(self.others)
        return HookTexts(
            texts=self.texts(),
            calls=[*self.calls(), *([others] if others else ())],
            definitions=self.definitions,
            is_whole=self.is_whole,
        )

    def written(self, texts: list[str], change: Callable[[str], str]) -> bytes:
        """Return the body with other `texts`; strings of calls' arguments are changed by `change`.

        The values of this object change, too.
        """
        for slots, text in zip(self._texts.values(), texts, strict=True):
            _write(slots, text)
        for slots in self._calls.values():
            arguments = [slot for slot in slots if slot[1] == "arguments"]
            if arguments:
                _write(arguments, change(_joined(arguments)))
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
            self._read_other("", message)
            return
        for name, value in message.items():
            if name in _TEXTS:
                self._read_text((*place, name), message, name)
            elif name in _MESSAGES:
                for index, one in enumerate(_listed(value)):
                    # Pieces of a streamed answer belong together by their number.
                    self._read_message((*place, name, _index(one, index)), one)
            elif name in _CALLS:
                self._read_calls((*place, name), value)
            elif name in _DEFINITIONS and not place:
                self.definitions += ["\n".join(strings(one)) for one in _listed(value)]
            else:
                self.is_whole &= name != "audio" or value is None
                self._read_other(name, value)

    def _read_text(self, place: _Place, holder: Any, name: Any) -> None:
        """Read a text, or the parts of one."""
        value = holder[name]
        if isinstance(value, str):
            _add(self._texts, place, holder, name)
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
            self._uses.append(call_text(part.get("name"), part.get("input")))
        elif kind in _TEXT_PARTS or "role" in part:
            self._read_message(place, part)
        else:
            self.is_whole = False

    def _read_calls(self, place: _Place, calls: Any) -> None:
        for index, call in enumerate(_listed(calls)):
            function = call.get("function", call) if isinstance(call, dict) else call
            values = function.items() if isinstance(function, dict) else [("", function)]
            for name, value in values:
                if name in ("name", "arguments") and isinstance(value, str):
                    _add(self._calls, (*place, _index(call, index)), function, name)
                else:
                    self._read_other(name, value)

    def _read_other(self, name: str, value: Any) -> None:
        is_name = name in _NAMES and isinstance(value, str) and _NAME.fullmatch(value)
        if isinstance(value, str | list | dict) and not is_name and name not in _SKIPPED:
            self.others += strings(value)


def _add(found: dict[Hashable, _Slots], place: Hashable, values: Any, name: Any) -> None:
    values[name].encode()  # a half of a surrogate pair is an error
    found.setdefault(place, []).append((values, name))


def _joined(slots: _Slots) -> str:
    return "".join([values[name] for values, name in slots])


def _write(slots: _Slots, text: str) -> None:
    for values, name in slots:
        values[name], text = text, ""


def _call_text(slots: _Slots) -> str:
    parts = {"name": "", "arguments": ""}
    for values, name in slots:
        parts[name] += values[name]
    return call_text(parts["name"], parts["arguments"])


def _line(line: bytes) -> Any:
    """Return the values of a line of server-sent events, or the line if it has none."""
    if not line.strip() or line.startswith(_OTHER_LINES):
        return line
    if not line.startswith(b"data:"):
        raise ValueError("the line has no known field")
    return _json(line[len(b"data:") :])


def _json(raw: bytes) -> Any:
    """Return the values of JSON. Parsers differ in what they make of equal names and of NaN."""
    return json.loads(raw.decode(), object_pairs_hook=_unique, parse_constant=_refuse)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is there twice")
    return found


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _index(value: Any, default: int) -> int:
    found = value.get("index") if isinstance(value, dict) else None
    return found if isinstance(found, int) else default


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
