"""Tests a model owner's algorithm without a server and without models.

from sluicegate.backends.algorithms.harness import answer

def test_angry_messages_are_urgent() -> None:
    models = {"sentiment": lambda text: {"labels": [{"label": "negative", "score": 0.9}]}}
    assert answer("triage.py", {"text": "Hello?!"}, models=models)["urgent"]
"""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from typing_extensions import override

from sluicegate.backends.algorithms.base import Algorithm
from sluicegate.backends.algorithms.budget import Budget
from sluicegate.backends.algorithms.custom import Custom
from sluicegate.backends.algorithms.hosts import AlgorithmHosts
from sluicegate.backends.batching.coalescing import RowCaller
from sluicegate.backends.pipelines.ask import AlgorithmContext, Pipeline, encode_result
from sluicegate.backends.pipelines.windows import Span, Windows
from sluicegate.backends.types import FloatArray, Prompt, RowInput, TokenOffsets
from sluicegate.wire.protocol import InferParameters, Task

# Takes an item and returns its result, or takes a text and returns raw outputs.
Fake = Callable[[Any], Any]


def answer(
    code: str | Path,
    item: Any,
    *,
    models: Mapping[str, Fake],
    parameters: Mapping[str, Any] | None = None,
    time: float = 5.0,
    rows: int = 256,
) -> Any:
    """Return the algorithm's result for `item`, as a caller would get it.

    `code` is a Python file or an entry point, as in `model.yaml`. The path of a file is relative to
    the working directory. `models` maps the name of each model to a function that replaces the
    model. The function gets the item of an `ask.answer` call, or each text of an `ask` call. Do not
    call `answer` in an event loop.

    Raises:
        ValueError: the code is not a valid algorithm.
        ItemRefused: the algorithm refused the item, or exceeded its budget.
        AlgorithmFailed: the algorithm raised an error.
    """
    path = Path(code)
    is_file = path.suffix == ".py"
    budget = Budget(time=time, rows=rows)
    with AlgorithmHosts(shows_output=True) as hosts:
        host = hosts.open(
            ("harness", ""),
            code=path.name if is_file else str(code),
            folder=path.parent,
            budget=budget,
        )
        below = {name: _any_task(fake) for name, fake in models.items()}
        custom = Custom(host=host, below=below, rows=budget.rows)
        fakes: dict[str, Pipeline] = {name: _FakeRows(fake) for name, fake in models.items()}
        ask = AlgorithmContext(fakes, RowCaller(scope="harness", deadline=math.inf))
        given = InferParameters(parameters=dict(parameters or {}))
        return msgspec.json.decode(asyncio.run(_run(custom, item, given, ask, hosts)))


async def _run(
    custom: Custom,
    item: Any,
    parameters: InferParameters,
    ask: AlgorithmContext,
    hosts: AlgorithmHosts,
) -> bytes:
    try:
        return encode_result(await custom.run(item, parameters, ask))
    finally:
        # The hosts' sockets belong to this event loop, so close them before it ends.
        hosts.close()


def _any_task(fake: Fake) -> Mapping[Task, Algorithm]:
    """Return a mapping that answers every task with `fake`."""
    algorithm = _FakeAlgorithm(fake)
    return {Task.INFER: algorithm} | dict.fromkeys(Task, algorithm)


class _FakeAlgorithm(Algorithm):
    def __init__(self, fake: Fake) -> None:
        self._fake = fake

    @override
    async def run(self, item: Any, parameters: Any, ask: AlgorithmContext) -> Any:
        ask.spend(1)
        return self._fake(item)


class _FakeRows(Pipeline):
    """Replaces a model by a function that returns one list of numbers per text."""

    def __init__(self, fake: Fake) -> None:
        self._fake = fake

    @override
    async def vectors(
        self, texts: Sequence[RowInput], caller: RowCaller, prompts: Sequence[Prompt] | None = None
    ) -> FloatArray:
        caller.spend(len(texts))
        caller.rows += len(texts)
        return np.array([self._fake(text) for text in texts], dtype=np.float32)

    @override
    async def pairs(
        self, first: str, seconds: Sequence[str], caller: RowCaller, *, cut_first_only: bool
    ) -> FloatArray:
        return await self.vectors([(first, second) for second in seconds], caller)

    @override
    async def windows(
        self, text: str, caller: RowCaller, windows: Windows, *, prompt: Prompt | None = None
    ) -> FloatArray:
        return await self.vectors([text], caller)

    @override
    async def window_places(self, text: str, windows: Windows) -> list[Span]:
        return [(0, len(text))]

    @override
    async def pair_windows(
        self,
        text: str,
        others: Sequence[str],
        caller: RowCaller,
        windows: Windows,
        *,
        text_first: bool,
    ) -> FloatArray:
        pairs = [(text, other) if text_first else (other, text) for other in others]
        return await self.vectors(pairs, caller)

    @override
    async def token_vectors(
        self, text: str, caller: RowCaller
    ) -> tuple[list[TokenOffsets], FloatArray]:
        raise NotImplementedError
