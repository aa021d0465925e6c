"""Finds the user's last text in a request to a language model, for a router."""

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
    places = [body.get(name) for name in _PLACES] if _is(body) else []
    return next(filter(None, map(_last, places)), "")


def _last(given: Any) -> str:
    """Return the last text of the user: messages may have only the result of a tool."""
    if isinstance(given, str):
        return given
    texts = (
        one if isinstance(one, str) else _text(one.get("content"))
        for one in reversed(given if isinstance(given, list) else [])
        if isinstance(one, str) or (_is(one) and one.get("role") == "user")
    )
    return next(filter(None, texts), "")


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if _is(part)]
    return "\n".join(text for text in texts if isinstance(text, str))


def _is(value: Any) -> bool:
    return isinstance(value, dict)
