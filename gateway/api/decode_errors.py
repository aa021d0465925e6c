"""Finds the field of a body that cannot be decoded, where the decoder does not name it."""

import json
from collections.abc import Iterator

_MAX_BYTES = 128 * 1024
_MAX_KEY = 40
_MAX_PATH = 200
_MAX_DIGITS = 20
_SMALLEST, _LARGEST = -(2**63), 2**64 - 1
_LONE_SURROGATE = "has half of a surrogate pair, which stands for no character"
_NOT_UTF8 = "has bytes that are not UTF-8"
_OUT_OF_RANGE = "is a number beyond what 64 bits hold"


class _Literal(str):
    """Holds a literal that is no JSON value: `NaN`, `Infinity`, or far too many digits."""

    __slots__ = ()


def explain_decode_error(raw: bytes) -> str | None:
    """Return a clause such as "`input[2]` has half of a surrogate pair", `None` where unknown.

    Large bodies are not searched, which would block the event loop.
    """
    if len(raw) > _MAX_BYTES:
        return None
    broken = _LONE_SURROGATE
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text, broken = raw.decode(errors="surrogateescape"), _NOT_UTF8
    try:
        body = json.loads(text, parse_constant=_Literal, parse_int=_integer)
    except (ValueError, RecursionError):
        return None
    for path, value in _values(body):
        if (reason := _reason(value, broken)) is not None:
            return f"`{path or 'the body'}` {reason}"
    return None


def _integer(digits: str) -> int | _Literal:
    return int(digits) if len(digits) <= _MAX_DIGITS else _Literal(digits)


def _reason(value: object, broken: str) -> str | None:
    if isinstance(value, _Literal):
        is_word = value.lstrip("-").isalpha()
        return f"is `{value}`, which JSON does not have" if is_word else _OUT_OF_RANGE
    if isinstance(value, str):
        return broken if _is_broken(value) else None
    if isinstance(value, float):
        return _OUT_OF_RANGE if value in {float("inf"), float("-inf")} else None
    if isinstance(value, int):
        return None if _SMALLEST <= value <= _LARGEST else _OUT_OF_RANGE
    if isinstance(value, dict) and any(_is_broken(key) for key in value):
        return f"has a name that {broken}"
    return None


def _is_broken(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _values(body: object) -> Iterator[tuple[str, object]]:
    """Yield all values in document order, each with its path."""
    waiting: list[tuple[str, object]] = [("", body)]
    while waiting:
        path, value = waiting.pop()
        yield path, value
        if len(path) > _MAX_PATH:
            continue
        if isinstance(value, list):
            inside = [(f"{path}[{index}]", one) for index, one in enumerate(value)]
            waiting.extend(reversed(inside))
        elif isinstance(value, dict):
            named = [(f"{path}.{_shown(key)}".lstrip("."), one) for key, one in value.items()]
            waiting.extend(reversed(named))


def _shown(key: str) -> str:
    return key.encode("ascii", "backslashreplace").decode()[:_MAX_KEY].replace("`", "'")
