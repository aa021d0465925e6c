"""Runs a model owner's algorithm in its own process, within a budget."""

import hashlib
from typing import Any

import msgspec
from typing_extensions import override

from sluicegate.backends.algorithms.algorithm_host import AlgorithmHost
from sluicegate.backends.algorithms.base import Algorithm
from sluicegate.backends.algorithms.hosted_item import HostedItem, ModelsBelow
from sluicegate.backends.pipelines.ask import AlgorithmContext
from sluicegate.wire.protocol import InferParameters

_encode = msgspec.msgpack.Encoder().encode


class Custom(Algorithm):
    """Answers with a model owner's `async def run(item, ask)`, which an algorithm host runs."""

    def __init__(self, *, host: AlgorithmHost, below: ModelsBelow, rows: int) -> None:
        self._host = host
        self._below = below
        self._rows = rows
        self.version = 1 + sum(
            algorithm.version for tasks in below.values() for algorithm in tasks.values()
        )

    @override
    async def run(self, item: Any, parameters: InferParameters, ask: AlgorithmContext) -> Any:
        body, given = _encode(item), _encode(parameters.parameters)
        hosted = HostedItem(
            item=body,
            parameters=given,
            digest=hashlib.blake2b(_encode((ask.scope, body, given)), digest_size=16).digest(),
            below=self._below,
            ask=ask,
            rows=self._rows,
        )
        with ask.hosted():
            return msgspec.Raw(await self._host.answer(hosted))
