"""Renders the YAML files that are generated."""

from collections.abc import Iterable

import yaml

_NOTE = "# Written by `python -m tools.monitoring`; change the rules there.\n"
_WIDE = 10_000


def render(document: dict[str, object] | Iterable[object]) -> bytes:
    """Return a YAML file, which says in its first line where its rules are changed."""
    written = yaml.safe_dump(document, sort_keys=False, width=_WIDE, allow_unicode=True)
    return (_NOTE + written).encode()
