"""Parses the query parameter `group_by` of both listeners: repeated, or separated by commas."""

from collections.abc import Sequence

from gateway.errors import InvalidRequest


def parse_group_by(
    values: Sequence[str] | None, allowed: Sequence[str], *, default: str
) -> list[str]:
    """Return the names to group by, each once; `default` where there are none.

    Raises:
        InvalidRequest: a name is not `allowed`.
    """
    parts = [part.strip() for text in values or [default] for part in text.split(",")]
    names = list(dict.fromkeys(part for part in parts if part))
    for name in names:
        if name not in allowed:
            listed = "`, `".join(allowed)
            raise InvalidRequest(f"`group_by` takes `{listed}`, and not `{name[:80]}`.")
    return names
