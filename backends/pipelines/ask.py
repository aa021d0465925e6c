"""Asks models on behalf of an item that an algorithm answers."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import msgspec
import orjson

from backends.batching.fair_queue import BULK
from backends.batching.shared import RowCaller
from backends.pipelines.encoder import Encoder
from backends.pipelines.token_reader import TokenReader
from backends.pipelines.windows import MAX_WINDOWS
from backends.types import FloatArray, RowInput, TokenOffsets


class Pipeline(Protocol):
    """Turns texts into vectors: embeddings or logits."""

    async def vectors(
        self, texts: Sequence[RowInput], caller: RowCaller, prompts: Sequence[str] | None = None
    ) -> FloatArray:
        """Return one vector per text, or raise `BackendError`.

        One of `prompts` goes before each text, in place of the model's own.
        """
        ...

    async def pairs(
        self, first: str, seconds: Sequence[str], caller: RowCaller, *, cut_first_only: bool
    ) -> FloatArray:
        """Return one vector per pair of `first` with one of `seconds`, or raise `BackendError`."""
        ...

    async def windows(
        self,
        text: str,
        caller: RowCaller,
        *,
        overlap: int,
        most: int = MAX_WINDOWS,
        prompt: str | None = None,
    ) -> FloatArray:
        """Return one vector per window of a text, or raise `BackendError`.

        `prompt` goes before each, in place of the model's own.
        """
        ...

    async def pair_windows(
        self,
        text: str,
        others: Sequence[str],
        caller: RowCaller,
        *,
        overlap: int,
        most: int = MAX_WINDOWS,
        text_first: bool,
    ) -> FloatArray:
        """Return one vector per window of a text and each of `others`, or raise `BackendError`.

        Those of a window are together, in the order of `others`.
        """
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
        caller = RowCaller(
            scope=self._caller.scope, deadline=deadline, lane=BULK, arm=self._caller.arm
        )
        return AlgorithmContext(self._pipelines, caller)

    def note_arm(self, model: str, arm: str) -> None:
        """Note the revision of `model` that answers the item; that of the outermost model stays."""
        if self._caller.arm is None:
            self._caller.arm = (model, arm)

    def note_shadow(self, number: str) -> None:
        """Note the revision that the item is mirrored to."""
        self._caller.shadow = number

    @property
    def arm(self) -> str:
        """The revision that answers the item, where that was noted."""
        return self._caller.arm[1] if self._caller.arm is not None else ""

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

    async def __call__(
        self, model: str, texts: Sequence[RowInput], prompts: Sequence[str] | None = None
    ) -> FloatArray:
        """Return `model`'s raw outputs, one line per text.

        One of `prompts` goes before each text, in place of the model's own.

        Raises:
            BackendError: a text is refused or a row failed.
        """
        return await self._pipelines[model].vectors(texts, self._caller, prompts)

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
        self,
        model: str,
        text: str,
        *,
        overlap: int,
        most: int = MAX_WINDOWS,
        prompt: str | None = None,
    ) -> FloatArray:
        """Return `model`'s raw outputs for each window of `text`, sharing `overlap` tokens.

        With fewer than `MAX_WINDOWS` the text after the first `most` windows is left out. `prompt`
        goes before each window, in place of the model's own.
        """
        pipeline, caller = self._pipelines[model], self._caller
        return await pipeline.windows(text, caller, overlap=overlap, most=most, prompt=prompt)

    async def pair_windows(
        self,
        model: str,
        text: str,
        others: Sequence[str],
        *,
        overlap: int,
        most: int = MAX_WINDOWS,
        text_first: bool,
    ) -> FloatArray:
        """Return `model`'s raw outputs for pairs of each window of `text` with each of `others`.

        The shape is windows, others, values. `others` stay whole, and all of them see the same
        windows; with `text_first` the window is the first text of a pair, else the second.

        Raises:
            BackendError: a text is refused or a row failed.
        """
        rows = await self._pipelines[model].pair_windows(
            text, others, self._caller, overlap=overlap, most=most, text_first=text_first
        )
        return rows.reshape(-1, len(others), rows.shape[-1])

    def token_reader(self, encoder: str) -> TokenReader:
        """Return what shows the tokens that an encoder reads."""
        pipeline = self._pipelines[encoder]
        if not isinstance(pipeline, Encoder):
            raise TypeError(f"`{encoder}` has no tokenizer of its own")
        return pipeline.token_reader

    async def tokens(self, model: str, text: str) -> tuple[list[TokenOffsets], FloatArray]:
        """Return the place of every token of `text` and the raw outputs of `model` for it."""
        return await self._pipelines[model].token_vectors(text, self._caller)


def encode_result(result: Any) -> bytes:
    """Return a result as JSON; arrays of floats are written in their shortest form."""
    if isinstance(result, msgspec.Raw):
        return bytes(result)
    return orjson.dumps(result, option=orjson.OPT_SERIALIZE_NUMPY)
