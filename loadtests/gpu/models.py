"""Builds the measured models: real sizes, random weights from a seed, and made-up words."""

import itertools
import json
import re
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any  # the configuration of a checkpoint

import msgspec
import numpy as np
from numpy.typing import NDArray
from tokenizers import normalizers

from loadtests.gpu.plan import LARGE, SMALL, Options
from sluicegate.backends.executors.buckets import Shape
from sluicegate.backends.model_tools.graphs.checkpoint import build_checkpoint
from sluicegate.backends.model_tools.graphs.options import GraphOptions
from sluicegate.backends.model_tools.graphs.shapes import BertShape, weight_shapes
from sluicegate.backends.model_tools.graphs.weights import Weights
from sluicegate.backends.model_tools.importing.import_model import import_model
from sluicegate.backends.qualification.graph_choice import RECORD
from sluicegate.backends.settings import BackendSettings
from testing.model_repository import word_pieces
from testing.weight_files import write_safetensors

Batch = dict[str, NDArray[np.int32]]
_Shapes = dict[str, tuple[int, ...]]
_LABELS = ("negative", "positive")
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
_FRAME = 2  # [CLS] and [SEP]
_WORD_VECTORS = ("embeddings.word_embeddings.weight", "embeddings.tok_embeddings.weight")


def short(options: Options, family: str) -> BertShape:
    """Return a size with two layers. An attention head is 32 wide in the small model, else 64.

    The runtime chooses a kernel according to the width of an attention head and the kind of graph.
    So two layers use the same kernels as twelve layers, in a fraction of the time.
    """
    full = options.shape(SMALL if family == SMALL else LARGE)
    return msgspec.structs.replace(full, layers=2, vocab=1000)


def graph(options: Options, family: str, form: GraphOptions, size: BertShape) -> Path:
    """Return the file of a graph of this family, size and kind; build a missing graph.

    The embedding of the vocabulary's last token is NaN.

    Raises:
        WeightsError: the family has no graph of this kind.
    """
    of_size = f"{family}-{size.layers}-{size.vocab}"
    path = options.work / f"{of_size}-{form.precision}-{form.attention}.onnx"
    if not path.exists():
        model = build_checkpoint(_config(family, size), _weights(family, size), options=form)
        temporary = path.with_suffix(".part")
        temporary.write_bytes(model.SerializeToString())
        temporary.replace(path)
    return path


def _config(family: str, size: BertShape) -> dict[str, Any]:
    if family == "modernbert":
        return bert_config(
            size,
            architectures=["ModernBertModel"],
            model_type=family,
            local_attention=16,
            global_attn_every_n_layers=2,
        )
    if family == "deberta-v2":
        return bert_config(
            size,
            architectures=["DebertaV2Model"],
            model_type=family,
            type_vocab_size=0,
            relative_attention=True,
            position_buckets=16,
            max_relative_positions=size.positions,
            pos_att_type="c2p|p2c",
            share_att_key=True,
            norm_rel_ebd="layer_norm",
            position_biased_input=False,
        )
    return bert_config(size)


def bert_config(size: BertShape, **more: Any) -> dict[str, Any]:
    """Return the configuration of a BERT checkpoint."""
    return {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_act": "gelu",
        "num_hidden_layers": size.layers,
        "hidden_size": size.hidden,
        "num_attention_heads": size.heads,
        "intermediate_size": size.intermediate,
        "vocab_size": size.vocab,
        "max_position_embeddings": size.positions,
        "type_vocab_size": size.token_types,
        "layer_norm_eps": size.layer_norm_epsilon,
    } | more


@cache
def _weights(family: str, size: BertShape) -> Weights:
    shapes = {"modernbert": _modernbert, "deberta-v2": _deberta}.get(family, weight_shapes)(size)
    weights = seeded(shapes)
    for name in _WORD_VECTORS:
        if name in weights:
            weights[name][-1] = np.nan
    return weights


def seeded(shapes: _Shapes) -> dict[str, NDArray[np.float32]]:
    """Return random weights; weights that scale normalized values are close to 1."""
    random = np.random.default_rng(1)
    return {
        name: np.float32(name.endswith(("norm.weight", "LayerNorm.weight")))
        + np.float32(0.02) * random.standard_normal(shape, dtype=np.float32)
        for name, shape in shapes.items()
    }


def _modernbert(size: BertShape) -> _Shapes:
    hidden, wide = size.hidden, size.intermediate
    shapes: _Shapes = {
        "embeddings.tok_embeddings.weight": (size.vocab, hidden),
        "embeddings.norm.weight": (hidden,),
        "final_norm.weight": (hidden,),
    }
    layer = {
        "attn_norm": (hidden,),
        "attn.Wqkv": (3 * hidden, hidden),
        "attn.Wo": (hidden, hidden),
        "mlp_norm": (hidden,),
        "mlp.Wi": (2 * wide, hidden),
        "mlp.Wo": (hidden, wide),
    }
    for number in range(size.layers):
        shapes |= {f"layers.{number}.{name}.weight": shape for name, shape in layer.items()}
    return shapes


def _deberta(size: BertShape) -> _Shapes:
    """Return BERT's weights under DeBERTa's names, and weights for relative positions."""
    dropped = ("embeddings.position_embeddings.", "embeddings.token_type_embeddings.")
    shapes: _Shapes = {
        re.sub(r"self\.(query|key|value)", r"self.\1_proj", name): shape
        for name, shape in weight_shapes(size).items()
        if not name.startswith(dropped)
    }
    shapes["encoder.rel_embeddings.weight"] = (32, size.hidden)
    return shapes | {f"encoder.LayerNorm.{part}": (size.hidden,) for part in ("weight", "bias")}


def import_classifier(options: Options, model: str) -> Path:
    """Return a repository with the classifier `bench` of a size, in the device's precision.

    The model has every graph that an import writes. The backend that loads the model serves the
    quickest of these graphs.
    """
    root = options.work / f"models-{model}"
    revision = root / "bench" / "1"
    if not revision.exists():
        folder = options.work / "checkpoint"
        _write_checkpoint(folder, options.shape(model))
        settings = BackendSettings(models=root)
        import_model(
            folder, settings, name="bench", given={}, variant=None, dry_run=False, echo=print
        )
        shutil.rmtree(folder)
        # The precision gate would fail, because all scores are nearly equal with random weights.
        (revision / "model.yaml").write_text(f"profile: {options.precision}\n")
    return root


def chosen_form(models: Path) -> str:
    """Return the graph that a backend chose, and the predicted time of every other graph."""
    record = models / "bench" / "1" / RECORD
    if not record.exists():
        return "the form for CPUs"
    return json.dumps(json.loads(record.read_bytes()))


def _write_checkpoint(folder: Path, size: BertShape) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    shapes = {f"bert.{name}": shape for name, shape in weight_shapes(size).items()}
    weights = seeded(shapes)
    random = np.random.default_rng(2)
    for name, rows in (("bert.pooler.dense", size.hidden), ("classifier", len(_LABELS))):
        weights[f"{name}.weight"] = random.standard_normal((rows, size.hidden)).astype(np.float32)
        weights[f"{name}.bias"] = np.zeros(rows, dtype=np.float32)
    write_safetensors(folder / "model.safetensors", weights)
    write_tokenizer(folder / "tokenizer.json", size.vocab)
    config = bert_config(
        size,
        architectures=["BertForSequenceClassification"],
        pad_token_id=0,
        id2label=dict(enumerate(_LABELS)),
    )
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "TokenizersBackend"}')


def _words(vocabulary: int) -> list[str]:
    """Return the words of the tokenizer's vocabulary, each one token."""
    letters = itertools.product("abcdefghijklmnopqrstuvwxyz", repeat=4)
    return ["".join(next(letters)) for _ in range(vocabulary - len(_SPECIAL))]


def texts(vocabulary: int, *, length: int, seed: int) -> Iterator[str]:
    """Yield endless distinct texts of exactly `length` tokens each."""
    known = _words(vocabulary)
    random = np.random.default_rng(seed)
    drawn = random.integers(0, len(known), (1000, length - _FRAME - 3))
    bodies = [" ".join(known[place] for place in row) for row in drawn]
    for number in itertools.count():
        high, low = divmod(number, len(known))
        yield f"{known[seed]} {known[high]} {known[low]} {bodies[number % len(bodies)]}"


def random_batch(shape: Shape, vocabulary: int, *, mixed: bool = False) -> Batch:
    """Return random tokens: rows of full length or, if `mixed`, of lengths as in real texts."""
    random = np.random.default_rng(4)
    lengths = np.full(shape.rows, shape.length)
    if mixed:
        drawn = random.lognormal(np.log(shape.length / 3), 0.6, shape.rows)
        lengths = np.clip(drawn, 4, shape.length).astype(np.int64)
        lengths[0] = shape.length
    return batch_of(lengths, vocabulary, random)


def batch_of(lengths: NDArray[np.int64], vocabulary: int, random: np.random.Generator) -> Batch:
    """Return rows of these lengths, padded on the right, without the vocabulary's last token."""
    mask = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int32)
    ids = random.integers(len(_SPECIAL), vocabulary - 1, mask.shape, dtype=np.int32) * mask
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


def write_tokenizer(path: Path, vocabulary: int) -> None:
    """Write a WordPiece tokenizer that splits and lower-cases text as BERT's tokenizer does."""
    tokenizer = word_pieces([*_SPECIAL, *_words(vocabulary)])
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.save(str(path))
