"""Finds the text in a request to a language model by which a router chooses."""

from typing import Any, Final

import msgspec

# Chat completions and messages; responses; completions.
_PLACES: Final = ("messages", "input", "prompt")


def last_text(raw: bytes) -> str:
    """Return the last text of the user in a JSON body; an empty text if there is none."""
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return ""
    given = next((body[name] for name in _PLACES if name in body), "") if _is(body) else ""
    if isinstance(given, str):
        return given
    messages = given if isinstance(given, list) else []
    asked = [one for one in messages if _is(one) and one.get("role") == "user"]
    return _text(asked[-1].get("content")) if asked else ""


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if _is(part)]
    return "\n".join(text for text in texts if isinstance(text, str))


def _is(value: Any) -> bool:
    return isinstance(value, dict)
