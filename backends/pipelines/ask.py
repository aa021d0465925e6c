"""Runs models on behalf of an item's algorithm."""

import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

import msgspec
import orjson

from sluicegate.backends.batching.coalescing import RowCaller
from sluicegate.backends.batching.fair_queue import BULK
from sluicegate.backends.pipelines.encoder import Encoder, QuestionWindow, TextMarks
from sluicegate.backends.pipelines.token_reader import TokenReader
from sluicegate.backends.pipelines.windows import Span, Windows
from sluicegate.backends.pipelines.word_rows import WordFormat, WordOutputs
from sluicegate.backends.types import (
    Encoding,
    FloatArray,
    OutputKind,
    PlacedTokens,
    Prompt,
    RowInput,
    TokenOffsets,
)
from sluicegate.wire.protocol import AnswerParameters

# No item takes so many seconds, but a timer needs a finite time.
LONGEST: Final = 3600.0


class Pipeline(Protocol):
    """Turns texts into vectors: embeddings or logits."""

    async def vectors(
        self, texts: Sequence[RowInput], caller: RowCaller, prompts: Sequence[Prompt] | None = None
    ) -> FloatArray:
        """Return one vector per text, or raise `BackendError`.

        `prompts` has one prompt for each text, in place of the model's own prompt.
        """
        ...

    async def pairs(
        self, first: str, seconds: Sequence[str], caller: RowCaller, *, cut_first_only: bool
    ) -> FloatArray:
        """Return one vector per pair of `first` with one of `seconds`, or raise `BackendError`."""
        ...

    async def windows(
        self, text: str, caller: RowCaller, windows: Windows, *, prompt: Prompt | None = None
    ) -> FloatArray:
        """Return one vector per window of a text, or raise `BackendError`.

        `prompt` is put before each window, and replaces the model's own prompt.
        """
        ...

    async def window_places(self, text: str, windows: Windows) -> list[Span]:
        """Return the first character of each window of `windows`, and the one after its last."""
        ...

    async def pair_windows(
        self,
        text: str,
        others: Sequence[str],
        caller: RowCaller,
        windows: Windows,
        *,
        text_first: bool,
    ) -> FloatArray:
        """Return one vector per pair: a window of `text` with one of `others`.

        The pairs of each window follow each other, in the order of `others`.

        Raises:
            BackendError: a text is refused or a row failed.
        """
        ...

    async def token_vectors(
        self, text: str, caller: RowCaller
    ) -> tuple[list[TokenOffsets], FloatArray]:
        """Return the offsets and one vector of every token, or raise `BackendError`."""
        ...


class AlgorithmContext:
    """Runs models for one item of a request.

    A row is one tokenized input of a model. The item's rows are batched with the rows of other
    callers.
    """

    def __init__(
        self,
        pipelines: Mapping[str, Pipeline],
        caller: RowCaller,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pipelines = pipelines
        self._caller = caller
        self._clock = clock

    @property
    def rows_left(self) -> float:
        """The number of rows that the item may still use."""
        return self._caller.rows_left

    @rows_left.setter
    def rows_left(self, rows: float) -> None:
        self._caller.rows_left = rows

    @property
    def time_left(self) -> float:
        """The seconds until the item's deadline, at most an hour."""
        return min(self._caller.deadline - self._clock(), LONGEST)

    @contextmanager
    def hosted(self) -> Iterator[None]:
        """Mark the item as running in an algorithm host, in the `with` block.

        An algorithm host runs a model owner's algorithm in another process.
        """
        self._caller.hosted.count += 1
        try:
            yield
        finally:
            self._caller.hosted.count -= 1

    def in_background(self, *, deadline: float | None = None) -> "AlgorithmContext":
        """Return a context for background work, with the item's cache scope and its deadline.

        The rows of the context are bulk rows, which have low priority. They are not charged to the
        item.
        """
        caller = RowCaller(
            scope=self._caller.scope,
            deadline=self._caller.deadline if deadline is None else deadline,
            lane=BULK,
            revision=self._caller.revision,
        )
        return AlgorithmContext(self._pipelines, caller, clock=self._clock)

    def note_revision(self, model: str, number: str) -> None:
        """Note the revision of `model` that answers the item.

        Only the first call for an item has an effect.
        """
        if self._caller.revision is None:
            self._caller.revision = (model, number)

    def note_partial(self) -> None:
        """Note that a part of the item failed, so another try may have another result."""
        self._caller.is_partial = True

    def note_shadow(self, number: str) -> None:
        """Note the shadow revision that the item is also sent to."""
        self._caller.shadow = number

    @property
    def revision(self) -> str:
        """The number of the revision that answers the item; empty if none was noted."""
        return self._caller.revision[1] if self._caller.revision is not None else ""

    @property
    def scope(self) -> str:
        """The scope in which the item's rows may be shared."""
        return self._caller.scope

    @property
    def is_truncated(self) -> bool:
        """Whether a text of the item was truncated."""
        return self._caller.truncated_from > 0

    def count_cached(self, rows: int) -> None:
        """Count rows that an algorithm took from its own cache, and charge them like other rows."""
        self.spend(rows)
        self._caller.cached += rows

    def spend(self, rows: int) -> None:
        """Charge rows to the item's budget; raises `ItemRefused` if the budget is used up."""
        self._caller.spend(rows)

    def has_rows(self, model: str) -> bool:
        """Return whether `model` is an encoder, a classifier or a head, not an algorithm."""
        return model in self._pipelines

    async def __call__(
        self, model: str, texts: Sequence[RowInput], prompts: Sequence[Prompt] | None = None
    ) -> FloatArray:
        """Return the raw outputs of `model`, one line per text.

        `prompts` has one prompt for each text, in place of the model's own prompt.

        Raises:
            BackendError: a text is refused or a row failed.
        """
        return await self._pipelines[model].vectors(texts, self._caller, prompts)

    async def row(
        self,
        encoder: str,
        text: RowInput,
        *,
        kind: OutputKind,
        instead: OutputKind | None = None,
        marks: TextMarks | None = None,
        prompt: Prompt | None = None,
    ) -> tuple[Encoding, FloatArray]:
        """Return the tokens of a text, and the raw output of an encoder for them.

        If the output `instead` is known or being computed, it is returned instead. `prompt`
        replaces the model's own prompt.
        """
        return await self._encoder(encoder).row(
            text, self._caller, kind=kind, instead=instead, marks=marks, prompt=prompt
        )

    async def pairs(
        self, model: str, first: str, seconds: Sequence[str], *, cut_first_only: bool = False
    ) -> FloatArray:
        """Return the raw outputs of `model` for each pair of `first` and one of `seconds`.

        `first` is tokenized once.

        Raises:
            BackendError: a text is refused or a row failed.
        """
        pipeline = self._pipelines[model]
        return await pipeline.pairs(first, seconds, self._caller, cut_first_only=cut_first_only)

    async def windows(
        self, model: str, text: str, windows: Windows, *, prompt: Prompt | None = None
    ) -> FloatArray:
        """Return the raw outputs of `model`, one line per window of `text`.

        `prompt` is put before each window, and replaces the model's own prompt.
        """
        return await self._pipelines[model].windows(text, self._caller, windows, prompt=prompt)

    async def window_places(self, model: str, text: str, windows: Windows) -> list[Span]:
        """Return the first character of each window of `text`, and the character after its last."""
        return await self._pipelines[model].window_places(text, windows)

    async def pair_windows(
        self,
        model: str,
        text: str,
        others: Sequence[str],
        windows: Windows,
        *,
        text_first: bool,
    ) -> FloatArray:
        """Return `model`'s raw outputs for each window of `text` paired with each of `others`.

        The shape is `[windows, others, values]`. `others` are never truncated, and all of them are
        paired with the same windows. With `text_first`, the window is the first text of a pair.

        Raises:
            BackendError: a text is refused or a row failed.
        """
        rows = await self._pipelines[model].pair_windows(
            text, others, self._caller, windows, text_first=text_first
        )
        return rows.reshape(-1, len(others), rows.shape[-1])

    def token_reader(self, encoder: str) -> TokenReader:
        """Return the token reader of an encoder."""
        return self._encoder(encoder).token_reader

    async def question_windows(
        self,
        model: str,
        question: str,
        context: str,
        *,
        parameters: AnswerParameters,
        marked: str | None,
    ) -> tuple[PlacedTokens, list[QuestionWindow]]:
        """Return the tokens of `context`, and `model`'s outputs of its windows after the question.

        Raises:
            BackendError: a text is refused or a row failed.
        """
        return await self._encoder(model).question_windows(
            question, context, self._caller, parameters=parameters, marked=marked
        )

    def word_outputs(
        self,
        model: str,
        text: str,
        labels: Sequence[str],
        form: WordFormat,
        *,
        kind: OutputKind = OutputKind.TOKENS,
    ) -> AsyncIterator[WordOutputs]:
        """Yield `model`'s raw outputs for the words of `text`; see `Encoder.word_outputs`."""
        return self._encoder(model).word_outputs(text, labels, form, self._caller, kind=kind)

    async def label_scores(
        self, model: str, text: str, labels: Sequence[str], form: WordFormat
    ) -> FloatArray:
        """Return `model`'s raw output of each label for `text`; see `Encoder.label_scores`."""
        return await self._encoder(model).label_scores(text, labels, form, self._caller)

    def _encoder(self, name: str) -> Encoder:
        pipeline = self._pipelines[name]
        if not isinstance(pipeline, Encoder):
            raise TypeError(f"`{name}` has no tokenizer of its own")
        return pipeline

    async def tokens(self, model: str, text: str) -> tuple[list[TokenOffsets], FloatArray]:
        """Return the offsets of every token of `text`, and `model`'s raw outputs for each token."""
        return await self._pipelines[model].token_vectors(text, self._caller)


def encode_result(result: Any) -> bytes:
    """Return a result as JSON.

    Each float is written with the fewest digits that identify it.
    """
    if isinstance(result, msgspec.Raw):
        return bytes(result)
    return orjson.dumps(result, option=orjson.OPT_SERIALIZE_NUMPY)
