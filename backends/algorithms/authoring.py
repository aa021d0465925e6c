"""What a model owner's algorithm may use: `Ask` to ask models, `Refused` to turn an item down.

See docs/algorithms.md, "Your own algorithm".
"""

from collections.abc import Sequence
from typing import Any, Protocol

from backends.errors import ItemRefused
from backends.types import FloatArray, Text


class Ask(Protocol):
    """Asks the models that the `model.yaml` lists under `uses`, on behalf of one item.

    Rows join the batches of everyone else's; what was asked before is known. Several questions go
    at once with `asyncio.gather`. What a model refuses or cannot do is raised as `BackendError`.
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
    """The algorithm will not answer this item; the caller is told why. Hold no input in it."""

    def __init__(self, detail: str) -> None:
        super().__init__("refused_by_algorithm", detail)
