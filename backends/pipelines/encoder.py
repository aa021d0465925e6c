"""Turns texts into tokens, rows and vectors."""

import operator
from collections.abc import AsyncIterator, Sequence
from functools import partial

import msgspec
import numpy as np
from numpy.typing import NDArray

from sluicegate.backends.batching.coalescing import ReadWindows, RowCaller, RowCoalescer
from sluicegate.backends.errors import ItemRefused
from sluicegate.backends.pipelines.token_reader import CHARACTERS_PER_WINDOWED_TOKEN, TokenReader
from sluicegate.backends.pipelines.token_work import run_token_work
from sluicegate.backends.pipelines.windows import (
    MAX_PAIRS,
    Span,
    Windows,
    count_windows,
    cut_text,
    join_windows,
    window_spans,
)
from sluicegate.backends.pipelines.word_rows import (
    WINDOWS_AT_ONCE,
    ReadWords,
    WordFormat,
    WordOutputs,
    owned_words,
    prompt_row,
    word_row,
    word_spans,
)
from sluicegate.backends.pipelines.words import split_schema_words, split_words
from sluicegate.backends.tokenization.layout import cut_first, cut_longest
from sluicegate.backends.tokenization.tokenizer import Tokenizer
from sluicegate.backends.types import (
    Encoding,
    FloatArray,
    OutputKind,
    PlacedTokens,
    Prompt,
    RowInput,
    Text,
    TokenIds,
    TokenOffsets,
)
from sluicegate.wire.protocol import MAX_WINDOWS, AnswerParameters

# A WordPiece token covers at most this many characters. Exception: a longer word becomes one
# unknown token.
_CHARACTERS_PER_TOKEN = 100
_EMPTY = "the text is empty; send text"


class PreparedQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Holds texts that are ready to be tokenized, and whether each text is already truncated.

    `adapters` has the number of each text's adapter; it is empty if no text has one.
    """

    texts: list[RowInput]
    are_cut: list[bool]
    adapters: Sequence[int] = ()


class QuestionWindow(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Holds the outputs of a row of a question and a window of its context.

    The window has the tokens from `start` to `end` of the context, and begins at `place` in the
    row. `is_marked` and `outputs` have a line for each token of the row.
    """

    start: int
    end: int
    place: int
    is_marked: NDArray[np.bool_]
    outputs: FloatArray


class TextMarks(msgspec.Struct, frozen=True, kw_only=True):
    """Says how a text is marked for late interaction; see `MultiVectorOutput`."""

    prefix: int | None = None
    length: int | None = None
    expansion: int | None = None
    attends_to_expansion: bool = False


class Encoder:
    """Runs one encoder and its tokenizer; all heads of the encoder share its outputs.

    With `max_characters`, texts are truncated at this character, even within a word.

    Coroutines await `vectors`. Code that answers many items in one loop instead calls the steps of
    `vectors` one by one: `prepare`, the `tokenizer`, `check`, `rows` and `finish`. Call `open`
    before the first use; after `close`, the encoder can be opened again.
    """

    tokenizer: Tokenizer
    rows: RowCoalescer
    token_reader: TokenReader

    def __init__(
        self,
        *,
        name: str,
        max_tokens: int,
        truncate: bool,
        max_characters: int | None = None,
        prompt: str = "",
    ) -> None:
        self._name = name
        self._prompt = prompt
        # Token ids of prompts, for inputs that come as token ids.
        self._prompt_ids: dict[str, tuple[int, ...] | None] = {"": ()}
        self._max_tokens = max_tokens
        self._fewest_tokens = 0
        self._max_characters = max_characters or max_tokens * _CHARACTERS_PER_TOKEN
        self._cuts_words = max_characters is not None
        self._truncate = truncate

    def open(self, *, tokenizer: Tokenizer, rows: RowCoalescer) -> None:
        """Use this tokenizer, and this queue of rows."""
        self._prompt_ids = {"": ()}
        # A row with at least this many tokens is never empty.
        self._fewest_tokens = tokenizer.layout.added_to_pair + 1
        self.token_reader = TokenReader(
            name=self._name, tokenizer=tokenizer, max_tokens=self._max_tokens, prompt=self._prompt
        )
        self.tokenizer, self.rows = tokenizer, rows

    def close(self) -> None:
        """Free the tokenizer and the rows. No caller may use them any more."""
        del self.tokenizer, self.rows, self.token_reader

    @property
    def encoder(self) -> "Encoder":
        """The encoder itself; a `Head` has the same property."""
        return self

    @property
    def failure(self) -> str | None:
        """Why the tokenizer died; `None` while it is alive."""
        return self.tokenizer.failure

    async def vectors(
        self, texts: Sequence[RowInput], caller: RowCaller, prompts: Sequence[Prompt] | None = None
    ) -> FloatArray:
        """Return one pooled vector per text.

        The model's prompt, or the text's entry in `prompts`, is put before each text.

        Raises:
            ItemRefused: a text is empty or too long.
        """
        prepared = self.prepare(texts, prompts)
        with caller.span.child("tokenization", {"texts": len(prepared.texts)}):
            encodings = await self.tokenizer.encode(prepared.texts)
        return await self._pooled(self.check(prepared, encodings, caller), caller)

    def prepare(
        self, texts: Sequence[RowInput], prompts: Sequence[Prompt] | None = None
    ) -> PreparedQuery:
        """Return `texts` with their prompts; texts with far too many characters are truncated.

        Raises:
            ItemRefused: a text is empty or too long.
        """
        parts = list(map(self._read, texts))
        are_cut = list(map(operator.is_not, parts, texts))
        adapters: Sequence[int] = ()
        if prompts or self._prompt:
            split = [_split_prompt(prompt) for prompt in prompts or [self._prompt] * len(parts)]
            adapters = [adapter for _, adapter in split] if prompts else ()
            parts = [
                self._prompted(prompt, part) for (prompt, _), part in zip(split, parts, strict=True)
            ]
        return PreparedQuery(texts=parts, are_cut=are_cut, adapters=adapters)

    def check(
        self, prepared: PreparedQuery, encodings: Sequence[Encoding], caller: RowCaller
    ) -> Sequence[Encoding]:
        """Return the rows of prepared texts from their encodings; note truncations in `caller`.

        Raises:
            ItemRefused: a text is empty or too long.
        """
        for encoding, is_cut in zip(encodings, prepared.are_cut, strict=True):
            is_whole = not (is_cut or encoding.truncated_from)
            if is_whole and self._fewest_tokens <= len(encoding.ids) <= self._max_tokens:
                continue
            self._check(encoding, is_cut=is_cut)
            if not is_whole:
                self._note_cut(encoding, encoding.truncated_from, caller, is_cut=is_cut)
        if not any(prepared.adapters):
            return encodings
        rows = zip(encodings, prepared.adapters, strict=True)
        return [encoding.adapted(adapter) for encoding, adapter in rows]

    def finish(self, rows: Sequence[FloatArray]) -> FloatArray:
        """Return the pooled outputs of rows as one array, one line per row.

        `Head.finish` returns logits instead.
        """
        return np.stack(rows) if len(rows) > 1 else rows[0][None, :]

    async def row(
        self,
        text: RowInput,
        caller: RowCaller,
        *,
        kind: OutputKind,
        instead: OutputKind | None = None,
        marks: TextMarks | None = None,
        prompt: Prompt | None = None,
    ) -> tuple[Encoding, FloatArray]:
        """Return the tokens of a text, and the graph's output for them.

        If the output `instead` is known or being computed, it is returned instead. `prompt`, by
        default the model's own, is put before the text.

        Raises:
            ItemRefused: the text is empty or too long.
        """
        prepared = self.prepare([text], None if prompt is None else [prompt])
        with caller.span.child("tokenization", {"texts": 1}):
            if marks is None:
                found = await self.tokenizer.encode(prepared.texts)
                encodings = self.check(prepared, found, caller)
            else:
                encodings = [await self._marked(prepared, caller, marks)]
        if instead is not None and self.rows.has(encodings[0], kind=instead, caller=caller):
            kind = instead
        (row,) = await self.rows.ask(encodings, kind=kind, caller=caller)
        return encodings[0], row

    async def _marked(
        self, prepared: PreparedQuery, caller: RowCaller, marks: TextMarks
    ) -> Encoding:
        """Return the row of a text with its marks, as ColBERT makes it."""
        (text,), (is_cut,) = prepared.texts, prepared.are_cut
        layout = self.tokenizer.layout
        if isinstance(text, TokenIds):
            inner = layout.inner(np.array(text.ids, dtype=np.int32))
            ids = np.concatenate([np.array(text.prompt, dtype=np.int32), inner])
        else:
            (ids,) = await self.tokenizer.ids([str(text)])
        if not len(ids):
            raise ItemRefused("empty_input", _EMPTY)
        prefix = np.array([] if marks.prefix is None else [marks.prefix], dtype=np.int32)
        length = min(marks.length or self._max_tokens, self._max_tokens)
        whole = layout.added + len(prefix) + len(ids)
        if whole > length and not self._truncate:
            raise ItemRefused(
                "input_too_long",
                f"the text has {whole} tokens; `{self._name}` reads at most {length}; shorten it",
            )
        room = max(0, length - layout.added - len(prefix))
        row = layout.single(np.concatenate([prefix, ids[:room]]))
        self._note_cut(row, whole if whole > length else 0, caller, is_cut=is_cut)
        if marks.expansion is None or len(row.ids) >= length:
            return row
        filled = np.full(length, marks.expansion, dtype=np.int32)
        filled[: len(row.ids)] = row.ids
        attended = 0 if marks.attends_to_expansion else len(row.ids)
        key = b"%b|%d" % (filled.tobytes(), attended)
        return Encoding(ids=filled, type_ids=None, key=key, attended=attended)

    async def pairs(
        self, first: str, seconds: Sequence[str], caller: RowCaller, *, cut_first_only: bool
    ) -> FloatArray:
        """Return one pooled vector per pair: `first` with each of `seconds`.

        `first` is tokenized once. If a pair is too long and the model truncates, the longer text is
        truncated. With `cut_first_only`, the first text is truncated instead.

        Raises:
            ItemRefused: a pair is empty or too long.
        """
        # A separate call, so that its token ids are freed before the rows are awaited.
        encodings = await self._pair_rows(first, seconds, caller, cut_first_only=cut_first_only)
        return await self._pooled(encodings, caller)

    async def _pair_rows(
        self, first: str, seconds: Sequence[str], caller: RowCaller, *, cut_first_only: bool
    ) -> list[Encoding]:
        texts = [(first, second) for second in seconds]
        parts = [self._read_text(text) for text in texts]
        begin = self._prompt + parts[0][0]
        with caller.span.child("tokenization", {"texts": len(parts) + 1}):
            head, *tails = await self.tokenizer.ids([begin, *(part[1] for part in parts)])
        layout = self.tokenizer.layout
        if self._truncate:
            cut = cut_first if cut_first_only else cut_longest
            room = self._max_tokens - layout.added_to_pair
            encodings = [layout.pair(*cut(head, tail, room)) for tail in tails]
        else:
            encodings = [layout.pair(head, tail) for tail in tails]
        for text, part, encoding, tail in zip(texts, parts, encodings, tails, strict=True):
            self._check(encoding, is_cut=part is not text)
            tokens = len(head) + len(tail) + layout.added_to_pair
            truncated_from = tokens if tokens > len(encoding.ids) else 0
            self._note_cut(encoding, truncated_from, caller, is_cut=part is not text)
        return encodings

    async def windows(
        self, text: str, caller: RowCaller, windows: Windows, *, prompt: Prompt | None = None
    ) -> FloatArray:
        """Return one pooled vector per window of a text.

        `prompt`, by default the model's own, is put before every window. If the caller has read the
        same windows lately, the same vectors are returned.

        Raises:
            ItemRefused: the text is empty or has too many windows, or the caller forbids a
                truncation that is needed.
        """
        read = (self, text, windows, prompt)
        if (known := caller.windows.get(read)) is not None:
            caller.count_known(len(known.outputs), known.tokens)
            return known.outputs
        encodings = await self._window_rows(text, caller, windows, prompt)
        outputs = await self._pooled(encodings, caller)
        tokens = sum([len(each.ids) for each in encodings])
        caller.remember(read, ReadWindows(outputs, tokens))
        return outputs

    async def _window_rows(
        self, text: str, caller: RowCaller, windows: Windows, prompt: Prompt | None
    ) -> list[Encoding]:
        self._check_whole(text)
        begin, adapter = _split_prompt(self._prompt if prompt is None else prompt)
        parts = [begin, text] if begin else [text]
        with caller.span.child("tokenization", {"texts": len(parts)}):
            *before, ids = await self.tokenizer.ids(parts)
        layout, taken = self.tokenizer.layout, sum(map(len, before))
        if not len(ids):
            raise ItemRefused("empty_input", _EMPTY)
        spans = self._spans(len(ids), self._max_tokens - layout.added - taken, windows)
        encodings = [
            layout.single(np.concatenate([*before, ids[start:end]])).adapted(adapter)
            for start, end in spans
        ]
        if spans[-1][1] < len(ids):
            whole = taken + len(ids) + layout.added
            self._note_cut(encodings[-1], whole, caller, is_cut=False)
        return encodings

    async def window_places(self, text: str, windows: Windows) -> list[Span]:
        """Return the characters of each window that `windows` makes with the model's own prompt.

        Raises:
            ItemRefused: the text is empty, or has too many windows.
        """
        self._check_whole(text)
        parts = [self._prompt, text] if self._prompt else [text]
        *before, tokens = await self.tokenizer.placed(parts)
        if not len(tokens.ids):
            raise ItemRefused("empty_input", _EMPTY)
        taken = sum(len(each.ids) for each in before)
        size = self._max_tokens - self.tokenizer.layout.added - taken
        spans = self._spans(len(tokens.ids), size, windows)
        return [
            (int(tokens.places[start][0]), int(tokens.places[end - 1][1])) for start, end in spans
        ]

    async def pair_windows(
        self,
        text: str,
        others: Sequence[str],
        caller: RowCaller,
        windows: Windows,
        *,
        text_first: bool,
    ) -> FloatArray:
        """Return one pooled vector per pair of a window of the text and one of `others`.

        The pairs of each window follow each other. `others` are never truncated. All of them are
        paired with the same windows, which are so short that a window and the longest of `others`
        fit into one row. With `text_first`, the window is the first text of a pair. The model's
        prompt is put before the first text of a pair.

        Raises:
            ItemRefused: both texts of a pair are empty, one of `others` leaves no room for a
                window, the text has too many windows, or the caller forbids a truncation that is
                needed.
        """
        self._check_lengths(text, others)
        before = [self._prompt] if text_first and self._prompt else []
        wholes = others if text_first else [self._prompt + other for other in others]
        with caller.span.child("tokenization", {"texts": 1 + len(others)}):
            ids, *found = await self.tokenizer.ids([text, *wholes, *before])
        sides, taken = found[: len(wholes)], sum(map(len, found[len(wholes) :]))
        longest = max(map(len, sides))
        if not len(ids) and not min(map(len, sides)):
            raise ItemRefused("empty_input", _EMPTY)
        layout = self.tokenizer.layout
        room = self._max_tokens - layout.added_to_pair - taken
        if len(ids) > room - longest <= windows.overlap:
            raise ItemRefused(
                "input_too_long",
                f"the query, label or choice has {longest} tokens; with a window of more than "
                f"{windows.overlap} tokens of the text it must fit into the {self._max_tokens} "
                f"tokens that `{self._name}` reads; shorten it",
            )
        spans = self._spans(len(ids), room - longest, windows, rows=len(others))
        parts = [np.concatenate([*found[len(wholes) :], ids[start:end]]) for start, end in spans]
        encodings = [
            layout.pair(window, side) if text_first else layout.pair(side, window)
            for window in parts
            for side in sides
        ]
        if spans[-1][1] < len(ids):
            whole = taken + len(ids) + longest + layout.added_to_pair
            self._note_cut(encodings[-1], whole, caller, is_cut=False)
        return await self._pooled(encodings, caller)

    async def question_windows(
        self,
        question: str,
        context: str,
        caller: RowCaller,
        *,
        parameters: AnswerParameters,
        marked: str | None,
    ) -> tuple[PlacedTokens, list[QuestionWindow]]:
        """Return the tokens of a context, and the outputs of its windows after the question.

        `marked` is the token that `QuestionWindow.is_marked` tells of. The question is never
        truncated.

        Raises:
            ItemRefused: a text is empty, the question leaves no room for a window, or the context
                has too many windows.
        """
        if not question or not context:
            raise ItemRefused("empty_input", _EMPTY)
        self._check_lengths(context, [question])
        longest, overlap = parameters.row(self._max_tokens)
        if longest > self._max_tokens:
            raise ItemRefused(
                "bad_parameter",
                f"`{self._name}` reads at most {self._max_tokens} tokens; lower `max_row_tokens`",
            )
        with caller.span.child("tokenization", {"texts": 2}):
            asked, tokens = await self.tokenizer.placed([question, context])
        layout = self.tokenizer.layout
        room = longest - layout.added_to_pair - len(asked.ids)
        if len(tokens.ids) > room <= overlap:
            raise ItemRefused(
                "input_too_long",
                f"the question has {len(asked.ids)} tokens; with a window of more than "
                f"{overlap} tokens of the context it must fit into {longest} tokens; "
                "shorten it, or lower `overlap`",
            )
        spans = self._spans(len(tokens.ids), room, Windows(overlap=overlap))
        encodings = [layout.pair(asked.ids, tokens.ids[start:end]) for start, end in spans]
        rows = await self.rows.ask(encodings, kind=OutputKind.TOKENS, caller=caller)
        mark = None if marked is None else self.tokenizer.token_id(marked)
        return tokens, [
            QuestionWindow(
                start=start,
                end=end,
                place=layout.before_second + len(asked.ids),
                is_marked=encoding.ids == (-1 if mark is None else mark),
                outputs=row,
            )
            for (start, end), encoding, row in zip(spans, encodings, rows, strict=True)
        ]

    async def token_vectors(
        self, text: str, caller: RowCaller
    ) -> tuple[list[TokenOffsets], FloatArray]:
        """Return the offsets and the vector of every token of a text.

        A text that is too long for the model is read in windows that overlap by a quarter of their
        length. If a token is in two windows, its vector comes from the window in which the token is
        farther from an edge.

        Raises:
            ItemRefused: the text is empty, or has too many windows.
        """
        self._check_whole(text)
        with caller.span.child("tokenization", {"texts": 1}):
            (segment,) = await self.tokenizer.segments([text])
        if not len(segment.ids):
            raise ItemRefused("empty_input", _EMPTY)
        layout = self.tokenizer.layout
        size = self._max_tokens - layout.added
        spans = self._spans(len(segment.ids), size, Windows(overlap=size // 4))
        encodings = [layout.single(segment.ids[start:end]) for start, end in spans]
        rows = await self.rows.ask(encodings, kind=OutputKind.TOKENS, caller=caller)
        # Drop the special tokens before the text here. The slice below drops the special tokens
        # after it.
        texts = [row[layout.before :] for row in rows]
        vectors = await run_token_work(len(segment.ids), join_windows, spans, texts)
        return segment.pieces, vectors[: len(segment.ids)]

    async def word_outputs(
        self,
        text: str,
        labels: Sequence[str],
        form: WordFormat,
        caller: RowCaller,
        *,
        kind: OutputKind = OutputKind.TOKENS,
    ) -> AsyncIterator[WordOutputs]:
        """Yield the outputs for a text's words, after the labels in each row.

        Words without tokens are left out. If a word has more tokens than fit into a row, it is
        truncated. A few windows are computed at a time, because their outputs are large.

        Raises:
            ItemRefused: the text is empty or has too many windows, the labels leave no room for
                words, or the caller forbids a truncation that is needed.
        """
        words = await self._read_words(text, labels, form, caller)
        lengths, room = list(map(len, words.tokens)), words.room
        spans = await run_token_work(
            len(lengths),
            partial(word_spans, room=room, form=form, most=MAX_WINDOWS),
            [min(room, length) for length in lengths],
        )
        self._check_windows(len(spans), f"{len(lengths)} words")
        owned, longest = owned_words(spans), max(lengths, default=0)
        for first in range(0, len(spans), WINDOWS_AT_ONCE):
            windows = spans[first : first + WINDOWS_AT_ONCE]
            rows = [word_row(words, span, self.tokenizer.layout, form) for span in windows]
            if longest > room:
                whole = self._max_tokens - room + longest
                self._note_cut(rows[0], whole, caller, is_cut=False)
            # No name keeps the outputs while the next ones are computed.
            yield WordOutputs(
                words=words.places,
                windows=windows,
                owned=owned[first : first + WINDOWS_AT_ONCE],
                outputs=await self.rows.ask(rows, kind=kind, caller=caller),
            )

    async def label_scores(
        self, text: str, labels: Sequence[str], form: WordFormat, caller: RowCaller
    ) -> FloatArray:
        """Return the output of each label for a whole text, which must fit into a row.

        Raises:
            ItemRefused: the text is empty, or the labels and the text are too long.
        """
        words = await self._read_words(text, labels, form, caller)
        length = sum(map(len, words.tokens))
        if not length:
            raise ItemRefused("empty_input", _EMPTY)
        if length > words.room:
            raise ItemRefused(
                "input_too_long",
                f"the text has {length} tokens; after the labels, `{self._name}` reads at most "
                f"{words.room} tokens; shorten it",
            )
        row = word_row(words, (0, len(words.tokens)), self.tokenizer.layout, form)
        (scores,) = await self.rows.ask([row], kind=OutputKind.POOLED, caller=caller)
        found: FloatArray = scores[: len(labels)]
        return found

    async def _read_words(
        self, text: str, labels: Sequence[str], form: WordFormat, caller: RowCaller
    ) -> ReadWords:
        self._check_whole(text)
        characters = len(form.schema) + sum(map(len, labels))
        if characters > self._max_characters:
            raise self._labels_too_long(f"{characters} characters")
        most = MAX_WINDOWS * form.max_words
        split = split_schema_words if form.schema else split_words
        places, words = await run_token_work(len(text), split, text, most + 1)
        if len(places) > most:
            self._check_windows(MAX_WINDOWS + 1, f"more than {most} words")
        unique = list(dict.fromkeys([*form.extra_texts, *labels, *words]))
        with caller.span.child("tokenization", {"texts": len(unique)}):
            tokens = dict(zip(unique, await self.tokenizer.ids(unique), strict=True))
        prompt = prompt_row(labels, tokens, form)
        added = 0 if form.schema else self.tokenizer.layout.added
        room = self._max_tokens - added - len(prompt[0])
        if room <= form.max_width:
            raise self._labels_too_long(f"{len(prompt[0])} tokens")
        return ReadWords(
            places=[place for place, word in zip(places, words, strict=True) if len(tokens[word])],
            tokens=[tokens[word] for word in words if len(tokens[word])],
            prompt=prompt,
            room=room,
        )

    def _labels_too_long(self, length: str) -> ItemRefused:
        return ItemRefused(
            "input_too_long",
            f"the labels have {length}; with some words of the text they must fit into the "
            f"{self._max_tokens} tokens that `{self._name}` reads; send fewer or shorter "
            "labels or descriptions",
        )

    async def _pooled(self, encodings: Sequence[Encoding], caller: RowCaller) -> FloatArray:
        return self.finish(await self.rows.ask(encodings, kind=OutputKind.POOLED, caller=caller))

    def _check_whole(self, text: str) -> None:
        """Refuse a text that is empty, or that has too many characters for windows."""
        if not text or text.isspace():
            raise ItemRefused("empty_input", _EMPTY)
        self._check_lengths(text)

    def _check_lengths(self, text: str, others: Sequence[str] = ()) -> None:
        """Refuse a text, or one of `others`, that has too many characters."""
        longest = max(map(len, others), default=0)
        if longest > self._max_characters:
            raise ItemRefused(
                "input_too_long",
                f"the question, query, label or choice has {longest} characters; with a window of "
                f"the text it must fit into the {self._max_tokens} tokens that `{self._name}` "
                "reads; shorten it",
            )
        most = MAX_WINDOWS * self._max_tokens * CHARACTERS_PER_WINDOWED_TOKEN
        if len(text) > most:
            raise ItemRefused(
                "input_too_long",
                f"the text has {len(text)} characters; at most {most} are accepted; send it in "
                "parts",
            )

    def _spans(self, tokens: int, size: int, windows: Windows, *, rows: int = 1) -> list[Span]:
        """Return windows of `size` tokens over a text. Each window needs `rows` rows.

        Raises:
            ItemRefused: there are too many windows, or too many rows.
        """
        if windows.only_first:
            return [(0, min(size, tokens))]
        # A caller may choose the overlap, so windows are counted before any is made.
        count = count_windows(tokens, size, windows.overlap)
        self._check_windows(count, f"{tokens} tokens")
        if rows > 1 and count * rows > MAX_PAIRS:
            raise ItemRefused(
                "input_too_long",
                f"the text has {count} windows of `{self._name}` for each of {rows} labels "
                f"or choices; at most {MAX_PAIRS} pairs are accepted; send it in parts, or send "
                "fewer labels or choices",
            )
        return window_spans(tokens, size, windows.overlap)

    def _check_windows(self, windows: int, length: str) -> None:
        if windows > MAX_WINDOWS:
            raise ItemRefused(
                "input_too_long",
                f"the text has {length}, which are {windows} windows or more of `{self._name}`; "
                f"at most {MAX_WINDOWS} windows are accepted; send it in parts",
            )

    def _read(self, text: RowInput) -> RowInput:
        """Truncate a text whose characters cannot fit into the tokens that the model reads."""
        if isinstance(text, str) and 0 < len(text) <= self._max_characters and not text.isspace():
            return text
        if isinstance(text, TokenIds):
            self.token_reader.check(text.ids)
            return text
        return self._read_text(text)

    def _prompted(self, prompt: str, text: RowInput) -> RowInput:
        """Return an input with `prompt` put before it."""
        if isinstance(text, TokenIds):
            if prompt not in self._prompt_ids:
                self._prompt_ids[prompt] = self.tokenizer.prompt_ids(prompt)
            ids = self._prompt_ids[prompt]
            if ids is None:
                raise ItemRefused(
                    "bad_token",
                    f"`{self._name}` has a prompt that changes the tokens of the text after it; "
                    "send the text instead of tokens",
                )
            return TokenIds(text.ids, ids)
        return prompt + text if isinstance(text, str) else (prompt + text[0], text[1])

    def _read_text(self, text: Text) -> Text:
        parts = (text,) if isinstance(text, str) else text
        if not any(part and not part.isspace() for part in parts):
            raise ItemRefused("empty_input", _EMPTY)
        characters = sum(map(len, parts))
        if not self._truncate and characters > self._max_characters:
            raise ItemRefused(
                "input_too_long",
                f"the text has {characters} characters; the encoder `{self._name}` reads "
                f"at most {self._max_tokens} tokens; shorten it",
            )
        if max(map(len, parts)) <= self._max_characters:
            return text
        if isinstance(text, str):
            most = self._max_characters
            return text[:most] if self._cuts_words else cut_text(text, most)
        first, second = text
        return cut_text(first, self._max_characters), cut_text(second, self._max_characters)

    def _note_cut(
        self, encoding: Encoding, truncated_from: int, caller: RowCaller, *, is_cut: bool
    ) -> None:
        """Note a truncated text's token count; refuse the text if the caller forbids truncation.

        With `is_cut`, the text was truncated before it was tokenized, so the whole text has more
        tokens than `encoding`.
        """
        if is_cut:
            truncated_from = max(truncated_from, len(encoding.ids) + 1)
        if not truncated_from:
            return
        if not caller.truncate:
            tokens = f"{truncated_from} tokens or more" if is_cut else f"{truncated_from} tokens"
            raise ItemRefused(
                "input_too_long",
                f"the text has {tokens}; the encoder `{self._name}` reads at most "
                f"{self._max_tokens}; shorten it, or leave out `truncate`",
            )
        caller.truncated_from = max(caller.truncated_from, truncated_from)

    def _check(self, encoding: Encoding, *, is_cut: bool) -> None:
        if len(encoding.ids) > self._max_tokens:
            raise ItemRefused(
                "input_too_long",
                f"the text has {len(encoding.ids)} tokens; the encoder `{self._name}` reads at "
                f"most {self._max_tokens}; shorten it",
            )
        if is_cut and not self._cuts_words and len(encoding.ids) < self._max_tokens:
            # The text after the cut may matter, but is too long to tokenize.
            raise ItemRefused(
                "input_too_long",
                f"the text has few words in more than {self._max_characters} characters; "
                "remove characters that are not words",
            )
        if self.tokenizer.is_empty(encoding):
            raise ItemRefused("empty_input", _EMPTY)


def _split_prompt(prompt: Prompt) -> tuple[str, int]:
    """Return the text of a prompt, and the number of its adapter."""
    return (prompt, 0) if isinstance(prompt, str) else (prompt.text, prompt.adapter)
