"""Finds the known name that a misspelt name most likely means."""

import difflib
from collections.abc import Iterable
from functools import lru_cache

# The time to compare two names is quadratic in their length. These limits keep it below 20 ms.
_LONGEST = 64
_MOST = 50
_LEAST = 0.7


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the name in `known` that is most similar to `name`; `None` if none is similar."""
    if len(name) > _LONGEST:
        return None
    names = [each for each in known if len(each) <= _LONGEST]
    names.sort(key=lambda each: abs(len(each) - len(name)))
    return _closest(name, tuple(names[:_MOST]))


@lru_cache(maxsize=256)  # a client misspells the same name in each request
def _closest(name: str, names: tuple[str, ...]) -> str | None:
    return next(iter(difflib.get_close_matches(name, names, n=1, cutoff=_LEAST)), None)
