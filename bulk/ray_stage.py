"""Adds the results of a model to a Ray Data dataset, as a stage of a pipeline."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sluicegate.bulk.columns import result_arrays, result_types
from sluicegate.bulk.errors import BulkStopped
from sluicegate.bulk.files import import_pyarrow
from sluicegate.bulk.garbage import tune_gc
from sluicegate.bulk.items import ItemReader, distinct_items, item_keys, key_prefix, open_runner
from sluicegate.bulk.options import BulkOptions, default_columns
from sluicegate.bulk.ray_import import actor_options
from sluicegate.bulk.reading import BadRow
from sluicegate.bulk.results import StoredResult, make_result
from sluicegate.wire.protocol import Task

ERROR = "error"
"""The column with the reason why a row has no result; null if it has one."""


class StageActor:
    """Runs a model over the rows of Arrow tables, as an actor of a Ray cluster."""

    def __init__(self, *, options: BulkOptions, settings: dict[str, Any]) -> None:
        self._options = options
        self._items = ItemReader(options)
        self._runner = open_runner(options, settings)
        self._prefix = key_prefix(self._runner)
        tune_gc()

    def __call__(self, table: Any) -> Any:
        """Return the table with result columns. Equal rows are computed once."""
        arrow = import_pyarrow()
        for name in (*result_types(self._options.task), ERROR):
            if name in table.column_names:
                raise BulkStopped(
                    f"`{name}` is also a column of the results; rename the dataset's column"
                )
        rows = table.select(list(self._options.columns)).to_pylist()
        results = self._results([self._items.read(row) for row in rows])
        good = [result for result in results if not result.code]
        places = iter(range(len(good)))
        # `take` turns a null index into a null, for rows without a result.
        taken = arrow.array([None if result.code else next(places) for result in results], "int32")
        arrays = result_arrays(self._options.task, good)
        for name, values in zip(result_types(self._options.task), arrays, strict=True):
            table = table.append_column(name, values.take(taken))
        reasons = [f"{result.code}: {result.detail}" if result.code else None for result in results]
        return table.append_column(ERROR, arrow.array(reasons, "string"))

    def _results(self, items: Sequence[Any]) -> list[StoredResult]:
        keys = item_keys(self._prefix, items)
        distinct = distinct_items(keys, items)
        outcomes = self._runner.run(list(distinct.values()))
        made = [make_result(self._options.task, outcome) for outcome in outcomes]
        found = dict(zip(distinct, made, strict=True))
        return [
            StoredResult(code="bad_row", detail=key.detail)
            if isinstance(key, BadRow)
            else found[key]
            for key in keys
        ]


def sluicegate_stage(
    dataset: Any,
    *,
    model: str,
    task: str,
    models: Path | str | None = None,
    parameters: Mapping[str, Any] | None = None,
    columns: Sequence[str] = (),
    truncate: bool = True,
    batch_rows: int = 2048,
    threads: int = 1,
    provider: str = "cpu",
    gpus: float = 0,
    actors: int = 0,
) -> Any:
    """Return `dataset` (a `ray.data.Dataset`) with the results of `model` as columns.

    The result columns are those that `sluicegate bulk` writes. The column `error` says why a row
    has no result; it is null if the row has a result.

    - `columns` contain the text, or the two texts of a pair. The default is `text`.
    - `models` is the model repository, at the same path on every node.
    - `actors` is the number of actors, each with its own copy of the model; 0 means as many as fit.
    - `threads` and `gpus` are the cores and GPUs of each actor. `batch_rows` rows run together.

    If a node is lost, its rows run again on another node.

    Raises:
        BulkStopped: Ray or pyarrow is not installed.
        ValueError: the task is unknown.
    """
    import_pyarrow()
    kind = Task(task)
    options = BulkOptions(
        model=model,
        task=kind,
        parameters=dict(parameters or {}),
        truncate=truncate,
        columns=tuple(columns) or default_columns(kind),
    )
    settings: dict[str, Any] = {"threads": threads, "provider": provider}
    if models is not None:
        settings["models"] = Path(models)
    return dataset.map_batches(
        StageActor,
        batch_size=batch_rows,
        batch_format="pyarrow",
        fn_constructor_kwargs={"options": options, "settings": settings},
        **actor_options(threads=threads, gpus=gpus, actors=actors),
    )
