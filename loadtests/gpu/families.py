"""Builds encoders of two layers, of every family that GPU forms exist for, with seeded weights.

A kernel is chosen by the width of a head and by the form of a graph. Two layers call the same
kernels as twelve, and are built and compared in a fraction of the time.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np

from backends.model_tools.graphs.checkpoint import build_checkpoint
from backends.model_tools.graphs.form import GraphForm
from backends.model_tools.graphs.shapes import BertShape, weight_shapes
from backends.model_tools.graphs.weights import Weights, seeded_weights
from loadtests.gpu.plan import LARGE, SMALL, Options

LAYERS, VOCABULARY, POSITIONS = 2, 1000, 512
POISON = VOCABULARY - 1
"""A token whose vector is not a number: rows that hold it have no answer, the others have theirs"""
_WORDS: Mapping[str, str] = MappingProxyType({"modernbert": "embeddings.tok_embeddings.weight"})
_Shapes = dict[str, tuple[int, ...]]


def hidden_size(options: Options, family: str) -> int:
    """Return how wide the vectors of a family's encoder are."""
    return _size(options, family).hidden


def write_family(options: Options, family: str, form: GraphForm, path: Path) -> None:
    """Write the graph of a family in a form.

    Raises:
        WeightsError: the family has no such form.
    """
    model = build_checkpoint(_config(options, family), _weights(options, family), form=form)
    path.write_bytes(model.SerializeToString())


def _size(options: Options, family: str) -> BertShape:
    """Return the size of a family's encoder: a head has 32 values in the small one, else 64."""
    preset = options.shape(family if family in (SMALL, LARGE) else LARGE)
    return msgspec.structs.replace(
        preset,
        layers=LAYERS,
        vocab=VOCABULARY,
        positions=min(POSITIONS, preset.positions) if options.tiny else POSITIONS,
    )


def _config(options: Options, family: str) -> dict[str, Any]:
    size = _size(options, family)
    common = {
        "num_hidden_layers": size.layers,
        "hidden_size": size.hidden,
        "num_attention_heads": size.heads,
        "intermediate_size": size.intermediate,
        "vocab_size": size.vocab,
        "max_position_embeddings": size.positions,
    }
    own: dict[str, dict[str, Any]] = {
        "modernbert": {
            "architectures": ["ModernBertModel"],
            "model_type": "modernbert",
            "local_attention": 16,
            "global_attn_every_n_layers": 2,
        },
        "deberta-v2": {
            "architectures": ["DebertaV2Model"],
            "model_type": "deberta-v2",
            "relative_attention": True,
            "position_buckets": 16,
            "max_relative_positions": size.positions,
            "pos_att_type": "c2p|p2c",
            "share_att_key": True,
            "norm_rel_ebd": "layer_norm",
            "position_biased_input": False,
            "hidden_act": "gelu",
        },
    }
    bert = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_act": "gelu",
        "type_vocab_size": size.token_types,
        "layer_norm_eps": size.layer_norm_epsilon,
    }
    return common | own.get(family, bert)


@cache
def _weights(options: Options, family: str) -> Weights:
    size = _size(options, family)
    if family in (SMALL, LARGE):
        weights = dict(seeded_weights(size, seed=1))
    else:
        shapes = _modernbert(size) if family == "modernbert" else _deberta(size)
        random = np.random.default_rng(1)
        weights = {
            name: np.float32(name.endswith(("norm.weight", "LayerNorm.weight")))
            + np.float32(0.02) * random.standard_normal(shape, dtype=np.float32)
            for name, shape in shapes.items()
        }
    weights[_WORDS.get(family, "embeddings.word_embeddings.weight")][POISON] = np.nan
    return weights


def _modernbert(size: BertShape) -> _Shapes:
    hidden, wide = size.hidden, size.intermediate
    shapes: _Shapes = {
        "embeddings.tok_embeddings.weight": (size.vocab, hidden),
        "embeddings.norm.weight": (hidden,),
        "final_norm.weight": (hidden,),
    }
    for layer in range(size.layers):
        shapes |= {
            f"layers.{layer}.attn_norm.weight": (hidden,),
            f"layers.{layer}.attn.Wqkv.weight": (3 * hidden, hidden),
            f"layers.{layer}.attn.Wo.weight": (hidden, hidden),
            f"layers.{layer}.mlp_norm.weight": (hidden,),
            f"layers.{layer}.mlp.Wi.weight": (2 * wide, hidden),
            f"layers.{layer}.mlp.Wo.weight": (hidden, wide),
        }
    return shapes


def _deberta(size: BertShape) -> _Shapes:
    """Return BERT's weights with other names of projections, and the relative positions."""
    dropped = ("embeddings.position_embeddings.", "embeddings.token_type_embeddings.")
    shapes: _Shapes = {
        name.replace("self.query", "self.query_proj")
        .replace("self.key", "self.key_proj")
        .replace("self.value", "self.value_proj"): shape
        for name, shape in weight_shapes(size).items()
        if not name.startswith(dropped)
    }
    shapes["encoder.rel_embeddings.weight"] = (32, size.hidden)
    shapes |= {f"encoder.LayerNorm.{part}": (size.hidden,) for part in ("weight", "bias")}
    return shapes
