"""Provides near-correct ways to serve a model, each of which must break parity."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from sluicegate.backends.executors.base import ModelExecutor
from sluicegate.backends.executors.padded_batch import PaddedBatch
from sluicegate.backends.executors.pooling import PoolingExecutor
from sluicegate.backends.types import FloatArray, OutputKind


def wrong_token_types(entry: Path) -> None:
    """Give the second text of a pair the type of the first."""
    _edit(entry, lambda processor: _set_types(processor["pair"]))


def dropped_template(entry: Path) -> None:
    """Leave out the tokens that begin and end a text."""
    path = entry / "tokenizer.json"
    tokenizer = json.loads(path.read_bytes())
    tokenizer["post_processor"] = None
    path.write_text(json.dumps(tokenizer), encoding="utf-8")


class LeftPadding(PoolingExecutor):
    """Runs batches padded on the left, as a tokenizer of a decoder would pad them."""

    def __init__(self, inner: ModelExecutor) -> None:
        super().__init__(inner, "mean")

    @override
    def run(self, batch: PaddedBatch) -> FloatArray:
        ids, mask, type_ids = (
            np.stack([np.roll(row, -n) for row, n in zip(a, batch.mask.sum(1), strict=True)])
            for a in (batch.ids, batch.mask, batch.type_ids)
        )
        result = self._inner.run(
            PaddedBatch(ids=ids, mask=mask, type_ids=type_ids, output=batch.output)
        )
        if batch.output is OutputKind.POOLED:
            return result
        rows = zip(result, batch.mask.sum(1), strict=True)
        return np.stack([np.roll(row, n, axis=0) for row, n in rows])

    @override
    def run_wide(self, batch: PaddedBatch) -> FloatArray:
        return self.run(batch)

    @override
    def run_within(self, time_left: float, batch: PaddedBatch) -> FloatArray:
        return self.run(batch)


def _set_types(template: list[dict[str, Any]]) -> None:
    for part in template:
        for body in part.values():
            body["type_id"] = 0


def _edit(entry: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = entry / "tokenizer.json"
    tokenizer = json.loads(path.read_bytes())
    change(tokenizer["post_processor"])
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
