"""Declares the interface of the file storage. It stores immutable objects by name."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol

Write = Callable[[bytes], object]
"""Writes the next bytes of an object."""


class FileStorage(Protocol):
    """Stores objects. All calls block.

    Calls raise `DependencyUnavailable` if the storage is down or full.

    An object becomes visible when it is complete. From then on, it is durable. A name has parts of
    letters, digits, `_`, `-` and `.`. Slashes separate the parts.
    """

    def writing(self, name: str) -> AbstractContextManager[Write]:
        """Return a context that writes an object.

        The object becomes visible when the context ends, and replaces an object that already has
        this name. If the context ends with an exception, nothing is stored.
        """
        ...

    def read(self, name: str, start: int = 0) -> Iterator[bytes]:
        """Yield the content of an object, from byte `start` on.

        Raises:
            NotFound: the object does not exist.
        """
        ...

    def delete(self, name: str) -> None:
        """Delete an object. If the object does not exist, nothing happens."""
        ...

    def delete_below(self, folder: str) -> None:
        """Delete all objects whose names begin with `folder` and a slash."""
        ...
