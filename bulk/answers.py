"""Keeps the answers of a job on disk, so that equal rows are computed once in bounded memory."""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np

from backends.bulk.runner import BulkFailure, Outcome
from backends.pipelines.ask import encode_result
from backends.protocol import Task
from backends.types import FloatArray
from bulk.usage import BulkUsage

# SQLite takes no more variables in a statement of older versions.
_MOST_KEYS = 900
_CACHE_KIB = 32 * 1024
_SCHEMA = "CREATE TABLE IF NOT EXISTS answers (key BLOB PRIMARY KEY, answer BLOB NOT NULL)"


class BulkAnswer(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Holds an item's answer as JSON, a vector as float32; with a `code` it has failed."""

    payload: bytes = b""
    tokens: int = 0
    truncated_from: int = 0
    code: str = ""
    detail: str = ""
    rows: int = 0
    """Rows that the model ran for it."""
    is_shared: bool = False
    """It was found in the cache of a gateway."""


def read_vector(payload: bytes) -> FloatArray:
    """Return the vector that an answer of `embed` holds."""
    return np.frombuffer(payload, np.float32)


def make_answer(task: Task, outcome: Outcome) -> BulkAnswer:
    """Return an outcome as it is kept."""
    if isinstance(outcome, BulkFailure):
        return BulkAnswer(code=outcome.code, detail=outcome.detail)
    is_vector = task is Task.EMBED
    payload = vector_bytes(outcome.value["embedding"]) if is_vector else outcome.as_json()
    return BulkAnswer(
        payload=payload,
        rows=outcome.rows,
        tokens=outcome.tokens,
        truncated_from=outcome.truncated_from,
    )


def vector_bytes(values: Any) -> bytes:
    """Return a vector as an answer holds it."""
    return np.asarray(values, np.float32).tobytes()


def answer_json(task: Task, answer: BulkAnswer) -> bytes:
    """Return an answer as the gateway sends it."""
    if task is Task.EMBED:
        return encode_result({"embedding": read_vector(answer.payload)})
    return answer.payload


class AnswerStore:
    """Keeps answers by their keys in a file, which `kill -9` leaves whole."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path)
        self._database.execute("PRAGMA journal_mode = WAL")
        # What a finished part was written with must not be lost with the power.
        self._database.execute("PRAGMA synchronous = FULL")
        self._database.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        self._database.execute(_SCHEMA)
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(BulkAnswer).decode

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._database.close()

    def find(self, keys: Iterable[bytes]) -> dict[bytes, BulkAnswer]:
        """Return the answers that are kept under some of `keys`."""
        wanted, found = list(keys), {}
        for start in range(0, len(wanted), _MOST_KEYS):
            some = wanted[start : start + _MOST_KEYS]
            marks = ",".join("?" * len(some))
            query = f"SELECT key, answer FROM answers WHERE key IN ({marks})"  # noqa: S608 - marks
            for key, answer in self._database.execute(query, some):
                found[key] = self._decode(answer)
        return found

    def usage(self) -> BulkUsage:
        """Return what the answers that are kept took."""
        computed = hit = rows = tokens = 0
        for (encoded,) in self._database.execute("SELECT answer FROM answers"):
            answer = self._decode(encoded)
            if answer.code:
                continue
            if answer.is_shared:
                hit += 1
                continue
            computed += 1
            rows += answer.rows
            tokens += answer.tokens
        return BulkUsage(computed=computed, hit=hit, rows=rows, tokens=tokens)

    def keep(self, answers: Mapping[bytes, BulkAnswer]) -> None:
        """Keep answers: all of them, or none where the process ends meanwhile."""
        rows: Sequence[tuple[bytes, bytes]] = [
            (key, self._encode(answer)) for key, answer in answers.items()
        ]
        with self._database:
            self._database.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?)", rows)
