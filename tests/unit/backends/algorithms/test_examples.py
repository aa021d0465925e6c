"""The vectors of examples are computed once, however many items need them."""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from typing_extensions import override

from sluicegate.backends.algorithms.examples import Examples, ExampleVectors
from sluicegate.backends.batching.coalescing import RowCaller
from sluicegate.backends.errors import BackendError, ItemRefused, ModelFailed
from sluicegate.backends.types import FloatArray, Prompt
from tests.support.fake_models import FakeModel, asking

pytestmark = pytest.mark.anyio
_EXAMPLES: Examples = ("m", ("one", "three"))


class _SlowModel(FakeModel):
    """Returns vectors once it is released; the first calls fail with `errors`."""

    def __init__(self, *errors: BackendError) -> None:
        super().__init__(lambda text: [float(len(str(text))), 0.0])
        self._ready = asyncio.Event()
        self.truncates = False
        self._errors = list(errors)

    async def release(self) -> None:
        """Let all calls go on."""
        self._ready.set()

    @override
    async def vectors(
        self, texts: Sequence[Any], caller: RowCaller, prompts: Sequence[Prompt] | None = None
    ) -> FloatArray:
        found = await super().vectors(texts, caller, prompts)
        await self._ready.wait()
        caller.truncated_from = 40 if self.truncates else 0
        if self._errors:
            raise self._errors.pop(0)
        return found


async def test_items_that_need_the_same_examples_compute_them_once() -> None:
    model, vectors = _SlowModel(), ExampleVectors()

    waiting = [vectors.find(_EXAMPLES, asking(m=model)) for _ in range(5)]
    *found, _ = await asyncio.gather(*waiting, model.release())
    await vectors.find(("m", ("other",)), asking(m=model))

    assert model.questions == [["one", "three"], ["other"]]
    for each in found:
        np.testing.assert_array_equal(each, [[1, 0], [1, 0]])


async def test_after_a_failure_the_next_item_computes_the_examples() -> None:
    model, vectors = _SlowModel(ModelFailed("broken")), ExampleVectors()

    waiting = [vectors.find(_EXAMPLES, asking(m=model)) for _ in range(3)]
    first, *others, _ = await asyncio.gather(*waiting, model.release(), return_exceptions=True)

    assert isinstance(first, ModelFailed)
    assert model.rows == 4
    assert [isinstance(other, np.ndarray) for other in others] == [True, True]


async def test_a_truncated_example_is_refused_without_computing_it_again() -> None:
    model, vectors = _SlowModel(), ExampleVectors()
    model.truncates = True
    await model.release()

    for _ in range(2):
        with pytest.raises(ItemRefused, match="too many tokens"):
            await vectors.find(_EXAMPLES, asking(m=model))

    assert model.rows == 2
