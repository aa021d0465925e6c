"""Embeds and ranks texts with encoders that have sparse vectors or token vectors.

Each output of a text is an item. Items of one text ask for the same row, so one run of the graph
answers all that are in progress together.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from msgspec import UNSET
from typing_extensions import override

from sluicegate.backends.algorithms.base import Algorithm
from sluicegate.backends.algorithms.embedding import (
    check_dimensions,
    check_query,
    named_prompt,
    text_of,
)
from sluicegate.backends.algorithms.questions import refuse_instruction
from sluicegate.backends.algorithms.token_pooling import pool_tokens
from sluicegate.backends.errors import ItemRefused
from sluicegate.backends.pipelines.ask import AlgorithmContext
from sluicegate.backends.pipelines.encoder import TextMarks
from sluicegate.backends.pipelines.scores import exact, normalize
from sluicegate.backends.pipelines.token_work import run_token_work
from sluicegate.backends.repository.manifest import EncoderManifest, MultiVectorOutput, SparseOutput
from sluicegate.backends.repository.output_layout import RowOutputs, output_layout
from sluicegate.backends.types import (
    Encoding,
    FloatArray,
    IntArray,
    OutputKind,
    Prompt,
    RowInput,
)
from sluicegate.wire.protocol import EmbedItem, EmbedOutput, EmbedParameters, RerankParameters

# A larger result would not fit into a frame of the protocol.
_MOST_VALUES = 4 * 1024 * 1024
# The work of pooling a vector, and the pairs of vectors whose comparison is the work of one token.
_POOLING_WORK, _PAIRS_PER_TOKEN = 4, 256
# The outputs by which documents are ranked, the first one that a model has.
_RANKING: tuple[EmbedOutput, ...] = ("multi_vector", "dense", "sparse")


class OutputReader:
    """Reads the outputs of an encoder's rows."""

    def __init__(self, *, model: str, manifest: EncoderManifest) -> None:
        self.model = model
        self.layout = output_layout(manifest)
        self.sparse = manifest.sparse or SparseOutput()
        self.vectors = manifest.multi_vector or MultiVectorOutput(dimensions=1)
        self._skipped = np.array(self.sparse.skipped, dtype=np.int32)
        self._unscored = np.array(self.vectors.skipped, dtype=np.int32)
        self._marks = [_marks(self.vectors, is_query=is_query) for is_query in (False, True)]

    async def outputs(
        self, text: RowInput, ask: AlgorithmContext, *, prompt: Prompt | None
    ) -> tuple[Encoding, RowOutputs]:
        """Return the outputs of a text without marks."""
        encoding, row = await ask.row(self.model, text, kind=self.layout.kind, prompt=prompt)
        return encoding, self.layout.divide(row)

    async def dense(
        self, text: RowInput, ask: AlgorithmContext, *, prompt: Prompt | None
    ) -> FloatArray:
        """Return the dense vector of a text, without the other outputs if nobody needs them."""
        layout = self.layout
        alone = layout.kind is OutputKind.JOINED
        _, row = await ask.row(
            self.model,
            text,
            kind=OutputKind.POOLED if alone else layout.kind,
            instead=layout.kind if alone else None,
            prompt=prompt,
        )
        return row.reshape(-1)[: layout.dense]

    async def token_vectors(
        self, text: RowInput, ask: AlgorithmContext, *, is_query: bool, prompt: Prompt | None
    ) -> tuple[IntArray, FloatArray]:
        """Return the ids and the vectors of the tokens that count for late interaction."""
        marks = self._marks[is_query]
        encoding, row = await ask.row(
            self.model, text, kind=self.layout.kind, marks=marks, prompt=prompt
        )
        ids, vectors = encoding.ids, self.layout.divide(row).vectors
        ids, vectors = ids[self.vectors.leading :], vectors[self.vectors.leading :]
        if not is_query and len(self._unscored):
            kept = ~np.isin(ids, self._unscored)
            ids, vectors = ids[kept], vectors[kept]
        return ids, vectors

    def weights(self, encoding: Encoding, outputs: RowOutputs) -> tuple[IntArray, FloatArray]:
        """Return the token ids with a positive weight, in order, and their weights."""
        if self.layout.vocabulary:
            found = np.flatnonzero(outputs.vocabulary > 0).astype(np.int32)
            return found, outputs.vocabulary[found]
        weights, ids = outputs.weights[:, 0], encoding.ids
        kept = (weights > 0) & ~np.isin(ids, self._skipped)
        found, places = np.unique(ids[kept], return_inverse=True)
        largest = np.zeros(len(found), dtype=np.float32)
        np.maximum.at(largest, places, weights[kept])
        return found, largest


def _marks(vectors: MultiVectorOutput, *, is_query: bool) -> TextMarks | None:
    """Return how texts are marked; `None` if their rows are the same as those of other outputs."""
    marks = TextMarks(
        prefix=vectors.query_prefix if is_query else vectors.document_prefix,
        length=vectors.query_length if is_query else vectors.document_length,
        expansion=vectors.expansion if is_query else None,
        attends_to_expansion=vectors.attends_to_expansion,
    )
    return None if marks == TextMarks(attends_to_expansion=marks.attends_to_expansion) else marks


class EmbedOutputs(Algorithm):
    """Returns the output of a text that an item asks for."""

    def __init__(self, reader: OutputReader, *, named_prompts: Mapping[str, Prompt]) -> None:
        self._reader = reader
        self._prompts = named_prompts
        self._wanted: Counter[tuple[str, RowInput]] = Counter()

    @override
    async def run(
        self, item: str | tuple[int, ...] | EmbedItem, parameters: EmbedParameters, ask: Any
    ) -> Any:
        layout = self._reader.layout
        asked = item if isinstance(item, EmbedItem) else EmbedItem(input=item, output="dense")
        check_output(asked.output, layout.outputs)
        text = text_of(asked.input)
        prompt = named_prompt(self._reader.model, self._prompts, parameters)
        if asked.output != "dense":
            with self._needed(ask.scope, text):
                if asked.output == "multi_vector":
                    return await self._vectors(text, asked, parameters, ask, prompt=prompt)
                encoding, outputs = await self._reader.outputs(text, ask, prompt=prompt)
                return await self._sparse(encoding, outputs, asked, ask)
        dimensions = check_dimensions(parameters, layout.dense)
        # Other items of the call begin now, and may ask for other outputs of the text.
        await asyncio.sleep(0)
        if (ask.scope, text) in self._wanted:
            _, outputs = await self._reader.outputs(text, ask, prompt=prompt)
            vector = outputs.dense
        else:
            vector = await self._reader.dense(text, ask, prompt=prompt)
        vector = vector[None, :dimensions]
        return {"embedding": (normalize(vector) if parameters.normalize else vector)[0]}

    @contextmanager
    def _needed(self, scope: str, text: RowInput) -> Iterator[None]:
        """Mark outputs beside the dense vector as needed, in the `with` block."""
        self._wanted[scope, text] += 1
        try:
            yield
        finally:
            self._wanted[scope, text] -= 1
            if not self._wanted[scope, text]:
                del self._wanted[scope, text]

    async def _sparse(
        self, encoding: Encoding, outputs: RowOutputs, asked: EmbedItem, ask: AlgorithmContext
    ) -> Any:
        indices, values = self._reader.weights(encoding, outputs)
        result: dict[str, Any] = {"sparse": {"indices": indices, "values": values}}
        if asked.tokens:
            reader = ask.token_reader(self._reader.model)
            result["sparse_tokens"] = reader.texts(indices.tolist())
        return result

    async def _vectors(
        self,
        text: RowInput,
        asked: EmbedItem,
        parameters: EmbedParameters,
        ask: AlgorithmContext,
        *,
        prompt: Prompt | None,
    ) -> Any:
        if asked.tokens and asked.pool_factor > 1:
            raise ItemRefused(
                "bad_item", "pooled vectors are not those of single tokens; leave out `tokens`"
            )
        dimensions = check_dimensions(parameters, self._reader.layout.vectors)
        ids, vectors = await self._reader.token_vectors(
            text, ask, is_query=asked.is_query, prompt=prompt
        )
        if asked.pool_factor > 1 and not asked.is_query:
            work = _POOLING_WORK * len(vectors)
            vectors = await run_token_work(work, pool_tokens, normalize(vectors), asked.pool_factor)
        vectors = vectors[:, :dimensions]
        if vectors.size > _MOST_VALUES:
            raise ItemRefused(
                "input_too_long",
                f"the text has {len(vectors)} vectors of {dimensions} values; at most "
                f"{_MOST_VALUES} values are returned; shorten it, or set `dimensions` or "
                "`pool_factor`",
            )
        found = normalize(vectors) if parameters.normalize else np.ascontiguousarray(vectors)
        result: dict[str, Any] = {"multi_vector": found}
        if asked.tokens:
            result["multi_vector_tokens"] = ask.token_reader(self._reader.model).texts(ids.tolist())
        return result


class RankByOutputs(Algorithm):
    """Scores a document by the outputs of the query and of the document.

    - `multi_vector`: by late interaction, as in ColBERT: the sum, over the query's vectors, of the
      largest cosine similarity with a vector of the document (MaxSim).
    - `dense`: by the cosine similarity.
    - `sparse`: by the sum, over common tokens, of the product of their weights.

    Without weights, the first of these outputs that the model has decides. With weights, the scores
    are added, as in BGE-M3: there, MaxSim is divided by the number of the query's vectors.
    Outputs come from the row cache, so a document that was ranked or embedded a short while ago is
    not computed again. `own_prompts` are the same as in `Rerank`.
    """

    def __init__(self, reader: OutputReader, *, own_prompts: tuple[Prompt, Prompt] | None) -> None:
        self._reader = reader
        self._prompts = own_prompts or (None, None)
        known = reader.layout.outputs
        self._default = next(name for name in _RANKING if name in known)

    @override
    async def run(self, item: str, parameters: RerankParameters, ask: AlgorithmContext) -> Any:
        refuse_instruction(self._reader.model, parameters)
        check_query(parameters)
        if parameters.weights is UNSET:
            score, _ = await self._score(self._default, parameters.query, item, ask)
            return {"score": exact(score)}
        for output in parameters.weights:
            check_output(output, self._reader.layout.outputs)
        total = 0.0
        for output, weight in sorted(parameters.weights.items()):
            score, vectors = await self._score(output, parameters.query, item, ask)
            total += weight * score / vectors
        return {"score": exact(total)}

    async def _score(
        self, output: EmbedOutput, query: str, document: str, ask: AlgorithmContext
    ) -> tuple[float, int]:
        """Return the score of one output, and the number of the query's vectors."""
        reader, (for_query, for_document) = self._reader, self._prompts
        if output == "multi_vector":
            _, queries = await reader.token_vectors(query, ask, is_query=True, prompt=for_query)
            _, documents = await reader.token_vectors(
                document, ask, is_query=False, prompt=for_document
            )
            work = len(queries) * len(documents) // _PAIRS_PER_TOKEN
            return await run_token_work(work, max_sim, queries, documents), max(1, len(queries))
        (ids, asked), (other_ids, found) = [
            await reader.outputs(text, ask, prompt=prompt)
            for text, prompt in ((query, for_query), (document, for_document))
        ]
        if output == "dense":
            one, other = normalize(np.stack([asked.dense, found.dense]))
            return float(one @ other), 1
        weights = dict(zip(*map(np.ndarray.tolist, reader.weights(ids, asked)), strict=True))
        pairs = zip(*map(np.ndarray.tolist, reader.weights(other_ids, found)), strict=True)
        return math.fsum(weights.get(token, 0.0) * weight for token, weight in pairs), 1


def max_sim(query: FloatArray, document: FloatArray) -> float:
    """Return the sum of each query vector's largest cosine similarity; 0 for an empty document."""
    if not len(document):
        return 0.0
    similarities = normalize(query) @ normalize(document).T
    # The exact sum does not depend on the order in which numpy adds.
    return math.fsum(similarities.max(axis=1).tolist())


def check_output(output: EmbedOutput, known: Sequence[EmbedOutput]) -> None:
    """Raise `ItemRefused` if a model does not have an output."""
    if output not in known:
        names = ", ".join(f"`{name}`" for name in known)
        raise ItemRefused(
            "bad_output", f"the model has no output `{output}`; ask for {names} in `outputs`"
        )
