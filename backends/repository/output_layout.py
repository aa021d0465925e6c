"""Divides a row's output into its dense vector, sparse weights and token vectors."""

import msgspec

from sluicegate.backends.repository.manifest import EncoderManifest
from sluicegate.backends.types import FloatArray, JoinedWidth, OutputKind
from sluicegate.wire.protocol import EmbedOutput


class RowOutputs(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Holds the outputs of a row; an output that the model lacks is empty.

    `vocabulary` has a weight for each token of the vocabulary, `weights` one for each token of the
    row, and `vectors` a vector for each token of the row.
    """

    dense: FloatArray
    vocabulary: FloatArray
    weights: FloatArray
    vectors: FloatArray


class OutputLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the widths of the outputs, in the order in which a joined output has them.

    `dense` and `vocabulary` are the widths of vectors of the row, `vectors` and `weights` those of
    each token. `kind` is the graph's output that has all of them.
    """

    kind: OutputKind
    dense: int = 0
    vocabulary: int = 0
    vectors: int = 0
    weights: int = 0

    @property
    def joined(self) -> JoinedWidth:
        """The size of a joined output."""
        return JoinedWidth(self.dense + self.vocabulary, self.vectors + self.weights)

    @property
    def outputs(self) -> list[EmbedOutput]:
        """The outputs of the task `embed`."""
        found: dict[EmbedOutput, int] = {
            "dense": self.dense,
            "sparse": self.vocabulary or self.weights,
            "multi_vector": self.vectors,
        }
        return [name for name, width in found.items() if width]

    def divide(self, row: FloatArray) -> RowOutputs:
        """Return the outputs of a row, as parts of `row`."""
        fixed, each = self.joined
        line = row.reshape(-1)
        tokens = line[fixed:].reshape(-1, each) if each else line[:0].reshape(0, 1)
        return RowOutputs(
            dense=line[: self.dense],
            vocabulary=line[self.dense : fixed],
            weights=tokens[:, self.vectors :],
            vectors=tokens[:, : self.vectors],
        )


def output_layout(manifest: EncoderManifest) -> OutputLayout:
    """Return the layout of an encoder's outputs."""
    sparse, vectors = manifest.sparse, manifest.multi_vector
    vocabulary = (sparse.vocabulary or 0) if sparse is not None else 0
    if manifest.outputs.joined is not None:
        kind = OutputKind.JOINED
    else:
        kind = OutputKind.TOKENS if not (manifest.is_dense or vocabulary) else OutputKind.POOLED
    return OutputLayout(
        kind=kind,
        dense=manifest.dimensions if manifest.is_dense else 0,
        vocabulary=vocabulary,
        vectors=vectors.dimensions if vectors is not None else 0,
        weights=1 if sparse is not None and not vocabulary else 0,
    )
