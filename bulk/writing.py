"""Writes the rows of a part to a local file: Parquet or JSON lines."""

import json
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import IO, Any, Protocol

import orjson

from sluicegate.bulk.columns import TRUNCATED, result_arrays, result_types
from sluicegate.bulk.errors import BulkStopped
from sluicegate.bulk.files import InputFile, import_pyarrow
from sluicegate.bulk.options import BulkOptions
from sluicegate.bulk.reading import parquet_types
from sluicegate.bulk.results import StoredResult, result_json
from sluicegate.wire.protocol import Task

_ROW_GROUP, _ROW_GROUP_BYTES = 16_384, 128 << 20


class PartWriter(Protocol):
    """Writes rows in order; the file is complete once it is closed."""

    def write(self, heads: Sequence[Mapping[str, Any]], results: Sequence[StoredResult]) -> None:
        """Add rows with their results.

        `heads` has the columns that identify each row, and the columns that are copied from the
        input.
        """
        ...

    def close(self) -> None:
        """Finish the file."""
        ...


class JsonLinesWriter:
    """Writes one JSON object per row."""

    def __init__(self, path: Path, task: Task) -> None:
        self._file: IO[bytes] = path.open("wb")
        self._task = task

    def write(self, heads: Sequence[Mapping[str, Any]], results: Sequence[StoredResult]) -> None:
        """Add rows."""
        for head, result in zip(heads, results, strict=True):
            body = result_json(self._task, result)
            if self._task is Task.INFER:
                body = b'{"result":' + body + b"}"
            own = {**head, TRUNCATED: result.truncated_from} if result.truncated_from else head
            start = write_json(own)
            self._file.write(start[:-1] + b"," + body[1:] + b"\n")

    def close(self) -> None:
        """Finish the file."""
        self._file.close()


class ParquetWriter:
    """Writes typed columns, in row groups of bounded size."""

    def __init__(self, path: Path, task: Task, head_types: Mapping[str, Any]) -> None:
        self._arrow = import_pyarrow()
        parquet = import_pyarrow("pyarrow.parquet")
        self._task = task
        self._head_types = head_types
        self._schema = self._arrow.schema([*head_types.items(), *result_types(task).items()])
        # Vectors do not repeat, so do not waste time on a dictionary for them.
        repeating = [name for name in self._schema.names if name != "embedding"]
        self._writer = parquet.ParquetWriter(
            path,
            self._schema,
            compression="zstd",
            use_dictionary=repeating if task is Task.EMBED else True,
        )
        self._tables: list[Any] = []

    def write(self, heads: Sequence[Mapping[str, Any]], results: Sequence[StoredResult]) -> None:
        """Add rows."""
        if not heads:
            return
        columns = [
            self._array(name, kind, [_as(kind, head[name]) for head in heads])
            for name, kind in self._head_types.items()
        ]
        columns += result_arrays(self._task, results)
        self._tables.append(self._arrow.Table.from_arrays(columns, schema=self._schema))
        tables = self._tables
        rows, size = (sum(map(attrgetter(name), tables)) for name in ("num_rows", "nbytes"))
        if rows >= _ROW_GROUP or size >= _ROW_GROUP_BYTES:
            self._flush()

    def close(self) -> None:
        """Finish the file."""
        self._flush()
        self._writer.close()

    def _array(self, name: str, kind: Any, values: Sequence[Any]) -> Any:
        try:
            return self._arrow.array(values, kind)
        except (self._arrow.ArrowException, OverflowError) as error:
            raise BulkStopped(
                f"column `{name}` has a value that is not {kind}: {error}; give all inputs the "
                "same types, or use `--format jsonl`"
            ) from None

    def _flush(self) -> None:
        if self._tables:
            self._writer.write_table(self._arrow.concat_tables(self._tables))
            self._tables = []


def write_json(value: Any) -> bytes:
    """Return a value as JSON, including large numbers and deep nesting that orjson refuses."""
    try:
        return orjson.dumps(value, default=str)
    except TypeError:
        return json.dumps(value, default=str, separators=(",", ":")).encode()


def _as(kind: Any, value: Any) -> Any:
    """Convert a JSON value for a column of type `kind`: a text column gets its JSON."""
    if str(kind) == "string" and value is not None and not isinstance(value, str):
        return write_json(value).decode()
    return value


def head_types(options: BulkOptions, files: Sequence[InputFile]) -> dict[str, Any]:
    """Return the Arrow types of the columns that identify rows or are copied from the input."""
    arrow = import_pyarrow()
    copied = [*([options.id_column] if options.id_column else []), *options.keep]
    types: dict[str, Any] = dict.fromkeys(copied, arrow.string())
    if all(file.format == "parquet" for file in files):
        types |= parquet_types(files, copied)
    if options.id_column:
        return types
    named = {"file": arrow.string()} if len(files) > 1 else {}
    return {**named, "row": arrow.int64(), **types}


def open_writer(options: BulkOptions, path: Path, types: Mapping[str, Any]) -> PartWriter:
    """Return a writer for a part."""
    if options.format == "parquet":
        return ParquetWriter(path, options.task, types)
    return JsonLinesWriter(path, options.task)
