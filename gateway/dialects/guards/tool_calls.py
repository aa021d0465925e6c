"""Reads the calls and definitions of tools in requests to language models, and in their answers."""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

# It keeps numbers as they are written, and all values of a name that an object has twice.
_parse = partial(json.loads, strict=False, parse_int=str, parse_float=str, object_pairs_hook=list)
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
        elif isinstance(one, str):
            yield one.encode(errors="ignore").decode()  # a half of a surrogate pair is no text
        elif isinstance(one, int | float) and not isinstance(one, bool):
            yield str(one)


def call_text(name: Any, arguments: Any) -> str:
    """Return the name of a call, and the names and values of its arguments, in lines.

    Arguments that are a text are read as JSON, as the tool reads them.
    """
    try:
        read = _parse(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        read = arguments  # No tool can read it.
    return "\n".join([*strings(name), *strings(read)]).strip("\n")


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
