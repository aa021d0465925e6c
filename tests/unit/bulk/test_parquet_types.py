"""Columns of several Parquet files: their types hold the values of all, or the job says why not."""

from pathlib import Path
from typing import Any

import pytest

from sluicegate.bulk.errors import BulkStopped
from sluicegate.bulk.files import find_inputs
from sluicegate.bulk.reading import parquet_types
from sluicegate.bulk.writing import ParquetWriter
from sluicegate.wire.protocol import Task

arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")


def _unify(folder: Path, *arrays: Any) -> Any:
    parquet = pytest.importorskip("pyarrow.parquet")
    for number, array in enumerate(arrays):
        parquet.write_table(arrow.table({"id": array}), folder / f"{number}.parquet")
    return parquet_types(find_inputs([f"{folder}/*.parquet"]), ["id"])["id"]


def test_types_are_those_that_hold_all_values(tmp_path: Path) -> None:
    text = arrow.array(["a"])
    assert _unify(tmp_path, text.dictionary_encode(), text, arrow.nulls(1)) == arrow.string()
    small = arrow.array([1], arrow.int32())
    assert _unify(tmp_path, small, arrow.array([1]), arrow.nulls(1)) == arrow.int64()


@pytest.mark.parametrize(
    "kinds",
    [
        ("string", "int64"),
        ("int64", "double"),
        ("timestamp[us]", "timestamp[us, tz=UTC]"),
    ],
)
def test_types_that_do_not_go_together_are_named(tmp_path: Path, kinds: tuple[str, str]) -> None:
    types = {"timestamp[us, tz=UTC]": arrow.timestamp("us", "UTC")}
    for first, second in (kinds, kinds[::-1]):
        both = [arrow.nulls(1, types.get(kind) or kind) for kind in (first, second)]
        with pytest.raises(BulkStopped, match=r"1\.parquet`: .*(id|column)"):
            _unify(tmp_path, *both)


@pytest.mark.parametrize("value", [1 << 63, 1 << 70, "text"])
def test_a_value_beyond_its_type_is_named(tmp_path: Path, value: object) -> None:
    writer = ParquetWriter(tmp_path / "part", Task.TOKENIZE, {"id": arrow.int64()})

    with pytest.raises(BulkStopped, match="column `id` has a value that is not int64"):
        writer.write([{"id": value}], [])

    writer.close()
