"""Caches the vectors of the examples that a guard's detectors compare texts with."""

import asyncio

from sluicegate.backends.batching.vector_cache import VectorCache
from sluicegate.backends.errors import ItemRefused
from sluicegate.backends.pipelines.ask import AlgorithmContext
from sluicegate.backends.pipelines.scores import normalize
from sluicegate.backends.types import FloatArray

# The name of a model, and the examples.
Examples = tuple[str, tuple[str, ...]]
# Room for 80 sets of 256 examples with 384 dimensions.
_MOST_BYTES = 32 * 1024 * 1024
_MOST_REFUSED = 16
# Bytes of a Python object per example, without its text.
_EXAMPLE_BYTES = 100


class ExampleVectors:
    """Computes the unit vectors of examples when an item needs them, and caches them.

    Examples are part of the operator's configuration, so all tenants share their vectors.
    """

    def __init__(self) -> None:
        self._cache = VectorCache[Examples](max_bytes=_MOST_BYTES, key_bytes=_key_bytes)
        # The code and the detail of each refusal, the oldest first.
        self._refused: dict[Examples, tuple[str, str]] = {}
        self._computing = asyncio.Lock()

    async def find(self, examples: Examples, ask: AlgorithmContext) -> FloatArray:
        """Return one unit vector per example. The rows are not charged to the item.

        Raises:
            BackendError: an example is refused, or is too long for the model, or a row failed.
        """
        found = self._known(examples)
        if found is not None:
            return found
        # After a start, many items need the same examples.
        async with self._computing:
            found = self._known(examples)
            if found is None:
                try:
                    found = await _compute(examples, ask.in_background())
                except ItemRefused as error:
                    if len(self._refused) >= _MOST_REFUSED:
                        del self._refused[next(iter(self._refused))]
                    self._refused[examples] = error.code, str(error)
                    raise
                self._cache.put(examples, found)
        return found

    def _known(self, examples: Examples) -> FloatArray | None:
        if refused := self._refused.get(examples):
            raise ItemRefused(*refused)
        return self._cache.get(examples)


async def _compute(examples: Examples, ask: AlgorithmContext) -> FloatArray:
    model, texts = examples
    found = normalize(await ask(model, texts))
    if ask.is_truncated:
        raise ItemRefused("input_too_long", "it has too many tokens")
    return found


def _key_bytes(examples: Examples) -> int:
    _, texts = examples
    # A character takes at most 4 bytes.
    return 4 * sum(map(len, texts)) + _EXAMPLE_BYTES * len(texts)
