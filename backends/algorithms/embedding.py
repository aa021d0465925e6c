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
from sluicegate.wire.protocol import EmbedItem, EmbedParameters, RerankParameters


class Embed(QueryAlgorithm):
    """Returns the vector of a text or of token ids."""

    def __init__(self, *, model: str, dimensions: int) -> None:
        self.model = model
        self.dimensions = dimensions

    @override
    def texts(
        self, item: str | tuple[int, ...] | EmbedItem, parameters: EmbedParameters
    ) -> Sequence[RowInput]:
        self.check_dimensions(parameters)
        return (text_of(dense_input(item)),)

    @override
    def answer(self, vectors: FloatArray, parameters: EmbedParameters) -> Any:
        dimensions = self.check_dimensions(parameters)
        return {"embedding": shorten(vectors, dimensions, parameters)[0]}

    def check_dimensions(self, parameters: EmbedParameters) -> int:
        """Return the requested number of dimensions; raise `ItemRefused` if it is invalid."""
        return check_dimensions(parameters, self.dimensions)


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
        check_query(parameters)
        return parameters.query, item

    @override
    def answer(self, vectors: FloatArray, parameters: RerankParameters) -> Any:
        query, document = normalize(vectors)
        return {"score": exact(query @ document)}

    @override
    async def window_scores(
        self, item: str, parameters: RerankParameters, ask: AlgorithmContext, windows: Windows
    ) -> FloatArray:
        check_query(parameters)
        for_query, for_document = self.prompts or (None, None)
        # An empty string is also a prompt, which replaces the model's own prompt.
        own = None if for_query is None else [for_query]
        queries = await ask(self.model, [parameters.query], own)
        documents = await ask.windows(self.model, item, windows, prompt=for_document)
        scores: FloatArray = normalize(documents) @ normalize(queries).T
        return scores


def text_of(text: str | tuple[int, ...]) -> RowInput:
    """Return the input of a tokenizer for a text or its token ids."""
    return text if isinstance(text, str) else TokenIds(text)


def dense_input(item: str | tuple[int, ...] | EmbedItem) -> str | tuple[int, ...]:
    """Return the text or token ids of an item; raise `ItemRefused` if it wants another output."""
    if not isinstance(item, EmbedItem):
        return item
    if item.output != "dense":
        raise ItemRefused(
            "bad_output", f"the model has no output `{item.output}`; ask for `dense` in `outputs`"
        )
    return item.input


def check_dimensions(parameters: EmbedParameters, most: int) -> int:
    """Return the requested number of dimensions; raise `ItemRefused` if it is invalid."""
    dimensions = most if parameters.dimensions is None else parameters.dimensions
    if not 1 <= dimensions <= most:
        raise ItemRefused("bad_dimensions", f"`dimensions` must be between 1 and {most}")
    return dimensions


def check_query(parameters: RerankParameters) -> None:
    """Raise `ItemRefused` if the query is empty, or outputs are weighed that the model lacks."""
    check_unweighted(parameters)
    if not parameters.query.strip():
        raise ItemRefused("empty_input", "`query` is empty; send a text to compare documents with")


def check_unweighted(parameters: RerankParameters) -> None:
    """Raise `ItemRefused` if outputs are weighed: the model ranks by one score."""
    if parameters.weights is not None:
        raise ItemRefused(
            "bad_output",
            "the model ranks by one score; leave out `weights`, or use a model with "
            "several outputs",
        )


def shorten(vectors: FloatArray, dimensions: int, parameters: EmbedParameters) -> FloatArray:
    """Return the first `dimensions` values of each vector, normalized if `parameters` say so."""
    shortened = vectors[:, :dimensions]
    return normalize(shortened) if parameters.normalize else shortened
