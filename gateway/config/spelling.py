"""Finds the known name that was most likely meant by a misspelt name."""

import difflib
from collections.abc import Iterable
from functools import lru_cache

# Comparing two names takes a time quadratic in their length. These limits keep the time below 20
# ms.
_MAX_LENGTH = 64
_MAX_NAMES = 50
_MIN_SIMILARITY = 0.7


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the name in `known` that is most similar to `name`, or `None` if none is similar."""
    if len(name) > _MAX_LENGTH:
        return None
    names = [each for each in known if len(each) <= _MAX_LENGTH]
    names.sort(key=lambda each: abs(len(each) - len(name)))
    return _closest(name, tuple(names[:_MAX_NAMES]))


@lru_cache(maxsize=256)  # a client sends the same misspelt name in each request
def _closest(name: str, names: tuple[str, ...]) -> str | None:
    return next(iter(difflib.get_close_matches(name, names, n=1, cutoff=_MIN_SIMILARITY)), None)
