"""Reads the text format of protocol buffers (`.pbtxt`) without a schema.

The reader knows the parts of the format that configurations use: fields, nested messages, lists,
concatenated strings, numbers, identifiers and comments
(https://protobuf.dev/reference/protobuf/textformat-spec/).
"""

import ast
import re
from typing import Any

# Maps a field's name to its values. A nested message is a `Message`. An identifier is a string.
Message = dict[str, list[Any]]

_TOKEN = re.compile(
    r"""(?P<space>[\s,;]+|\#[^\n]*)
    |(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<number>[+-]?(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)[fF]?)(?![\w.])
    |(?P<word>-?[A-Za-z_][\w.]*)
    |(?P<mark>[:{}<>\[\]])""",
    re.VERBOSE,
)
_DEEPEST = 32
_ENDS = {"{": "}", "<": ">"}
_END = ("end", "")


def read_text_proto(text: str) -> Message:
    """Return the fields of a message.

    Raises:
        ValueError: `text` is not a message; the error names the line.
    """
    return _Reader(text).message("", depth=0)


class _Reader:
    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str, int]] = []
        at, line = 0, 1
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise ValueError(f"line {line}: `{text[at]}` is not expected")
            kind = str(match.lastgroup)
            if kind != "space":
                self._tokens.append((kind, match.group(), line))
            line += match.group().count("\n")
            at = match.end()
        self._lines = line
        self._place = 0

    def message(self, end: str, *, depth: int) -> Message:
        """Read fields up to the token `end`; an empty `end` means the end of the text."""
        if depth > _DEEPEST:
            raise self._error("messages are nested too deep")
        found: Message = {}
        while True:
            kind, written = self._next()
            if (kind, written) == _END or (kind == "mark" and written == end):
                if written != end:
                    raise self._error(f"`{end}` is missing")
                return found
            if kind != "word":
                raise self._error(f"`{written}` is not expected; a field begins with its name")
            found.setdefault(written, []).extend(self._values(depth))

    def _values(self, depth: int) -> list[Any]:
        kind, written = self._next()
        has_colon = (kind, written) == ("mark", ":")
        if has_colon:
            kind, written = self._next()
        if kind == "mark" and written == "[":
            return self._list(depth)
        if kind == "mark" and written in _ENDS:
            return [self.message(_ENDS[written], depth=depth + 1)]
        if not has_colon:
            raise self._error("`:` or `{` is missing after the name of a field")
        return [self._scalar(kind, written)]

    def _list(self, depth: int) -> list[Any]:
        found: list[Any] = []
        while True:
            kind, written = self._next()
            if kind == "mark" and written == "]":
                return found
            if kind == "mark" and written in _ENDS:
                found.append(self.message(_ENDS[written], depth=depth + 1))
            else:
                found.append(self._scalar(kind, written))

    def _scalar(self, kind: str, written: str) -> Any:
        if kind == "text":
            parts = [_unquoted(written)]
            while self._peek()[0] == "text":
                parts.append(_unquoted(self._next()[1]))
            return "".join(parts)
        if kind == "number":
            if written.lower().lstrip("+-").startswith("0x"):
                return int(written, 16)
            number = float(written.rstrip("fF"))
            return int(number) if written.lstrip("+-").isdecimal() else number
        if kind == "word":
            return {"true": True, "false": False}.get(written, written)
        raise self._error(f"`{written}` is not a value" if written else "a value is missing")

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._place][:2] if self._place < len(self._tokens) else _END

    def _next(self) -> tuple[str, str]:
        token = self._peek()
        self._place += 1
        return token

    def _error(self, what: str) -> ValueError:
        """Return an error that names the line of the last token."""
        place = self._place - 1
        line = self._tokens[place][2] if place < len(self._tokens) else self._lines
        return ValueError(f"line {line}: {what}")


def _unquoted(written: str) -> str:
    # The escapes are those of C strings, which Python's literals share.
    try:
        return str(ast.literal_eval(written))
    except (SyntaxError, ValueError):
        raise ValueError(f"{written} has an invalid escape") from None
