"""Reads the calls and definitions of tools in requests to language models, and in their answers."""

import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from sluicegate.gateway.dialects.guards.redaction import PLACEHOLDER, MarkedSpan


class _Number(str):
    """Holds a number as it is written."""

    __slots__ = ()


# It keeps numbers as they are written, and all values of a name that an object has twice.
_parse = partial(
    json.loads, strict=False, parse_int=_Number, parse_float=_Number, object_pairs_hook=list
)
# An end is optional, so that a text without one takes linear time.
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*+"?', re.DOTALL)


def strings(value: Any) -> Iterator[str]:
    """Yield the texts, names and numbers of a JSON value, in their order."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            one = list(one.items())
        if isinstance(one, list | tuple):
            waiting += reversed(one)
        elif isinstance(one, _Number):
            yield one
        elif isinstance(one, str):
            yield one.encode(errors="ignore").decode()  # a half of a surrogate pair is no text
        elif isinstance(one, int | float) and not isinstance(one, bool):
            yield _Number(one)


def call_text(name: Any, arguments: Any) -> str:
    """Return the name of a call, and the names and values of its arguments, in lines.

    Arguments that are a text are read as JSON, as the tool reads them.
    """
    return "\n".join(filter(None, [*strings(name), *strings(_read(arguments))]))


def _read(arguments: Any) -> Any:
    try:
        return _parse(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return arguments  # No tool can read it.


def text_of_call(call: Any) -> str:
    """Return the text of a call of any kind: all that it has, if its arguments are elsewhere."""
    function = call.get("function", call) if isinstance(call, dict) else call
    if isinstance(function, dict) and "arguments" in function:
        return call_text(function.get("name"), function["arguments"])
    return call_text(None, call)


def with_strings(arguments: str, change: Callable[[str], str]) -> str:
    """Return JSON in which `change` maps each string. Everything else stays as it is written."""

    def changed(written: re.Match[str]) -> str:
        try:
            text = json.loads(written[0], strict=False)
        except ValueError:
            return written[0]
        if (new := change(text)) == text:
            return written[0]
        return json.dumps(new.encode(errors="ignore").decode(), ensure_ascii=False)

    return _STRING.sub(changed, arguments)


def redacted_arguments(
    name: Any, arguments: Any, redacted: str, originals: Mapping[str, str]
) -> Any:
    """Return a call's arguments with the placeholders that its `call_text` has in `redacted`.

    Raises:
        ValueError: a placeholder stands for what cannot be replaced: a part of the name, a number,
            or parts of several texts.
    """
    named, read = [*strings(name)], _read(arguments)
    parts = [*named, *strings(read)]
    texts = []
    changed = _redacted(parts, redacted, originals)
    for place, (part, new) in enumerate(zip(parts, changed, strict=True)):
        if place >= len(named) and not isinstance(part, _Number):
            texts.append(new)
        elif new != part:
            raise ValueError("a name or a number cannot be replaced")
    waiting = iter(texts)
    if not isinstance(arguments, str):
        return json.loads(with_strings(json.dumps(arguments), lambda _: next(waiting)))
    if read is arguments:
        return texts[0]
    return with_strings(arguments, lambda _: next(waiting))


def _redacted(parts: Sequence[str], redacted: str, originals: Mapping[str, str]) -> Iterator[str]:
    """Yield each part of a call's text as it is in `redacted`."""
    marks: deque[MarkedSpan] = deque()
    end = 0
    for piece in re.split(f"({PLACEHOLDER.pattern})", redacted):
        start, end = end, end + len(originals.get(piece, piece))
        if piece in originals:
            marks.append(MarkedSpan(start, end, piece))
    start = 0
    for part in parts:
        found, reached = [], 0
        while marks and marks[0].start < start + len(part):
            first, last, name = marks.popleft()
            if first < start or last > start + len(part):
                raise ValueError("a placeholder stands for parts of several texts")
            found += [part[reached : first - start], name]
            reached = last - start
        yield "".join([*found, part[reached:]])
        start += len(part) + bool(part)
