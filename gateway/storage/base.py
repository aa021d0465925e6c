"""Declares the file storage, which keeps immutable objects by name."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol

Write = Callable[[bytes], object]
"""Writes the next bytes of an object."""


class FileStorage(Protocol):
    """Stores objects. All calls block.

    Calls raise `DependencyUnavailable` if the storage is down or full.

    An object appears only as a whole, and is durable from then on. Names consist of letters,
    digits, `_`, `-` and `.`, separated by slashes.
    """

    def writing(self, name: str) -> AbstractContextManager[Write]:
        """Return a context that writes an object, and replaces a former object of this name.

        The object appears when the context ends. If it ends with an exception, nothing is stored.
        """
        ...

    def read(self, name: str, start: int = 0) -> Iterator[bytes]:
        """Yield the content from byte `start` on.

        Raises:
            NotFound: the object does not exist.
        """
        ...

    def delete(self, name: str) -> None:
        """Delete an object. A missing object is no error."""
        ...

    def delete_below(self, folder: str) -> None:
        """Delete all objects whose names begin with `folder` and a slash."""
        ...
