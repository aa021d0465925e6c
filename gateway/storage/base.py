"""Declares the storage of files: whole objects that never change, by name."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol

Write = Callable[[bytes], object]
"""Takes the next bytes of an object."""


class FileStorage(Protocol):
    """Keeps objects. All calls block, and raise `DependencyUnavailable` where it is away or full.

    An object is there as a whole or not at all, and survives the end of the process once it is
    there. Names are letters, digits, `_`, `-`, `.`, with slashes between.
    """

    def writing(self, name: str) -> AbstractContextManager[Write]:
        """Return a context whose end without an error stores what was written, in place of before.

        What was written within a context that ends with an error is removed.
        """
        ...

    def read(self, name: str, start: int = 0) -> Iterator[bytes]:
        """Yield the content from byte `start` on.

        Raises:
            NotFound: there is no such object.
        """
        ...

    def delete(self, name: str) -> None:
        """Delete an object; one that is not there is none to complain of."""
        ...

    def delete_below(self, folder: str) -> None:
        """Delete all objects whose names begin with `folder` and a slash."""
        ...
