"""Compiles regular expressions that operators write, by RE2, which cannot backtrack."""

from typing import Any

import re2

from sluicegate.wire.guards import MAX_PATTERN_CHARACTERS, MAX_PATTERN_INSTRUCTIONS


def compile_pattern(pattern: str) -> Any:  # Any: RE2 has no types
    """Return a compiled pattern.

    Raises:
        ValueError: the pattern is invalid, or needs too much memory. The message continues a
            sentence that begins with the pattern.
    """
    if not 0 < len(pattern) <= MAX_PATTERN_CHARACTERS:
        raise ValueError(f"must have 1 to {MAX_PATTERN_CHARACTERS} characters")
    options = re2.Options()
    options.log_errors = False
    try:
        found = re2.compile(pattern, options)
    except re2.error as error:
        (detail,) = error.args
        text = detail.decode(errors="replace") if isinstance(detail, bytes) else detail
        raise ValueError(f"is no regular expression of RE2: {text}") from None
    if found.programsize > MAX_PATTERN_INSTRUCTIONS:
        raise ValueError(
            f"needs {found.programsize:,} instructions of RE2; at most "
            f"{MAX_PATTERN_INSTRUCTIONS:,} are allowed; repeat less, or a smaller class"
        )
    return found
