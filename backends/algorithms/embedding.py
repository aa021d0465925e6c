"""Embeds texts, and scores documents by their embeddings."""

from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from sluicegate.backends.algorithms.base import QueryAlgorithm, WindowedAlgorithm
from sluicegate.backends.errors import ItemRefused
from sluicegate.backends.pipelines.ask import AlgorithmContext
from sluicegate.backends.pipelines.scores import exact, normalize
from sluicegate.backends.pipelines.windows import Windows
from sluicegate.backends.types import FloatArray, RowInput, Text, TokenIds
from sluicegate.wire.protocol import EmbedParameters, RerankParameters


class Embed(QueryAlgorithm):
    """Returns the vector of a text or of token ids."""

    def __init__(self, *, model: str, dimensions: int) -> None:
        self.model = model
        self.dimensions = dimensions

    @override
    def texts(self, item: str | tuple[int, ...], parameters: EmbedParameters) -> Sequence[RowInput]:
        self.check_dimensions(parameters)
        return (item if isinstance(item, str) else TokenIds(item),)

    @override
    def answer(self, vectors: FloatArray, parameters: EmbedParameters) -> Any:
        dimensions = self.check_dimensions(parameters)
        return {"embedding": shorten(vectors, dimensions, parameters)[0]}

    def check_dimensions(self, parameters: EmbedParameters) -> int:
        """Return the requested number of dimensions; raise `ItemRefused` if it is invalid."""
        dimensions = self.dimensions if parameters.dimensions is None else parameters.dimensions
        if not 1 <= dimensions <= self.dimensions:
            raise ItemRefused(
                "bad_dimensions", f"`dimensions` must be between 1 and {self.dimensions}"
            )
        return dimensions


class Rerank(QueryAlgorithm, WindowedAlgorithm):
    """Scores a document for a query by the cosine similarity of their embeddings.

    `prompts` are the prompts before the query and before the document. `None` means the model's
    own prompt for both.
    """

    version = 2

    def __init__(self, *, model: str, prompts: tuple[str, str] | None = None) -> None:
        self.model = model
        self.prompts = prompts

    @override
    def texts(self, item: str, parameters: RerankParameters) -> Sequence[Text]:
        _check_query(parameters)
        return parameters.query, item

    @override
    def answer(self, vectors: FloatArray, parameters: RerankParameters) -> Any:
        query, document = normalize(vectors)
        return {"score": exact(query @ document)}

    @override
    async def window_scores(
        self, item: str, parameters: RerankParameters, ask: AlgorithmContext, windows: Windows
    ) -> FloatArray:
        _check_query(parameters)
        for_query, for_document = self.prompts or (None, None)
        # An empty string is also a prompt, which replaces the model's own prompt.
        own = None if for_query is None else [for_query]
        queries = await ask(self.model, [parameters.query], own)
        documents = await ask.windows(self.model, item, windows, prompt=for_document)
        scores: FloatArray = normalize(documents) @ normalize(queries).T
        return scores


def _check_query(parameters: RerankParameters) -> None:
    if not parameters.query.strip():
        raise ItemRefused("empty_input", "`query` is empty; send a text to compare documents with")


def shorten(vectors: FloatArray, dimensions: int, parameters: EmbedParameters) -> FloatArray:
    """Return the first `dimensions` values of each vector, normalized if `parameters` say so."""
    shortened = vectors[:, :dimensions]
    return normalize(shortened) if parameters.normalize else shortened
