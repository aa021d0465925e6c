"""Defines what a model owner's algorithm may use: `Ask` asks models, `Refused` rejects an item.

See docs/algorithms.md, "Your own algorithm".
"""

from collections.abc import Sequence
from typing import Any, Protocol

from backends.errors import ItemRefused
from backends.types import FloatArray, Text


class Ask(Protocol):
    """Asks the models that the `model.yaml` lists under `uses`, on behalf of one item.

    Rows join the batches of other callers; rows of earlier questions are cached. Run several
    questions at once with `asyncio.gather`. Raises `BackendError` where a model fails or refuses.
    """

    async def __call__(self, model: str, texts: Sequence[Text]) -> FloatArray:
        """Return the raw outputs of `model`, a line per text: logits, or a vector."""
        ...

    async def answer(
        self, model: str, item: Any, *, task: str | None = None, **parameters: Any
    ) -> Any:
        """Return what `model` answers over the API: of `task`, or else of its first task."""
        ...


class Refused(ItemRefused):
    """Rejects this item; the caller gets the reason, which must hold no input."""

    def __init__(self, detail: str) -> None:
        super().__init__("refused_by_algorithm", detail)
