"""What an algorithm holds while it answers an item: a way to ask models."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import orjson

from backends.batching.shared import Caller
from backends.types import FloatArray, Piece, Text


class Pipeline(Protocol):
    """A model that makes vectors of texts: embeddings or logits."""

    async def vectors(self, texts: Sequence[Text], caller: Caller) -> FloatArray:
        """Return one vector per text, or raise `BackendError`."""
        ...

    async def token_vectors(self, text: str, caller: Caller) -> tuple[list[Piece], FloatArray]:
        """Return the place of every token and one vector each, or raise `BackendError`."""
        ...


class Ask:
    """Asks models on behalf of one item; every question joins the batches of everyone else's."""

    def __init__(self, pipelines: Mapping[str, Pipeline], caller: Caller) -> None:
        self._pipelines = pipelines
        self._caller = caller

    async def __call__(self, model: str, texts: Sequence[Text]) -> FloatArray:
        """Return `model`'s raw outputs, one line per text.

        Raises:
            BackendError: a text is refused or a row failed.
        """
        return await self._pipelines[model].vectors(texts, self._caller)

    async def tokens(self, model: str, text: str) -> tuple[list[Piece], FloatArray]:
        """Return the place of every token of `text` and the raw outputs of `model` for it."""
        return await self._pipelines[model].token_vectors(text, self._caller)


def encode_result(result: Any) -> bytes:
    """Return a result as JSON; arrays of floats are written in their shortest form."""
    return orjson.dumps(result, option=orjson.OPT_SERIALIZE_NUMPY)
