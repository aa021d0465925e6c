"""Describes the size of a BERT encoder, and the names and shapes of its weights."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Self

import msgspec

# Names of weights that only some families have.
PROJECTION = "embeddings_project"
RELATIVE_BIAS = "encoder.relative_attention_bias.weight"
# ONNX Runtime's operators that add a bias and apply the activation, by `hidden_act`. `FastGelu` is
# the tanh approximation.
ACTIVATIONS: Mapping[str, str] = MappingProxyType(
    {
        "gelu": "BiasGelu",
        "gelu_new": "FastGelu",
        "gelu_fast": "FastGelu",
        "gelu_pytorch_tanh": "FastGelu",
    }
)


class BertShape(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the size of a BERT encoder. The defaults are the values of all published BERT models.

    If `embedding` is set, embeddings have this width and are projected to `hidden`. `buckets` is
    the number of buckets of relative positions, each with a bias for the attention scores. In some
    families, positions count only real tokens. Then `padding` is the id of the padding token, and
    padding has position 0.
    """

    layers: int
    hidden: int
    heads: int
    intermediate: int
    vocab: int = 30522
    positions: int = 512
    token_types: int = 2
    layer_norm_epsilon: float = 1e-12
    activation: str = "gelu"
    embedding: int | None = None
    buckets: int = 0
    padding: int | None = None

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return the shape that the `config.json` of a `BertModel` describes.

        Raises:
            ValueError: the configuration has an option that the graph does not support.
        """
        known = {"hidden_act": tuple(ACTIVATIONS), "position_embedding_type": ("absolute",)}
        for field, names in known.items():
            if config.get(field, names[0]) not in names:
                wanted = " or ".join(f"`{name}`" for name in names)
                raise ValueError(f"`{field}` must be {wanted}, not `{config[field]}`")
        return cls(
            layers=config["num_hidden_layers"],
            hidden=config["hidden_size"],
            heads=config["num_attention_heads"],
            intermediate=config["intermediate_size"],
            vocab=config["vocab_size"],
            positions=config["max_position_embeddings"],
            token_types=config["type_vocab_size"],
            layer_norm_epsilon=config["layer_norm_eps"],
            activation=config.get("hidden_act", "gelu"),
        )


def weight_shapes(shape: BertShape) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight; keys are the names in Hugging Face's `BertModel`."""
    hidden, wide = shape.hidden, shape.intermediate
    embedding = shape.embedding or hidden
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (shape.vocab, embedding),
        "embeddings.position_embeddings.weight": (shape.positions, embedding),
        "embeddings.token_type_embeddings.weight": (shape.token_types, embedding),
    }
    norms = {"embeddings.LayerNorm": embedding}
    linears: dict[str, tuple[int, int]] = {}
    if shape.embedding is not None:
        linears[PROJECTION] = (hidden, embedding)
    if shape.buckets:
        shapes[RELATIVE_BIAS] = (shape.buckets, shape.heads)
    for layer in range(shape.layers):
        prefix = f"encoder.layer.{layer}"
        for name in ("query", "key", "value"):
            linears[f"{prefix}.attention.self.{name}"] = (hidden, hidden)
        linears[f"{prefix}.attention.output.dense"] = (hidden, hidden)
        linears[f"{prefix}.intermediate.dense"] = (wide, hidden)
        linears[f"{prefix}.output.dense"] = (hidden, wide)
        norms |= {
            f"{prefix}.attention.output.LayerNorm": hidden,
            f"{prefix}.output.LayerNorm": hidden,
        }
    for name, (rows, columns) in linears.items():
        shapes |= {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}
    for name, width in norms.items():
        shapes |= {f"{name}.weight": (width,), f"{name}.bias": (width,)}
    return shapes
