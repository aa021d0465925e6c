"""Reads `group_by`, as both listeners take it: repeated, or a list with commas between."""

from collections.abc import Sequence

from gateway.errors import InvalidRequest


def read_groups(given: Sequence[str] | None, known: Sequence[str], *, default: str) -> list[str]:
    """Return what to group by, each once; `default` where nothing is given.

    Raises:
        InvalidRequest: a name is not among those `known`.
    """
    parts = [part.strip() for text in given or [default] for part in text.split(",")]
    names = list(dict.fromkeys(part for part in parts if part))
    for name in names:
        if name not in known:
            listed = "`, `".join(known)
            raise InvalidRequest(f"`group_by` takes `{listed}`, and not `{name[:80]}`.")
    return names
