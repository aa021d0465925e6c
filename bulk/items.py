"""Loads the model of a job, converts rows to items of its task, and computes their cache keys."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from sluicegate.backends.bulk.runner import BulkRunner
from sluicegate.bulk.options import BulkOptions
from sluicegate.bulk.reading import BadRow, Row
from sluicegate.gateway.cache.key import CacheKey, KeyMaker, Prefix
from sluicegate.wire.protocol import Task, item_fields, takes_text

_PAIR = 2
_encode = msgspec.msgpack.Encoder(order="sorted").encode


class ItemReader:
    """Converts rows to items; an invalid row becomes a `BadRow`."""

    def __init__(self, options: BulkOptions) -> None:
        self._columns = options.columns
        self._task = options.task
        self._fields = item_fields(options.task)
        # Of `choose`, only the choices are no text.
        self._is_text = options.task is Task.ANSWER or (
            takes_text(options.task) and options.task not in {Task.EMBED, Task.INFER}
        )

    def read(self, row: Row) -> Any:
        """Return the item of a row, or a `BadRow`."""
        if isinstance(row, BadRow):
            return row
        values = []
        for name in self._columns:
            value = row.get(name)
            if value is None:
                return BadRow(f"the column `{name}` is empty")
            if self._is_text and not isinstance(value, str):
                return BadRow(f"the column `{name}` is not a text")
            values.append(value)
        return self._item(values)

    def _item(self, values: list[Any]) -> Any:
        if self._fields:
            item = dict(zip(self._fields, values, strict=True))
            return item if self._is_text else {**item, "choices": _parsed(item["choices"])}
        if len(values) == _PAIR:
            return tuple(values)
        (value,) = values
        if self._task is Task.DETOKENIZE:
            return _parsed(value)
        return value


def _parsed(value: Any) -> Any:
    """Parse a list that is JSON in a text column, as in CSV; return other values unchanged."""
    if isinstance(value, str):
        try:
            return msgspec.json.decode(value)
        except msgspec.DecodeError:
            return value
    return value


def open_runner(options: BulkOptions, settings: Mapping[str, Any]) -> BulkRunner:
    """Load the model of a job; `settings` override the environment of a backend.

    Raises:
        StartProblem: the model cannot run the job.
    """
    return BulkRunner(
        model=options.model,
        task=options.task,
        parameters=options.parameters,
        truncate=options.truncate,
        **settings,
    )


def key_prefix(
    runner: BulkRunner, *, secret: bytes = b"", scope: str = "bulk", epoch: str = ""
) -> Prefix:
    """Return the prefix of the cache keys of a job's items.

    With a gateway's `secret`, `scope` and `epoch`, the gateway computes the same prefix.
    """
    return KeyMaker(secret=secret).prefix(
        scope=scope,
        epoch=epoch,
        model=runner.info.name,
        info=runner.info,
        task=runner.task,
        parameters=_encode(runner.parameters),
    )


def item_keys(prefix: Prefix, items: Sequence[Any]) -> list[CacheKey | BadRow]:
    """Return the cache key of each item, or a `BadRow` if an item is not a JSON value."""
    bodies: list[bytes | BadRow] = []
    for item in items:
        try:
            bodies.append(item if isinstance(item, BadRow) else _encode(item))
        except (TypeError, ValueError, RecursionError):
            bodies.append(BadRow("the item is not a JSON value"))
    keys = iter(prefix.keys([body for body in bodies if isinstance(body, bytes)]))
    return [next(keys) if isinstance(body, bytes) else body for body in bodies]


def distinct_items(keys: Sequence[CacheKey | BadRow], items: Sequence[Any]) -> dict[CacheKey, Any]:
    """Return each distinct item by its key, without invalid rows."""
    pairs = zip(keys, items, strict=True)
    return {key: item for key, item in pairs if isinstance(key, CacheKey)}
