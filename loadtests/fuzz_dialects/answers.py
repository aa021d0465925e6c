"""Computes the answer to a text in a scope. Answers in different scopes always differ.

The fuzzer's backend gives these answers, and the judge expects them.
"""

import base64
import hashlib
import struct
from typing import Any  # Any: JSON

_DIMENSIONS = 8


def tokens(text: str) -> int:
    """Return the number of tokens of a text."""
    return 1 + len(text) % 7


def vector(
    scope: str, text: str, *, dimensions: int | None = None, normalize: bool = True
) -> list[float]:
    """Return the vector of a text; float32 represents it exactly, and no element is zero."""
    digest = _digest(dimensions or _DIMENSIONS, scope, text, dimensions, normalize)
    return [(2 * byte - 255) / 256 for byte in digest]


def in_form(numbers: list[float], form: str) -> Any:
    """Return a vector as JSON in one of the forms of docs/api.md."""
    if form == "float":
        return numbers
    if form == "base64":
        return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()
    if form == "int8":
        most = max(map(abs, numbers))
        return [round(number * (127 / most)) for number in numbers]
    bits = "".join("1" if number > 0 else "0" for number in numbers)
    return [int(bits[at : at + 8].ljust(8, "0"), 2) for at in range(0, len(bits), 8)]


def score(scope: str, *texts: str) -> float:
    """Return the score of a text, between 0 and 1; float32 represents it exactly."""
    return int.from_bytes(_digest(2, scope, *texts)) / 2**16


def labels(scope: str, text: str) -> list[dict[str, Any]]:
    """Return two labels of a text; the first label contains scope and text."""
    best = 0.5 + score(scope, text) / 4
    return [{"label": f"{scope}|{text}", "score": best}, {"label": "negative", "score": 1 - best}]


def chosen(scope: str, text: str, names: list[str]) -> list[dict[str, Any]]:
    """Return the caller's labels for a text, best first."""
    found = [{"label": name, "score": score(scope, text, name)} for name in names]
    return sorted(found, key=lambda one: one["score"], reverse=True)


def entity(scope: str, text: str) -> dict[str, Any]:
    """Return the entity at the beginning of a text."""
    start = text[:3]
    return {
        "label": f"{scope}|{text}",
        "score": score(scope, text),
        "text": start,
        "start": 0,
        "end": len(start),
    }


def _digest(size: int, *parts: object) -> bytes:
    return hashlib.shake_128(repr(parts).encode()).digest(size)
