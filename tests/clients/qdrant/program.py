"""Puts vectors of all kinds into Qdrant, and finds the neighbours that the libraries' vectors have.

Qdrant runs in this process. LangChain, LlamaIndex and Haystack put sparse vectors into it, too.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from haystack import Document
from haystack.dataclasses import SparseEmbedding
from haystack_integrations.components.retrievers.qdrant import QdrantSparseEmbeddingRetriever
from haystack_integrations.document_stores.qdrant import QdrantDocumentStore
from langchain_qdrant import QdrantVectorStore, RetrievalMode, SparseEmbeddings, SparseVector
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores.types import VectorStoreQuery, VectorStoreQueryMode
from llama_index.vector_stores.qdrant import QdrantVectorStore as LlamaQdrant
from qdrant_client import QdrantClient, models

from tests.clients.checks import Client, Row, Target, run_checks

_NEAREST = 5
_TIE = 1e-4
_KINDS = ("embedding", "sparse", "multi_vector")
Vectors = Mapping[str, Sequence[Any]]
"""For each kind, a vector of each text."""
Found = Sequence[tuple[str, float]]
"""Texts with their scores, the best first."""


def reference(target: Target) -> tuple[list[str], Vectors]:
    """Return texts, and the vectors that the libraries have recorded for them.

    Texts without a weight are left out: nothing is near an empty vector.
    """
    recorded = json.loads(Path(target.vectors_answers).read_bytes())
    scores = recorded["scores"]
    columns = recorded["texts"], scores["embedding"], scores["sparse"], scores["document"]
    found = [each for each in zip(*columns, strict=True) if each[2]]
    texts, dense, sparse, tokens = map(list, zip(*found, strict=True))
    pairs = [zip(*each, strict=True) for each in sparse]
    vectors = [models.SparseVector(indices=list(i), values=list(v)) for i, v in pairs]
    return texts, {"embedding": dense, "sparse": vectors, "multi_vector": tokens}


def served(target: Target, texts: Sequence[str]) -> Vectors:
    """Return the vectors of a running system."""
    body = {"model": target.vectors_model, "input": texts}
    outputs = {"outputs": ["dense", "sparse", "multi_vector"]}
    found = target.native("/v1/embed", body | outputs)["results"]
    sparse = [models.SparseVector(**each["sparse"]) for each in found]
    return {
        "embedding": [each["embedding"] for each in found],
        "sparse": sparse,
        "multi_vector": [each["multi_vector"] for each in found],
    }


def filled(vectors: Vectors) -> QdrantClient:
    """Return a store of vectors; a point's number is that of its text."""
    client = QdrantClient(":memory:")
    width, token_width = len(vectors["embedding"][0]), len(vectors["multi_vector"][0][0])
    best = models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM)
    client.create_collection(
        "texts",
        vectors_config={
            "embedding": models.VectorParams(size=width, distance=models.Distance.COSINE),
            "multi_vector": models.VectorParams(
                size=token_width, distance=models.Distance.COSINE, multivector_config=best
            ),
        },
        sparse_vectors_config={"sparse": models.SparseVectorParams()},
    )
    points = [
        models.PointStruct(id=number, vector=dict(zip(_KINDS, each, strict=True)))
        for number, each in enumerate(zip(*(vectors[kind] for kind in _KINDS), strict=True))
    ]
    client.upsert("texts", points)
    return client


def neighbours(client: QdrantClient, kind: str, vector: Any, limit: int) -> list[tuple[int, float]]:
    found = client.query_points("texts", query=vector, using=kind, limit=limit).points
    return [(int(str(each.id)), each.score) for each in found]


def the_three_kinds_have_the_neighbours_of_the_librarys_vectors(target: Target) -> None:
    texts, expected = reference(target)
    ours = served(target, texts)
    one, other = filled(ours), filled(expected)
    for kind in _KINDS:
        for mine, theirs in zip(ours[kind], expected[kind], strict=True):
            found = neighbours(one, kind, mine, _NEAREST)
            right = neighbours(other, kind, theirs, len(texts))
            assert_same(found, right)


def assert_same(found: Sequence[tuple[Any, float]], right: Sequence[tuple[Any, float]]) -> None:
    """Fail unless the found are the first of `right`, but for the order of equal scores."""
    scores = dict(right)
    assert found
    for (name, score), (_, expected) in zip(found, right, strict=False):
        size = max(1.0, abs(expected))
        assert abs(scores[name] - expected) <= _TIE * size, (name, scores[name], expected)
        assert abs(score - expected) <= _TIE * size, (score, expected)


def sparse_neighbours(target: Target, found: Callable[[str], Found]) -> None:
    """Compare what a framework finds for every text with a store of the libraries' vectors."""
    texts, expected = reference(target)
    client = filled(expected)
    for text, vector in zip(texts, expected["sparse"], strict=True):
        right = neighbours(client, "sparse", vector, len(texts))
        assert_same(found(text), [(texts[number], score) for number, score in right])


class Sparse(SparseEmbeddings):  # type: ignore[misc]  # without types here
    """Lets LangChain ask a running system for sparse vectors."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def embed_documents(self, texts: list[str]) -> list[SparseVector]:
        found = served(self._target, texts)["sparse"]
        return [SparseVector(indices=each.indices, values=each.values) for each in found]

    def embed_query(self, text: str) -> SparseVector:
        return self.embed_documents([text])[0]


def langchain_finds_the_same_by_sparse_vectors(target: Target) -> None:
    texts, _ = reference(target)
    client = QdrantClient(":memory:")
    client.create_collection(
        "texts", vectors_config={}, sparse_vectors_config={"own": models.SparseVectorParams()}
    )
    store = QdrantVectorStore(
        client=client,
        collection_name="texts",
        sparse_embedding=Sparse(target),
        sparse_vector_name="own",
        retrieval_mode=RetrievalMode.SPARSE,
    )
    store.add_texts(texts)

    def find(text: str) -> Found:
        found = store.similarity_search_with_score(text, k=_NEAREST)
        return [(document.page_content, score) for document, score in found]

    sparse_neighbours(target, find)


def llama_index_finds_the_same_by_sparse_vectors(target: Target) -> None:
    texts, _ = reference(target)

    def ask(asked: list[str]) -> tuple[list[list[int]], list[list[float]]]:
        found = served(target, asked)["sparse"]
        return [each.indices for each in found], [each.values for each in found]

    store = LlamaQdrant(
        collection_name="texts",
        client=QdrantClient(":memory:"),
        enable_hybrid=True,
        sparse_doc_fn=ask,
        sparse_query_fn=ask,
    )
    vectors = served(target, texts)["embedding"]
    both = zip(texts, vectors, strict=True)
    store.add([TextNode(text=text, embedding=vector) for text, vector in both])

    def find(text: str) -> Found:
        found = store.query(
            VectorStoreQuery(
                query_str=text,
                query_embedding=vectors[texts.index(text)],
                mode=VectorStoreQueryMode.SPARSE,
                sparse_top_k=_NEAREST,
            )
        )
        given = zip(found.nodes, found.similarities, strict=True)
        return [(node.get_content(), score) for node, score in given]

    sparse_neighbours(target, find)


def haystack_finds_the_same_by_sparse_vectors(target: Target) -> None:
    texts, _ = reference(target)
    vectors = served(target, texts)
    given = [
        SparseEmbedding(indices=each.indices, values=each.values) for each in vectors["sparse"]
    ]
    store = QdrantDocumentStore(
        ":memory:", embedding_dim=len(vectors["embedding"][0]), use_sparse_embeddings=True
    )
    store.write_documents(
        [
            Document(content=text, embedding=dense, sparse_embedding=sparse)
            for text, dense, sparse in zip(texts, vectors["embedding"], given, strict=True)
        ]
    )
    retriever = QdrantSparseEmbeddingRetriever(document_store=store, top_k=_NEAREST)

    def find(text: str) -> Found:
        asked = given[texts.index(text)]
        found = retriever.run(query_sparse_embedding=asked)["documents"]
        return [(document.content, document.score) for document in found]

    sparse_neighbours(target, find)


def _store(name: str, *checks: Callable[[Target], object]) -> Client:
    # Stores take vectors of whichever client has asked for them: the other rows are its own.
    return Client(name=name, distribution=name, rows={Row.RESULT: checks}, required=(Row.RESULT,))


if __name__ == "__main__":
    run_checks(
        _store("qdrant-client", the_three_kinds_have_the_neighbours_of_the_librarys_vectors),
        _store("langchain-qdrant", langchain_finds_the_same_by_sparse_vectors),
        _store("llama-index-vector-stores-qdrant", llama_index_finds_the_same_by_sparse_vectors),
        _store("qdrant-haystack", haystack_finds_the_same_by_sparse_vectors),
    )
