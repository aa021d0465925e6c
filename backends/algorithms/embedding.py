"""Embeds texts, and scores documents by their embeddings."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from msgspec import UNSET
from typing_extensions import override

from sluicegate.backends.algorithms.base import QueryAlgorithm, WindowedAlgorithm
from sluicegate.backends.algorithms.questions import refuse_instruction, refuse_weights
from sluicegate.backends.errors import ItemRefused
from sluicegate.backends.pipelines.ask import AlgorithmContext
from sluicegate.backends.pipelines.scores import exact, normalize
from sluicegate.backends.pipelines.windows import Windows
from sluicegate.backends.types import FloatArray, Prompt, RowInput, Text, TokenIds
from sluicegate.wire.protocol import EmbedItem, EmbedParameters, RerankParameters


class Embed(QueryAlgorithm):
    """Returns the vector of a text or of token ids; `named_prompts` are the model's prompts."""

    def __init__(
        self,
        *,
        model: str,
        dimensions: int,
        named_prompts: Mapping[str, Prompt] = MappingProxyType({}),
    ) -> None:
        self.model = model
        self.dimensions = dimensions
        self.named_prompts = named_prompts

    @override
    def texts(
        self, item: str | tuple[int, ...] | EmbedItem, parameters: EmbedParameters
    ) -> Sequence[RowInput]:
        self.check_dimensions(parameters)
        return (text_of(dense_input(item)),)

    @override
    def prompts(self, parameters: EmbedParameters) -> Sequence[Prompt] | None:
        prompt = self.prompt(parameters)
        return None if prompt is None else [prompt]

    def prompt(self, parameters: EmbedParameters) -> Prompt | None:
        """Return the named prompt, or `None` for the model's own prompt."""
        return named_prompt(self.model, self.named_prompts, parameters)

    @override
    def answer(self, vectors: FloatArray, parameters: EmbedParameters) -> Any:
        dimensions = self.check_dimensions(parameters)
        return {"embedding": shorten(vectors, dimensions, parameters)[0]}

    def check_dimensions(self, parameters: EmbedParameters) -> int:
        """Return the requested number of dimensions; raise `ItemRefused` if it is invalid."""
        return check_dimensions(parameters, self.dimensions)


class Rerank(QueryAlgorithm, WindowedAlgorithm):
    """Scores a document for a query by the cosine similarity of their embeddings.

    `own_prompts` are the prompts before the query and before the document. `None` means the model's
    own prompt for both.
    """

    version = 2

    def __init__(self, *, model: str, own_prompts: tuple[Prompt, Prompt] | None = None) -> None:
        self.model = model
        self._prompts = own_prompts

    @override
    def texts(self, item: str, parameters: RerankParameters) -> Sequence[Text]:
        self._check(parameters)
        return parameters.query, item

    @override
    def prompts(self, parameters: RerankParameters) -> Sequence[Prompt] | None:
        return self._prompts

    @override
    def answer(self, vectors: FloatArray, parameters: RerankParameters) -> Any:
        query, document = normalize(vectors)
        return {"score": exact(query @ document)}

    @override
    async def window_scores(
        self, item: str, parameters: RerankParameters, ask: AlgorithmContext, windows: Windows
    ) -> FloatArray:
        self._check(parameters)
        for_query, for_document = self._prompts or (None, None)
        # An empty string is also a prompt, which replaces the model's own prompt.
        own = None if for_query is None else [for_query]
        queries = await ask(self.model, [parameters.query], own)
        documents = await ask.windows(self.model, item, windows, prompt=for_document)
        scores: FloatArray = normalize(documents) @ normalize(queries).T
        return scores

    def _check(self, parameters: RerankParameters) -> None:
        refuse_instruction(self.model, parameters)
        refuse_weights(self.model, parameters)
        check_query(parameters)


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


def named_prompt(
    model: str, known: Mapping[str, Prompt], parameters: EmbedParameters
) -> Prompt | None:
    """Return the named prompt of `known`, or `None` for the model's own prompt.

    Raises:
        ItemRefused: the model does not have the prompt.
    """
    name = parameters.prompt_name
    if name is UNSET:
        return None
    if name not in known:
        names = ", ".join(f"`{each}`" for each in known)
        raise ItemRefused(
            "bad_prompt",
            f"`{model}` has no prompt `{name}`; "
            + (f"name one of {names}" if names else "leave out `prompt_name`"),
        )
    return known[name]


def check_query(parameters: RerankParameters) -> None:
    """Raise `ItemRefused` if the query is empty."""
    if not parameters.query.strip():
        raise ItemRefused("empty_input", "`query` is empty; send a text to compare documents with")


def shorten(vectors: FloatArray, dimensions: int, parameters: EmbedParameters) -> FloatArray:
    """Return the first `dimensions` values of each vector, normalized if `parameters` say so."""
    shortened = vectors[:, :dimensions]
    return normalize(shortened) if parameters.normalize else shortened
