"""Bounds the time that detectors without a model take for an item.

A pattern of RE2 reads a text once for each match, so that many matches can take a time that grows
with the square of the text.
"""

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from sluicegate.backends.errors import ItemRefused

_Each = TypeVar("_Each")


class TimeLimit:
    """Refuses an item that takes more than so many seconds from now on."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def each(self, found: Iterable[_Each]) -> Iterator[_Each]:
        """Yield the values of an iterable.

        Raises:
            ItemRefused: the time is over.
        """
        for one in found:
            if time.monotonic() >= self._end:
                raise ItemRefused(
                    "guard_too_slow",
                    "the guard's formats, patterns and words take too long for the text; send it "
                    "in parts",
                )
            yield one
