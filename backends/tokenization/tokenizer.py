"""Tokenizes texts: short texts on the event loop, other texts in threads."""

import asyncio
import copy
import itertools
import json
import math
import operator
import threading
from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, get_args

import msgspec
import numpy as np
import orjson
import tokenizers

from sluicegate.backends.errors import (
    BackendError,
    ExecutorDied,
    ModelFailed,
    ModelProblem,
    Overloaded,
)
from sluicegate.backends.tokenization.layout import learn_layout, learn_prompt
from sluicegate.backends.tokenization.text_queue import TextQueue
from sluicegate.backends.tokenization.word_table import read_word_table
from sluicegate.backends.types import (
    Encoding,
    IntArray,
    PlacedTokens,
    RowInput,
    Segment,
    Text,
    TokenIds,
    TokenOffsets,
)

# Tokenizing this many characters takes about 0.5 ms, less than handing them to a thread.
_SMALL_CHARACTERS = 2048
# The fixed cost of a text, in characters.
_TEXT = 32
# One call tokenizes up to this many characters, or one longer text. Each token takes up to half a
# kilobyte until the call's result is freed.
_PORTION = 32 * 1024
# The bound for one event-loop iteration, because many short texts together would block the loop.
_MOST_AT_ONCE = 8 * _SMALL_CHARACTERS
# The kinds of results for a text: a row with special tokens ("rows"), token ids ("ids"), ids with
# offsets ("segments") or with places and words ("placed"), the number of tokens ("count"), or JSON
# with or without special tokens ("shown row", "shown ids"). The kinds of results for token ids:
# text, with special tokens ("whole text") or without them ("text").
_RowKind = Literal["rows", "ids", "segments", "placed"]
_TokenKind = Literal["count", "shown row", "shown ids", "whole text", "text"]
TextKind = _RowKind | _TokenKind
_TOKEN_KINDS = get_args(_TokenKind)
# These kinds make Python objects of each token, which takes up to four times as long as making a
# row.
_SLOW_KINDS = {"segments", "placed", "shown row", "shown ids"}
_SLOWNESS = 4
Texts = Sequence[RowInput]


class Tokenizer:
    """Encodes texts with the tokenizer in a file.

    Threads cannot share a tokenizer, so each thread has its own copy. Padding is always off. If
    `truncate_to` is set, a text is truncated to this number of tokens. `lowercase` lower-cases
    texts first. Without `token_types`, all token types are 0. With `split_special_tokens`, a
    special token that occurs in a text is tokenized like ordinary text. Calls that only count, show
    or decode tokens run in `token_pool`, so that they do not delay rows.
    """

    def __init__(
        self,
        path: Path,
        *,
        pool: ThreadPoolExecutor,
        token_pool: ThreadPoolExecutor | None = None,
        truncate_to: int | None = None,
        lowercase: bool = False,
        token_types: bool = True,
        split_special_tokens: bool = False,
    ) -> None:
        self._truncate_to = truncate_to
        self._token_types = token_types
        try:
            source = path.read_text(encoding="utf-8")
            if lowercase:
                source = lower_cased(source)
            self._copies = _Copies(source, split_special_tokens=split_special_tokens)
            first = self._copy(self._truncate_to)
            self._prefix: str = getattr(first.model, "continuing_subword_prefix", None) or ""
            self._added = tuple(first.num_special_tokens_to_add(pair) for pair in (False, True))
            self._unknown = _unknown_id(first, source)
            vocabulary = first.get_vocab()
            self.last_token: tuple[str, int] = max(vocabulary.items(), key=operator.itemgetter(1))
            """The token with the highest id, and its id."""
            known = np.fromiter(vocabulary.values(), dtype=np.int64)
            self._is_known = np.bincount(known).astype(bool)
            self.layout = learn_layout(self._copy(None), token_types=token_types)
            # A text with more tokens is truncated.
            self._most_tokens = (truncate_to or math.inf) - self.layout.added
            self._table = read_word_table(source, self._copies.read_words)
        except Exception as error:  # tokenizers raises bare Exceptions
            raise ModelProblem(f"{path}: cannot be read as a tokenizer: {error}") from error
        self._pools = pool, token_pool or pool
        self.original: Tokenizer | None = None
        """The tokenizer of which this one is a twin; the reference keeps it in memory."""
        self.reset()

    def twin(self) -> Self:
        """Return a tokenizer that shares the vocabulary, and has counts and queues of its own."""
        twin = copy.copy(self)
        twin.original = self
        twin.reset()
        return twin

    def reset(self) -> None:
        """Begin with empty queues and new counts."""
        pool, token_pool = self._pools
        self._row_queue, self._token_queue = TextQueue(pool), TextQueue(token_pool)
        self._at_once = 0
        self.portions = 0
        """The number of calls to the tokenizer so far: while it grows, the tokenizer is alive."""
        self.failure: str | None = None

    @property
    def has_word_table(self) -> bool:
        """Whether most texts are looked up, which holds the GIL."""
        return self._table is not None

    def leave_thread(self) -> None:
        """Free what the calling thread uses, for the thread that calls `move_here`."""
        self._copies.leave_thread()

    def move_here(self) -> None:
        """Use the tokenizer in the calling thread, which need not read its file again."""
        self._copies.move_here()

    def read_by(self, queue: TextQueue) -> None:
        """Use `queue` for all texts that are too long for the event loop."""
        self._row_queue = self._token_queue = queue

    async def encode(self, texts: Texts) -> list[Encoding]:
        """Return the encodings of `texts`, in order.

        Raises:
            ModelFailed: the tokenizer failed on one of the texts.
            Overloaded: too much text is waiting for a thread.
            ExecutorDied: the threads are dead.
        """
        return await self._tokenize(texts, "rows")  # type: ignore[no-any-return]

    async def encode_each(self, groups: Sequence[Texts]) -> list[list[Encoding] | BackendError]:
        """Return the encodings of each group of texts, or the group's error; see `encode`."""
        return await self.tokenize_each(groups, "rows")

    def is_short(self, groups: Sequence[Texts]) -> bool:
        """Return whether `encode_short` may tokenize these texts in this event-loop iteration.

        If so, the length of the texts counts towards the limit of the iteration.
        """
        return self._fits_iteration(_count(groups))

    def encode_short(self, groups: Sequence[Texts]) -> list[list[Encoding] | BackendError]:
        """Return the same result as `encode_each`, without awaiting."""
        return self._tokenize_groups(groups, "rows")

    async def ids(self, texts: Sequence[str]) -> list[IntArray]:
        """Return the token ids of `texts`, without special tokens and without truncation."""
        return await self._tokenize(texts, "ids")  # type: ignore[no-any-return]

    async def segments(self, texts: Sequence[str]) -> list[Segment]:
        """Return the token ids of `texts`, like `ids`, and the offsets of each token."""
        return await self._tokenize(texts, "segments")  # type: ignore[no-any-return]

    async def placed(self, texts: Sequence[str]) -> list[PlacedTokens]:
        """Return the token ids of `texts`, like `ids`, and the place and word of each token."""
        return await self._tokenize(texts, "placed")  # type: ignore[no-any-return]

    def token_id(self, token: str) -> int | None:
        """Return the id of a token; `None` if it is not in the vocabulary."""
        return self._copy(None).token_to_id(token)

    async def count(self, text: str) -> int:
        """Return the number of tokens of a text, without special tokens."""
        (count,) = await self._tokenize([text], "count")
        return count  # type: ignore[no-any-return]

    async def show(self, text: str, *, add_special_tokens: bool) -> tuple[int, bytes]:
        """Return the number of tokens of a text, and a JSON object with ids, tokens and offsets.

        The text is not truncated. Special tokens that the tokenizer adds have no offsets.
        """
        kind: TextKind = "shown row" if add_special_tokens else "shown ids"
        (shown,) = await self._tokenize([text], kind)
        return shown  # type: ignore[no-any-return]

    async def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the text of tokens."""
        kind: TextKind = "text" if skip_special_tokens else "whole text"
        (text,) = await self._tokenize([TokenIds(tuple(ids))], kind)
        return text  # type: ignore[no-any-return]

    def prompt_ids(self, prompt: str) -> tuple[int, ...] | None:
        """Return the tokens that a prompt adds before a text's tokens; see `learn_prompt`."""
        return learn_prompt(self._copy(None), prompt)

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """Return how the vocabulary writes tokens; an id without a token is an empty string."""
        find = self._copy(None).id_to_token
        return [find(number) or "" for number in ids]

    def unknown_id(self, ids: Sequence[int]) -> int | None:
        """Return the first id that is not in the vocabulary, or `None`."""
        array = np.array(ids, dtype=np.int64)
        is_known = self._is_known.take(array, mode="clip") & (array < len(self._is_known))
        strange = array[~is_known]
        return int(strange[0]) if len(strange) else None

    def is_empty(self, encoding: Encoding) -> bool:
        """Whether an encoding has only the special tokens that every row has."""
        return len(encoding.ids) <= self._added[encoding.type_ids is not None]

    async def _tokenize(self, texts: Texts, kind: TextKind) -> Any:
        (result,) = await self.tokenize_each([texts], kind)
        if isinstance(result, BackendError):
            raise result
        return result

    async def tokenize_each(self, groups: Sequence[Texts], kind: TextKind) -> list[Any]:
        """Return each group's results or its error.

        Short texts are tokenized on the event loop.
        """
        characters = _count(groups)
        if self._fits_iteration(characters * _SLOWNESS if kind in _SLOW_KINDS else characters):
            return self._tokenize_groups(groups, kind)
        queue = self._token_queue if kind in _TOKEN_KINDS else self._row_queue
        try:
            return await queue.run(
                partial(self._tokenize_groups, groups, kind), characters=characters
            )
        except Overloaded as full:
            return [full] * len(groups)
        except BaseException as error:  # whatever ended the thread is reported to the caller
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            # The pool was closed or cannot start a thread. Jobs of a closed pool are cancelled.
            self.failure = f"a tokenizer thread died with `{type(error).__name__}`"
            died = ExecutorDied("the tokenizer's threads are dead; restart the backend")
            return [died] * len(groups)

    def _fits_iteration(self, characters: int) -> bool:
        """Return whether the loop may tokenize so many characters in this iteration."""
        if characters > min(_SMALL_CHARACTERS, _MOST_AT_ONCE - self._at_once):
            return False
        if not self._at_once:
            asyncio.get_running_loop().call_soon(self._end_iteration)
        self._at_once += characters
        return True

    def _end_iteration(self) -> None:
        self._at_once = 0

    def _tokenize_groups(self, groups: Sequence[Texts], kind: TextKind) -> list[Any]:
        texts = [text for group in groups for text in group]
        try:
            results = self._encode_as(kind, texts)
        # A panic of the native library is not an `Exception`. It must fail only its own group.
        except BaseException as error:  # noqa: BLE001
            if len(groups) > 1:
                return [self._tokenize_groups([group], kind)[0] for group in groups]
            return [ModelFailed(f"the tokenizer failed with `{type(error).__name__}`")]
        if len(groups) == 1:
            return [list(results)]
        remaining = iter(results)
        return [list(itertools.islice(remaining, len(group))) for group in groups]

    def _encode_as(self, kind: TextKind, texts: Sequence[Any]) -> Sequence[Any]:
        if kind == "rows":
            return self.encode_now(texts)
        if kind in {"text", "whole text"}:
            return [self._decode(text.ids, is_whole=kind == "whole text") for text in texts]
        return [found for portion in self._portions(texts) for found in self._read(kind, portion)]

    def _read(self, kind: TextKind, texts: Sequence[Any]) -> Sequence[Any]:
        own = self._copy(None)
        if kind in {"shown row", "shown ids"}:
            found = own.encode_batch(texts, add_special_tokens=kind == "shown row")
            return [_shown(encoding) for encoding in found]
        if kind == "count":
            return list(map(len, self._ids(own, texts)))
        if kind == "ids":
            return [np.array(ids, dtype=np.int32) for ids in self._ids(own, texts)]
        if kind == "placed":
            return list(map(_placed, own.encode_batch(texts, add_special_tokens=False)))
        return [
            Segment(
                ids=np.array(encoding.ids, dtype=np.int32),
                pieces=_token_offsets(encoding, text, self._unknown, self._prefix),
            )
            for encoding, text in zip(
                own.encode_batch(texts, add_special_tokens=False), texts, strict=True
            )
        ]

    def _ids(self, own: tokenizers.Tokenizer, texts: Sequence[str]) -> list[list[int]]:
        found = self._find(texts)
        others = [text for text, ids in zip(texts, found, strict=True) if ids is None]
        if not others:
            return found  # type: ignore[return-value]
        read = iter(own.encode_batch_fast(others, add_special_tokens=False))
        return [next(read).ids if ids is None else ids for ids in found]

    def encode_now(self, texts: Texts) -> list[Encoding]:
        """Return the encodings of `texts`; blocks the calling thread."""
        # Look-ups take portions, too: until a call ends, its words take much more memory than rows.
        return [row for portion in self._portions(texts) for row in self._encode_portion(portion)]

    def _encode_portion(self, texts: Texts) -> Sequence[Encoding]:
        found = self._look_up(texts)
        if None not in found:
            return found  # type: ignore[return-value]
        others: list[Any] = [
            text
            for text, row in zip(texts, found, strict=True)
            if row is None and not isinstance(text, TokenIds)
        ]
        read = iter(self._encode_others(others) if others else ())
        return [
            row or (self._row_of(text) if isinstance(text, TokenIds) else next(read))
            for text, row in zip(texts, found, strict=True)
        ]

    def _encode_others(self, texts: Sequence[Text]) -> list[Encoding]:
        # `_truncated_from` may use the copy without truncation afterwards.
        encodings = self._copy(self._truncate_to).encode_batch_fast(texts)
        return [
            _encoding(
                encoding,
                text,
                truncated_from=self._truncated_from(encoding, text),
                token_types=self._token_types,
            )
            for encoding, text in zip(encodings, texts, strict=True)
        ]

    def _portions(self, texts: Sequence[Any]) -> Iterator[Sequence[Any]]:
        for portion in _portions(texts):
            yield portion
            self.portions += 1

    def _look_up(self, texts: Texts) -> Sequence[Encoding | None]:
        """Return the encodings of texts that the word table has, and `None` for other inputs."""
        row = self._row
        return [None if tokens is None else row(tokens) for tokens in self._find(texts)]

    def _find(self, texts: Texts) -> list[list[int] | None]:
        """Return the tokens of texts that the word table has, and `None` for other inputs."""
        return [None] * len(texts) if self._table is None else self._table.find(texts)

    def _row_of(self, tokens: TokenIds) -> Encoding:
        """Return the encoding of token ids that a caller sent, truncated like a text."""
        inner = self.layout.inner(np.array(tokens.ids, dtype=np.int32))
        return self._row([*tokens.prompt, *inner.tolist()])

    def _row(self, tokens: list[int]) -> Encoding:
        """Return the encoding of a text's tokens, truncated."""
        if len(tokens) <= self._most_tokens:
            return self.layout.single_of(tokens)
        row = self.layout.single_of(tokens[: int(self._most_tokens)])
        return msgspec.structs.replace(row, truncated_from=len(tokens) + self.layout.added)

    def _decode(self, ids: tuple[int, ...], *, is_whole: bool) -> str:
        # Tokenizer files do not always mark special tokens. The layout knows those that every row
        # has.
        kept = ids if is_whole else self.layout.inner(np.array(ids, dtype=np.int32)).tolist()
        # Only `decode_batch` releases the interpreter lock.
        texts = self._copy(None).decode_batch([kept], skip_special_tokens=not is_whole)
        text: str = texts[0]
        return text

    def _truncated_from(self, encoding: tokenizers.Encoding, text: Text) -> int:
        """Return the number of tokens of a text that was truncated; 0 for a whole text."""
        if self._truncate_to is None or len(encoding.ids) < self._truncate_to:
            return 0
        if isinstance(text, str):
            added, _ = self._added
            rest = sum(len(part.ids) - added for part in encoding.overflowing)
            return len(encoding.ids) + rest if rest else 0
        # For a pair, `overflowing` has all combinations of pieces, so the pair is read again.
        whole = len(self._copy(None).encode(*text).ids)
        return whole if whole > len(encoding.ids) else 0

    def _copy(self, truncate_to: int | None) -> tokenizers.Tokenizer:
        return self._copies.get(truncate_to)


class _Copies:
    """Holds the copies of a tokenizer: each thread has its own.

    To make a copy takes tens of milliseconds, in which no other thread gets the interpreter lock.
    """

    def __init__(self, source: str, *, split_special_tokens: bool) -> None:
        self._source = source
        self._split_special_tokens = split_special_tokens
        self._own = threading.local()
        self._offered: dict[str, tokenizers.Tokenizer] = {}

    def get(self, truncate_to: int | None) -> tokenizers.Tokenizer:
        """Return this thread's copy of the tokenizer, which truncates to `truncate_to` tokens.

        It truncates so until the thread's next call.
        """
        own: tokenizers.Tokenizer | None = getattr(self._own, "copy", None)
        if own is None:
            own = self._own.copy = tokenizers.Tokenizer.from_str(self._source)
            own.no_padding()
            own.encode_special_tokens = self._split_special_tokens
        if truncate_to is None:
            own.no_truncation()
        else:
            own.enable_truncation(truncate_to)
        return own

    def read_words(self, words: list[str]) -> list[list[int]]:
        """Return the tokens of each word."""
        return [
            encoding.ids
            for portion in _portions(words)
            for encoding in self.get(None).encode_batch_fast(portion, add_special_tokens=False)
        ]

    def leave_thread(self) -> None:
        """Offer the calling thread's copies to the thread that calls `move_here`."""
        self._offered.update(vars(self._own))
        vars(self._own).clear()

    def move_here(self) -> None:
        """Use the offered copies in the calling thread, which so need not make any."""
        vars(self._own).update(self._offered)
        self._offered.clear()


def lower_cased(source: str) -> str:
    """Return a tokenizer file that lower-cases texts first, as sentence-transformers does."""
    document = json.loads(source)
    normalizer = document.get("normalizer")
    if not _lowers(normalizer):
        parts = [{"type": "Lowercase"}, *([normalizer] if normalizer else [])]
        document["normalizer"] = {"type": "Sequence", "normalizers": parts}
    return json.dumps(document)


def _lowers(normalizer: Any) -> bool:
    found = normalizer or {}
    if found.get("type") == "Lowercase" or found.get("lowercase"):
        return True
    return any(map(_lowers, found.get("normalizers", [])))


def _unknown_id(read: tokenizers.Tokenizer, source: str) -> int | None:
    """Return the id of the unknown token; for a unigram model, only the file contains it."""
    token: str | None = getattr(read.model, "unk_token", None)
    if token is not None:
        return read.token_to_id(token)
    number: int | None = json.loads(source)["model"].get("unk_id")
    return number


def _portions(texts: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Yield the texts in order, in slices that the library tokenizes in one call."""
    start = size = 0
    for place, text in enumerate(texts):
        length = _cost(text)
        if size and size + length > _PORTION:
            yield texts[start:place]
            start, size = place, 0
        size += length
    yield texts[start:]


def _count(groups: Sequence[Texts]) -> int:
    """Return the cost of texts in characters."""
    return sum(_cost(text) for group in groups for text in group)


def _cost(text: RowInput) -> int:
    """Return the cost of a text in characters; a token id costs as much as a character."""
    if isinstance(text, str):
        return _TEXT + len(text)
    if isinstance(text, TokenIds):
        return _TEXT + len(text.ids)
    return sum(_TEXT + len(part) for part in text)


def _shown(encoding: tokenizers.Encoding) -> tuple[int, bytes]:
    """Return the number of tokens and their JSON.

    To save memory, this frees each column before it reads the next column.
    """
    masks = encoding.special_tokens_mask
    places = orjson.dumps(
        [None if special else place for place, special in zip(encoding.offsets, masks, strict=True)]
    )
    ids, tokens = orjson.dumps(encoding.ids), orjson.dumps(encoding.tokens)
    return len(masks), b'{"ids":%b,"tokens":%b,"offsets":%b}' % (ids, tokens, places)


def _placed(encoding: tokenizers.Encoding) -> PlacedTokens:
    return PlacedTokens(
        ids=np.array(encoding.ids, dtype=np.int32),
        places=np.array(encoding.offsets, dtype=np.int32).reshape(-1, 2),
        words=np.array([-1 if word is None else word for word in encoding.word_ids], np.int32),
    )


def _encoding(
    encoding: tokenizers.Encoding, text: Text, *, truncated_from: int, token_types: bool
) -> Encoding:
    key, type_ids = array("i", encoding.ids).tobytes(), None
    ids = np.frombuffer(key, dtype=np.int32)
    if not isinstance(text, str):
        type_ids = np.array(encoding.type_ids, dtype=np.int32) * np.int32(token_types)
        key += b"|" + type_ids.tobytes()
    return Encoding(ids=ids, type_ids=type_ids, key=key, truncated_from=truncated_from)


def _token_offsets(
    encoding: tokenizers.Encoding, text: str, unknown: int | None, prefix: str
) -> list[TokenOffsets]:
    """Return the offsets of each token, and whether the token continues a word.

    The rules are those of Hugging Face. Exception: with WordPiece, a token continues a word if it
    begins with `prefix`. Hugging Face compares the lengths of the token and its text instead, which
    fails if the tokenizer drops an accent.
    """
    pieces = []
    masks = encoding.special_tokens_mask
    columns = zip(encoding.ids, encoding.tokens, encoding.offsets, masks, strict=True)
    for number, token, (start, end), special in columns:
        if number == unknown:
            continues = False
        elif prefix:
            continues = token.startswith(prefix)
        else:
            continues = start > 0 and " " not in text[start - 1 : start + 1]
        pieces.append(
            TokenOffsets(start=start, end=end, special=bool(special), continues_word=continues)
        )
    return pieces
