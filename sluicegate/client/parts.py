"""Divides long lists into parts, and reports progress."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import Future
from itertools import islice
from typing import Any, TypeVar

import msgspec

from sluicegate.client.errors import InvalidItem
from sluicegate.client.results import Answer, Usage

I = TypeVar("I")  # noqa: E741 - an item, as R is a result


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Reports the progress of a list."""

    done: int
    """The number of items with results; they are the first ones of the list."""
    total: int | None
    """The number of all items, or `None` if `items` has no length."""
    usage: Usage
    """The usage of all finished parts."""


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """Configures how a list is divided."""

    size: int = 100
    """Items per request."""
    concurrency: int = 4
    """Maximum number of concurrent requests."""
    progress: Callable[[Progress], None] | None = None
    """Called after each part, before its results are yielded."""

    def __post_init__(self) -> None:
        if self.size < 1 or self.concurrency < 1:
            raise ValueError("`size` and `concurrency` must be 1 or more")

    def divide(self, items: Iterable[I]) -> Iterator[tuple[int, list[I]]]:
        """Yield parts of `items`, each with the index of its first item.

        Raises:
            TypeError: `items` is a string.
        """
        if isinstance(items, str):
            raise TypeError("give a list of texts, not one text")
        source, first = iter(items), 0
        while part := list(islice(source, self.size)):
            yield first, part
            first += len(part)


class Tally:
    """Adds up finished parts, and reports progress."""

    def __init__(self, parts: Parts, items: Iterable[Any]) -> None:
        self._report = parts.progress
        self._total = len(items) if isinstance(items, Sized) else None
        self._done = 0
        self._usage = Usage()

    def count(self, answer: Answer[Any]) -> None:
        """Count a part."""
        self._done += len(answer.results)
        self._usage += answer.usage
        if self._report is not None:
            self._report(Progress(done=self._done, total=self._total, usage=self._usage))


def has_failed(waiting: Iterable[tuple[int, asyncio.Task[Any] | Future[Any]]]) -> bool:
    """Return whether a pending part has failed."""
    return any(
        one.done() and (one.cancelled() or one.exception() is not None) for _, one in waiting
    )


def shift_index(error: InvalidItem, first: int) -> None:
    """Change the index in `error` from the position in the part to the position in the list.

    The part begins at the position `first` of the list.
    """
    if error.index is not None:
        error.index += first
        error.args = (f"item {error.index} of the list: {error}",)
