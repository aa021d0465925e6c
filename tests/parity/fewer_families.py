"""Describes the small checkpoints of those families that fewer texts are asked of."""

from typing import Any

from sluicegate.backends.model_tools.graphs.shapes import BertShape, weight_shapes

LAYERS, HIDDEN, HEADS, INTERMEDIATE, VOCABULARY = 2, 32, 4, 64, 800
_EMBEDDING, _BUCKETS, _NEAR = 24, 32, 16
_MPNET_NAMES = (
    (".attention.self.query.", ".attention.attn.q."),
    (".attention.self.key.", ".attention.attn.k."),
    (".attention.self.value.", ".attention.attn.v."),
    (".attention.output.dense.", ".attention.attn.o."),
    (".attention.output.LayerNorm.", ".attention.LayerNorm."),
)
Shapes = dict[str, tuple[int, ...]]


def config(family: str, purpose: str, positions: int) -> dict[str, Any]:
    """Return the sizes of a family's checkpoint, by the names of its `config.json`."""
    sizes = {
        "model_type": family,
        "vocab_size": VOCABULARY,
        "pad_token_id": 0,
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": INTERMEDIATE,
        "max_position_embeddings": positions,
    }
    if family == "modernbert":
        # As published: names that newer releases of transformers translate.
        return sizes | {
            "hidden_activation": "gelu",
            "local_attention": _NEAR,
            "global_attn_every_n_layers": 3,
            "global_rope_theta": 160000.0,
            "local_rope_theta": 10000.0,
            "norm_eps": 1e-5,
            "norm_bias": False,
            "classifier_pooling": "mean" if purpose == "choice" else "cls",
            # Those of a vocabulary of 50,000 otherwise.
            "bos_token_id": 2,
            "eos_token_id": 3,
            "cls_token_id": 2,
            "sep_token_id": 3,
        }
    sizes |= {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "type_vocab_size": 2}
    if family == "xlm-roberta":
        # As of RoBERTa, and of MPNet below.
        places = {"pad_token_id": 1, "max_position_embeddings": positions + 2}
        return sizes | places | {"type_vocab_size": 1, "layer_norm_eps": 1e-5}
    if family == "mpnet":
        del sizes["type_vocab_size"]
        # Its padding is token 1, and its positions begin after that.
        return sizes | {
            "pad_token_id": 1,
            "max_position_embeddings": positions + 2,
            "relative_attention_num_buckets": _BUCKETS,
        }
    sizes["embedding_size"] = _EMBEDDING
    return sizes | ({"hidden_act": "gelu_new"} if family == "albert" else {})


def encoder_shapes(family: str, purpose: str, positions: int) -> Shapes:
    """Return the shape of every weight of a family's encoder, with the pooler of a purpose."""
    if family == "albert":
        pooler = linear("pooler", HIDDEN, HIDDEN) if purpose not in {"tokens", "answer"} else {}
        return _albert(positions) | pooler
    if family == "modernbert":
        return _modernbert()
    shape = BertShape(
        layers=LAYERS,
        hidden=HIDDEN,
        heads=HEADS,
        intermediate=INTERMEDIATE,
        vocab=VOCABULARY,
        positions=positions + (2 if family in {"mpnet", "xlm-roberta"} else 0),
        token_types=1 if family == "xlm-roberta" else 2,
        embedding=_EMBEDDING if family == "electra" else None,
        buckets=_BUCKETS if family == "mpnet" else 0,
    )
    shapes = weight_shapes(shape)
    if family == "electra":
        return shapes
    if purpose in {"choice", "embed"}:
        shapes |= linear("pooler.dense", HIDDEN, HIDDEN)
    if family == "xlm-roberta":
        return shapes
    return {_mpnet_name(n): size for n, size in shapes.items() if "token_type" not in n}


def head_shapes(family: str, purpose: str, labels: int) -> Shapes:
    """Return the shapes of the weights of a family's head."""
    classifier = linear("classifier", labels, HIDDEN)
    if family == "modernbert":
        shapes: Shapes = {"head.dense.weight": (HIDDEN, HIDDEN), "head.norm.weight": (HIDDEN,)}
        return shapes | classifier
    if purpose == "answer":
        return linear("qa_outputs", labels, HIDDEN)
    if family in {"mpnet", "electra", "xlm-roberta"} and purpose == "text":
        dense = linear("classifier.dense", HIDDEN, HIDDEN)
        return dense | linear("classifier.out_proj", labels, HIDDEN)
    if family == "electra" and purpose == "choice":
        return linear("sequence_summary.summary", HIDDEN, HIDDEN) | classifier
    return classifier


def linear(name: str, rows: int, columns: int) -> Shapes:
    """Return the shapes of a dense layer."""
    return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}


def _mpnet_name(name: str) -> str:
    for bert, mpnet in _MPNET_NAMES:
        name = name.replace(bert, mpnet)
    return name


def _albert(positions: int) -> Shapes:
    prefix = "encoder.albert_layer_groups.0.albert_layers.0"
    shapes: Shapes = {
        "embeddings.word_embeddings.weight": (VOCABULARY, _EMBEDDING),
        "embeddings.position_embeddings.weight": (positions, _EMBEDDING),
        "embeddings.token_type_embeddings.weight": (2, _EMBEDDING),
        "embeddings.LayerNorm.weight": (_EMBEDDING,),
        "embeddings.LayerNorm.bias": (_EMBEDDING,),
    }
    shapes |= linear("encoder.embedding_hidden_mapping_in", HIDDEN, _EMBEDDING)
    for name in ("query", "key", "value", "dense"):
        shapes |= linear(f"{prefix}.attention.{name}", HIDDEN, HIDDEN)
    shapes |= linear(f"{prefix}.ffn", INTERMEDIATE, HIDDEN)
    shapes |= linear(f"{prefix}.ffn_output", HIDDEN, INTERMEDIATE)
    for name in ("attention.LayerNorm", "full_layer_layer_norm"):
        shapes |= {f"{prefix}.{name}.weight": (HIDDEN,), f"{prefix}.{name}.bias": (HIDDEN,)}
    return shapes


def _modernbert() -> Shapes:
    shapes: Shapes = {
        "embeddings.tok_embeddings.weight": (VOCABULARY, HIDDEN),
        "embeddings.norm.weight": (HIDDEN,),
        "final_norm.weight": (HIDDEN,),
    }
    for layer in range(LAYERS):
        prefix = f"layers.{layer}"
        if layer:
            shapes[f"{prefix}.attn_norm.weight"] = (HIDDEN,)
        shapes |= {
            f"{prefix}.attn.Wqkv.weight": (3 * HIDDEN, HIDDEN),
            f"{prefix}.attn.Wo.weight": (HIDDEN, HIDDEN),
            f"{prefix}.mlp_norm.weight": (HIDDEN,),
            f"{prefix}.mlp.Wi.weight": (2 * INTERMEDIATE, HIDDEN),
            f"{prefix}.mlp.Wo.weight": (HIDDEN, INTERMEDIATE),
        }
    return shapes
