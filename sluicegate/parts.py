"""Divides long lists into parts, and reports how far a list has come."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import Future
from itertools import islice
from typing import Any, TypeVar

import msgspec

from sluicegate.errors import InvalidItem
from sluicegate.results import Answer, Usage

I = TypeVar("I")  # noqa: E741 - an item, as R is a result


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a list has come."""

    done: int
    """Items whose results are there, in the order of the list."""
    total: int | None
    """All items; `None` where the list does not know its length."""
    usage: Usage
    """Of the parts that are done."""


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """How a list is divided."""

    size: int = 100
    """Items of a request."""
    concurrency: int = 4
    """Requests at a time."""
    progress: Callable[[Progress], None] | None = None
    """Called after each part, before its results are given."""

    def __post_init__(self) -> None:
        if self.size < 1 or self.concurrency < 1:
            raise ValueError("`size` and `concurrency` must be 1 or more")

    def divide(self, items: Iterable[I]) -> Iterator[tuple[int, list[I]]]:
        """Yield parts of `items`, each with the place of its first item.

        Raises:
            TypeError: it is one text, whose letters are no items.
        """
        if isinstance(items, str):
            raise TypeError("give a list of texts, not one text")
        source, first = iter(items), 0
        while part := list(islice(source, self.size)):
            yield first, part
            first += len(part)


class Tally:
    """Adds up parts that are done, and reports them."""

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
    """Tell whether one of the parts that are waited for has failed."""
    return any(
        one.done() and (one.cancelled() or one.exception() is not None) for _, one in waiting
    )


def shift_index(error: InvalidItem, first: int) -> None:
    """Have `error` name the item by its place in the whole list."""
    if error.index is not None:
        error.index += first
        error.args = (f"item {error.index} of the list: {error}",)
