"""Asks models on behalf of an item that an algorithm answers."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import msgspec
import orjson

from backends.batching.fair_queue import BULK
from backends.batching.shared import RowCaller
from backends.pipelines.windows import MAX_WINDOWS
from backends.types import FloatArray, Text, TokenOffsets


class Pipeline(Protocol):
    """Turns texts into vectors: embeddings or logits."""

    async def vectors(self, texts: Sequence[Text], caller: RowCaller) -> FloatArray:
        """Return one vector per text, or raise `BackendError`."""
        ...

    async def pairs(
        self, first: str, seconds: Sequence[str], caller: RowCaller, *, cut_first_only: bool
    ) -> FloatArray:
        """Return one vector per pair of `first` with one of `seconds`, or raise `BackendError`."""
        ...

    async def windows(
        self, text: str, caller: RowCaller, *, overlap: int, most: int = MAX_WINDOWS
    ) -> FloatArray:
        """Return one vector per window of a text, or raise `BackendError`."""
        ...

    async def token_vectors(
        self, text: str, caller: RowCaller
    ) -> tuple[list[TokenOffsets], FloatArray]:
        """Return the place of every token and one vector each, or raise `BackendError`."""
        ...


class AlgorithmContext:
    """Asks models on behalf of one item; rows join the batches of all callers."""

    def __init__(self, pipelines: Mapping[str, Pipeline], caller: RowCaller) -> None:
        self._pipelines = pipelines
        self._caller = caller

    @property
    def rows_left(self) -> float:
        """How many rows the item may still use."""
        return self._caller.rows_left

    @rows_left.setter
    def rows_left(self, rows: float) -> None:
        self._caller.rows_left = rows

    @contextmanager
    def hosted(self) -> Iterator[None]:
        """Count the item as one that the process of an algorithm answers, within its budget."""
        self._caller.hosted.count += 1
        try:
            yield
        finally:
            self._caller.hosted.count -= 1

    def in_background(self, *, deadline: float) -> "AlgorithmContext":
        """Return a context of the same scope in the bulk lane; it charges nothing to the item."""
        caller = RowCaller(scope=self._caller.scope, deadline=deadline, lane=BULK)
        return AlgorithmContext(self._pipelines, caller)

    @property
    def scope(self) -> str:
        """Who may share the item's rows."""
        return self._caller.scope

    @property
    def is_truncated(self) -> bool:
        """Whether a text of the item was cut."""
        return self._caller.truncated_from > 0

    def count_cached(self, rows: int) -> None:
        """Count rows that an algorithm cached itself, as if it had asked for them."""
        self.spend(rows)
        self._caller.cached += rows

    def spend(self, rows: int) -> None:
        """Deduct rows from the item's budget, or raise `ItemRefused`."""
        self._caller.spend(rows)

    def has_rows(self, model: str) -> bool:
        """Whether `model` has rows of its own, or is an algorithm over those of others."""
        return model in self._pipelines

    async def __call__(self, model: str, texts: Sequence[Text]) -> FloatArray:
        """Return `model`'s raw outputs, one line per text.

        Raises:
            BackendError: a text is refused or a row failed.
        """
        return await self._pipelines[model].vectors(texts, self._caller)

    async def pairs(
        self, model: str, first: str, seconds: Sequence[str], *, cut_first_only: bool = False
    ) -> FloatArray:
        """Return `model`'s raw outputs for each pair of `first`, tokenized once, and a second.

        Raises:
            BackendError: a text is refused or a row failed.
        """
        pipeline = self._pipelines[model]
        return await pipeline.pairs(first, seconds, self._caller, cut_first_only=cut_first_only)

    async def windows(
        self, model: str, text: str, *, overlap: int, most: int = MAX_WINDOWS
    ) -> FloatArray:
        """Return `model`'s raw outputs for each window of `text`, sharing `overlap` tokens.

        With fewer than `MAX_WINDOWS` the text after the first `most` windows is left out.
        """
        pipeline = self._pipelines[model]
        return await pipeline.windows(text, self._caller, overlap=overlap, most=most)

    async def tokens(self, model: str, text: str) -> tuple[list[TokenOffsets], FloatArray]:
        """Return the place of every token of `text` and the raw outputs of `model` for it."""
        return await self._pipelines[model].token_vectors(text, self._caller)


def encode_result(result: Any) -> bytes:
    """Return a result as JSON; arrays of floats are written in their shortest form."""
    if isinstance(result, msgspec.Raw):
        return bytes(result)
    return orjson.dumps(result, option=orjson.OPT_SERIALIZE_NUMPY)
