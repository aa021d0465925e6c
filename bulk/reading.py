"""Reads the rows of input files: Parquet, JSON lines and CSV."""

import codecs
import csv
import io
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice, zip_longest
from typing import IO, Any

import msgspec

from sluicegate.bulk.errors import BulkStopped
from sluicegate.bulk.files import InputFile, import_pyarrow

_BATCH_ROWS, _BATCH_BYTES = 4096, 32 << 20
# A larger CSV field means that a quote is not closed.
_MOST_FIELD = 64 << 20
# Errors of reading a file. pyarrow raises the last two for types that it cannot read or unify.
_PROBLEMS = (
    *(OSError, EOFError, zlib.error, csv.Error, ValueError, ImportError),
    *(TypeError, NotImplementedError),
)


class BadRow(msgspec.Struct, frozen=True):
    """Tells why a row is invalid."""

    detail: str


Row = dict[str, Any] | BadRow


def read_rows(file: InputFile, columns: Sequence[str], *, skip: int = 0) -> Iterator[Row]:
    """Yield rows with at least `columns`, after the first `skip` rows.

    Raises:
        BulkStopped: the file cannot be read, or a column is missing.
    """
    with _problems_of(file):
        if file.format == "parquet":
            yield from _read_parquet(file, columns, skip)
        elif file.format == "csv":
            yield from islice(_read_csv(file, columns), skip, None)
        else:
            yield from _read_lines(file, skip)


@contextmanager
def _problems_of(file: InputFile) -> Iterator[None]:
    """Convert errors of reading a file to a one-line `BulkStopped`."""
    try:
        yield
    except _PROBLEMS as error:
        reason = str(error).partition("\n")[0]
        raise BulkStopped(f"cannot read `{file.path}`: {reason}") from None


def count_rows(file: InputFile) -> int:
    """Return the number of rows of a file.

    Raises:
        BulkStopped: the file cannot be read.
    """
    with _problems_of(file), file.open() as raw:
        if file.format == "parquet":
            return int(_open_parquet(file, raw).metadata.num_rows)
        if file.format == "jsonl":
            return sum(1 for _ in _lines(raw))
        with _text(raw) as text:
            return max(0, sum(1 for row in _records(text) if row) - 1)


def parquet_types(files: Sequence[InputFile], columns: Sequence[str]) -> dict[str, Any]:
    """Return column types that can hold the values of all Parquet files.

    Raises:
        BulkStopped: a file cannot be read, or the types of two files do not fit together.
    """
    arrow = import_pyarrow()
    found = arrow.schema([])
    for file in files:
        with _problems_of(file), file.open() as raw:
            schema = _open_parquet(file, raw).schema_arrow
            named = [schema.field(name) for name in columns if name in schema.names]
            schema = arrow.schema([(field.name, _decoded(field.type)) for field in named])
            unified = arrow.unify_schemas([found, schema], promote_options="permissive")
            _check_types([found, schema], unified)
            found = unified
    return dict(zip(found.names, found.types, strict=True))


def _decoded(kind: Any) -> Any:
    """Return the type of a column's values; for a dictionary-encoded column, the decoded type."""
    is_dictionary = import_pyarrow("pyarrow.types").is_dictionary(kind)
    return kind.value_type if is_dictionary else kind


def _check_types(schemas: Sequence[Any], unified: Any) -> None:
    """Refuse to unify integers and floats, which pyarrow allows: large ids would lose digits."""
    types = import_pyarrow("pyarrow.types")
    for field in chain.from_iterable(schemas):
        kind = unified.field(field.name).type
        is_exact = types.is_integer(field.type) or types.is_decimal(field.type)
        if is_exact and types.is_floating(kind):
            raise TypeError(
                f"column `{field.name}` is {field.type} in one file and a float in another"
            )


def _open_parquet(file: InputFile, raw: Any) -> Any:
    parquet = import_pyarrow("pyarrow.parquet")
    try:
        return parquet.ParquetFile(raw)
    except (OSError, ValueError) as error:
        raise BulkStopped(f"`{file.path}` is not a valid Parquet file: {error}") from None


def _read_parquet(file: InputFile, columns: Sequence[str], skip: int) -> Iterator[Row]:
    with file.open() as raw:
        opened = _open_parquet(file, raw)
        _check_columns(file, opened.schema_arrow.names, columns)
        groups: list[int] = []
        for number in range(opened.num_row_groups):
            size = opened.metadata.row_group(number).num_rows
            if skip >= size and not groups:
                skip -= size
            else:
                groups.append(number)
        size = sum(opened.metadata.row_group(number).total_byte_size for number in groups)
        total = sum(opened.metadata.row_group(number).num_rows for number in groups)
        batch_rows = min(_BATCH_ROWS, 1 + _BATCH_BYTES * total // max(1, size))
        for batch in opened.iter_batches(batch_rows, row_groups=groups, columns=list(columns)):
            if skip >= batch.num_rows:
                skip -= batch.num_rows
                continue
            yield from batch.slice(skip).to_pylist()
            skip = 0


def _read_csv(file: InputFile, columns: Sequence[str]) -> Iterator[Row]:
    with _text(file.open()) as text:
        rows = filter(None, _records(text))
        names = next(rows, [])
        _check_columns(file, names, columns)
        for row in rows:
            # Missing fields at the end of a row are empty. Extra fields are ignored.
            yield _checked(dict(zip_longest(names, row[: len(names)])))


def _text(raw: IO[bytes]) -> io.TextIOWrapper:
    return io.TextIOWrapper(raw, "utf-8-sig", "surrogateescape", newline="")


def _records(text: io.TextIOWrapper) -> Iterator[list[str]]:
    csv.field_size_limit(_MOST_FIELD)
    return csv.reader(text)


def _checked(row: dict[str, Any]) -> Row:
    """Return a row of texts, or a `BadRow` if a text is not UTF-8."""
    try:
        for value in row.values():
            if value is not None and not value.isascii():
                value.encode()
    except UnicodeEncodeError:
        return BadRow("the row is not UTF-8")
    return row


def _lines(raw: IO[bytes]) -> Iterator[bytes]:
    """Return the lines that are not blank, without a byte order mark."""
    lines = chain([raw.readline().removeprefix(codecs.BOM_UTF8)], raw)
    return (line for line in lines if line and not line.isspace())


def _read_lines(file: InputFile, skip: int) -> Iterator[Row]:
    decode = msgspec.json.decode
    with file.open() as raw:
        for line in islice(_lines(raw), skip, None):
            try:
                row = decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                yield BadRow(f"the line is not valid JSON: {error}")
                continue
            yield row if isinstance(row, dict) else BadRow("the line is not a JSON object")


def _check_columns(file: InputFile, present: Sequence[str], wanted: Sequence[str]) -> None:
    for name in wanted:
        if name not in present:
            columns = ", ".join(f"`{each}`" for each in present)
            raise BulkStopped(f"`{file.path}` has no column `{name}`; it has {columns}")
