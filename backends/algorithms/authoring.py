"""Defines what `sluicegate.algorithms` gives to model owners: `Ask` and `Refused`."""

from collections.abc import Sequence
from typing import Any, Protocol

from sluicegate.backends.errors import ItemRefused
from sluicegate.backends.types import FloatArray, Text


class Ask(Protocol):
    """Calls the models that `model.yaml` lists under `uses`, on behalf of one item.

    Texts of this item share batches with texts of other callers. Outputs are cached. Use
    `asyncio.gather` to call several models concurrently. Raises `BackendError` when a model fails
    or refuses the input.
    """

    async def __call__(self, model: str, texts: Sequence[Text]) -> FloatArray:
        """Return the raw outputs of `model`, one row per text: its logits or its vector."""
        ...

    async def answer(
        self, model: str, item: Any, *, task: str | None = None, **parameters: Any
    ) -> Any:
        """Return the result of `model` for an item, in the form that the API gives.

        `task` defaults to the model's first task.
        """
        ...


class Refused(ItemRefused):
    """Rejects an item. The caller sees `detail`, which must not contain input."""

    def __init__(self, detail: str) -> None:
        super().__init__("refused_by_algorithm", detail)
