"""Tokenizes texts: one batch per event-loop iteration, in threads unless it is tiny."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import tokenizers

from backends.errors import BackendError, ExecutorDied, ModelFailed, ModelProblem, Overloaded
from backends.tokenization.layout import learn_layout
from backends.types import Encoding, IntArray, Segment, Text, TokenOffsets

# One batch is one job for one thread; more texts than this are shared between threads.
_BATCH_TEXTS = 64
# So little text (about 0.3 ms) costs less on the loop than the way to a thread and back.
_SMALL_TEXTS, _SMALL_CHARACTERS = 16, 1024
# So much text may wait for the threads: what they read in some seconds.
_MOST_CHARACTERS = 16 * 1024 * 1024
_RETRY_AFTER = 1.0
# The kinds of results: rows; or tokens alone, without and with their places.
_Kind = Literal["rows", "ids", "segments"]


class _EncodingRequest:
    """Holds one caller's texts and the future of their encodings."""

    __slots__ = ("characters", "future", "kind", "texts")

    def __init__(self, texts: Sequence[Text], *, kind: _Kind, future: Any) -> None:
        self.texts = texts
        self.characters = sum(len(t) if isinstance(t, str) else sum(map(len, t)) for t in texts)
        self.kind = kind
        self.future: asyncio.Future[list[Any]] = future


class Tokenizer:
    """Encodes with one copy of a tokenizer file per thread (a shared copy is unsafe).

    Padding and truncation a file may carry are switched off: the batcher pads, the pipeline
    refuses what is too long, unless `truncate_to` says how many tokens to keep. `lowercase`
    lower-cases texts before anything else. Without `token_types` the texts of a pair are of one.
    """

    def __init__(
        self,
        path: Path,
        *,
        pool: ThreadPoolExecutor,
        truncate_to: int | None = None,
        lowercase: bool = False,
        token_types: bool = True,
    ) -> None:
        self._truncate_to = truncate_to
        self._token_types = token_types
        try:
            self._source = path.read_text(encoding="utf-8")
            if lowercase:
                self._source = lower_cased(self._source)
            self._copies = threading.local()
            copy = self._copy(self._truncate_to)
            self._prefix: str = getattr(copy.model, "continuing_subword_prefix", None) or ""
            self._added = tuple(copy.num_special_tokens_to_add(pair) for pair in (False, True))
            self._unknown = _unknown_id(copy, self._source)
            self.layout = learn_layout(self._copy(None), token_types=token_types)
        except Exception as error:  # tokenizers raises bare Exceptions
            raise ModelProblem(f"{path}: it is no tokenizer file: {error}") from error
        self._pool = pool
        self._pending: list[_EncodingRequest] = []
        self._waiting_characters = 0
        self.failure: str | None = None

    @property
    def last_token(self) -> tuple[str, int]:
        """The token of the highest id, and that id."""
        vocabulary = self._copy(None).get_vocab()
        return max(vocabulary.items(), key=lambda item: item[1])

    async def encode(self, texts: Sequence[Text]) -> list[Encoding]:
        """Return the encodings of `texts`, in order.

        Raises:
            ModelFailed: the tokenizer could not read one of them.
            Overloaded: too much text waits for the threads.
            ExecutorDied: the threads are gone.
        """
        return await self._ask(texts, "rows")  # type: ignore[no-any-return]

    async def ids(self, texts: Sequence[str]) -> list[IntArray]:
        """Return the tokens of `texts` alone: nothing around them, nothing cut."""
        return await self._ask(texts, "ids")  # type: ignore[no-any-return]

    async def segments(self, texts: Sequence[str]) -> list[Segment]:
        """Return the tokens of `texts` alone, as `ids` does, with the place of each."""
        return await self._ask(texts, "segments")  # type: ignore[no-any-return]

    def is_empty(self, encoding: Encoding) -> bool:
        """Whether nothing of a text is in its encoding but what every text gets."""
        return len(encoding.ids) <= self._added[encoding.type_ids is not None]

    async def _ask(self, texts: Sequence[Text], kind: _Kind) -> Any:
        loop = asyncio.get_running_loop()
        request = _EncodingRequest(texts, kind=kind, future=loop.create_future())
        if self._waiting_characters > _MOST_CHARACTERS:
            raise Overloaded("too much text waits; try again later", retry_after=_RETRY_AFTER)
        if not self._pending:
            loop.call_soon(self._flush)
        self._pending.append(request)
        return await request.future

    def _flush(self) -> None:
        pending, self._pending = self._pending, []
        for kind in get_args(_Kind):
            batch: list[_EncodingRequest] = []
            texts = 0
            for request in pending:
                if request.kind == kind and not request.future.done():
                    batch.append(request)
                    texts += len(request.texts)
                if texts >= _BATCH_TEXTS:
                    self._send(batch)
                    batch, texts = [], 0
            self._send(batch)

    def _send(self, batch: list[_EncodingRequest]) -> None:
        if not batch:
            return
        if _is_small(batch):
            _settle(batch, self._answer(batch))
            return
        loop = asyncio.get_running_loop()
        characters = sum(request.characters for request in batch)

        def finished(job: "Future[list[Any]]") -> None:
            # After the loop's end no caller waits.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._finish, batch, job, characters)

        try:
            job = self._pool.submit(self._answer_pending, batch)
        except RuntimeError as error:
            # The pool was closed, or the system starts no thread.
            self._fail(batch, error)
            return
        self._waiting_characters += characters
        job.add_done_callback(finished)

    def _finish(
        self, batch: list[_EncodingRequest], job: "Future[list[Any]]", characters: int
    ) -> None:
        self._waiting_characters -= characters
        try:
            answers = job.result()
        except BaseException as error:  # noqa: BLE001 - whatever ended the thread is reported
            self._fail(batch, error)
        else:
            _settle(batch, answers)

    def _fail(self, batch: list[_EncodingRequest], error: BaseException) -> None:
        self.failure = f"a tokenizer thread died with `{type(error).__name__}`"
        died = ExecutorDied("the tokenizer's threads are gone; restart the backend")
        _settle(batch, [died] * len(batch))

    def _answer_pending(self, batch: list[_EncodingRequest]) -> list[Any]:
        """Answer as `_answer` does, in a thread; who left meanwhile costs nothing any more."""
        open_requests = [request for request in batch if not request.future.done()]
        found = self._answer(open_requests) if open_requests else []
        answers = dict(zip(map(id, open_requests), found, strict=True))
        return [answers.get(id(request)) for request in batch]

    def _answer(self, batch: list[_EncodingRequest]) -> list[Any]:
        """Return one list per request, or its error."""
        texts = [text for request in batch for text in request.texts]
        try:
            answers = self._encode_as(batch[0].kind, texts)
        # A panic of the native code is no Exception; one text must not fail those beside it.
        except BaseException as error:  # noqa: BLE001
            if len(batch) > 1:
                return [self._answer([request])[0] for request in batch]
            return [ModelFailed(f"the tokenizer failed with `{type(error).__name__}`")]
        lists, start = [], 0
        for request in batch:
            lists.append(answers[start : start + len(request.texts)])
            start += len(request.texts)
        return lists

    def _encode_as(self, kind: _Kind, texts: Sequence[Any]) -> Sequence[Any]:
        if kind == "rows":
            return self.encode_now(texts)
        copy = self._copy(None)
        if kind == "ids":
            encodings = copy.encode_batch_fast(texts, add_special_tokens=False)
            return [np.array(encoding.ids, dtype=np.int32) for encoding in encodings]
        return [
            Segment(
                ids=np.array(encoding.ids, dtype=np.int32),
                pieces=_token_offsets(encoding, text, self._unknown, self._prefix),
            )
            for encoding, text in zip(
                copy.encode_batch(texts, add_special_tokens=False), texts, strict=True
            )
        ]

    def encode_now(self, texts: Sequence[Text]) -> list[Encoding]:
        """Return the encodings of `texts`, in the calling thread, before calls are served."""
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

    def _truncated_from(self, encoding: tokenizers.Encoding, text: Text) -> int:
        """Return how many tokens a text has that was cut; 0 where it was not."""
        if self._truncate_to is None or len(encoding.ids) < self._truncate_to:
            return 0
        if isinstance(text, str):
            added, _ = self._added
            rest = sum(len(part.ids) - added for part in encoding.overflowing)
            return len(encoding.ids) + rest if rest else 0
        # What overflows of a pair is each part of the one beside each of the other.
        whole = len(self._copy(None).encode(*text).ids)
        return whole if whole > len(encoding.ids) else 0

    def _copy(self, truncate_to: int | None) -> tokenizers.Tokenizer:
        """Return this thread's copy that cuts texts to `truncate_to` tokens, if that is given."""
        name = f"cut_to_{truncate_to}"
        copy: tokenizers.Tokenizer | None = getattr(self._copies, name, None)
        if copy is None:
            copy = tokenizers.Tokenizer.from_str(self._source)
            copy.no_padding()
            copy.no_truncation()
            if truncate_to is not None:
                copy.enable_truncation(truncate_to)
            setattr(self._copies, name, copy)
        return copy


def lower_cased(source: str) -> str:
    """Return a tokenizer file that lower-cases first, as sentence transformers change one."""
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


def _unknown_id(copy: tokenizers.Tokenizer, source: str) -> int | None:
    """Return the id of what the vocabulary lacks; a unigram model states it in its file alone."""
    token: str | None = getattr(copy.model, "unk_token", None)
    if token is not None:
        return copy.token_to_id(token)
    number: int | None = json.loads(source)["model"].get("unk_id")
    return number


def _is_small(batch: list[_EncodingRequest]) -> bool:
    if sum(len(request.texts) for request in batch) > _SMALL_TEXTS:
        return False
    return sum(request.characters for request in batch) <= _SMALL_CHARACTERS


def _settle(batch: list[_EncodingRequest], answers: list[Any]) -> None:
    for request, answer in zip(batch, answers, strict=True):
        if request.future.done():
            continue
        if isinstance(answer, BackendError):
            request.future.set_exception(answer)
        else:
            request.future.set_result(answer)


def _encoding(
    encoding: tokenizers.Encoding, text: Text, *, truncated_from: int, token_types: bool
) -> Encoding:
    ids = np.array(encoding.ids, dtype=np.int32)
    key, type_ids = ids.tobytes(), None
    if not isinstance(text, str):
        type_ids = np.array(encoding.type_ids, dtype=np.int32) * np.int32(token_types)
        key += b"|" + type_ids.tobytes()
    return Encoding(ids=ids, type_ids=type_ids, key=key, truncated_from=truncated_from)


def _token_offsets(
    encoding: tokenizers.Encoding, text: str, unknown: int | None, prefix: str
) -> list[TokenOffsets]:
    """Return the place of each token, and whether it continues a word.

    As Hugging Face does, but for word pieces: it compares the lengths of token and text, which
    takes a word for the rest of the one before it where an accent is left out.
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
