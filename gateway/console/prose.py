"""Formats error messages as sentences on a page, and values as JSON."""

import re
from collections.abc import Callable
from typing import Final

import msgspec
from markupsafe import Markup, escape

_CODE: Final = re.compile(r"`([^`]+)`")
_FIRST_WORD: Final = re.compile(r"[a-z]+[ ,]")
_STOPS: Final = (".", "!", "?", ":")


def prose(text: str) -> Markup:
    """Format a message as an HTML sentence. Text in backticks becomes code."""
    if _FIRST_WORD.match(text):  # in `name: problem`, the name does not get a capital letter
        text = text[0].upper() + text[1:]
    if text and not text.endswith(_STOPS):
        text += "."
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704 - it is escaped


def compact(value: object) -> str:
    """Format a value as JSON on one line. A string stays as it is."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


FILTERS: dict[str, Callable[..., str]] = {"prose": prose, "compact": compact}
