"""Builds the measured models: real sizes, seeded weights, a tokenizer of made-up words."""

import itertools
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from backends.executors.buckets import Shape
from backends.model_tools.graphs.bert import build_bert
from backends.model_tools.graphs.options import GraphOptions
from backends.model_tools.graphs.shapes import BertShape
from backends.model_tools.graphs.weights import seeded_weights
from backends.model_tools.importing.import_model import import_model
from backends.qualification.device_graphs import RECORD
from backends.settings import BackendSettings
from loadtests.gpu.plan import LARGE, Options
from testing.weight_files import write_safetensors

_LABELS = ("negative", "positive")


def import_classifier(options: Options, preset: str) -> Path:
    """Return a repository with the classifier `bench` of a size, in the precision of the device.

    It has every form that an import writes: the backend that loads it takes the quickest.
    """
    precision = options.precision()
    root = options.work / f"models-{preset}-{precision}"
    revision = root / "bench" / "1"
    if not revision.exists():
        folder = options.work / "checkpoint"
        _write_checkpoint(folder, options.shape(preset))
        settings = BackendSettings(models=root)
        import_model(
            folder, settings, name="bench", given={}, variant=None, dry_run=False, echo=print
        )
        shutil.rmtree(folder)
        # The precision gate is left out: with random weights all scores are nearly equal.
        (revision / "model.yaml").write_text(f"profile: {precision}\n")
    return root


def chosen_form(root: Path) -> str:
    """Return which of its forms a backend chose, and what it predicted of the others."""
    record = root / "bench" / "1" / RECORD
    if not record.exists():
        return "the form for CPUs"
    found = msgspec.json.decode(record.read_bytes())
    return json.dumps(found)


def _write_checkpoint(folder: Path, shape: BertShape) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(2)
    weights = {f"bert.{name}": values for name, values in seeded_weights(shape, seed=1).items()}
    for name, rows in (("bert.pooler.dense", shape.hidden), ("classifier", len(_LABELS))):
        weights[f"{name}.weight"] = random.standard_normal((rows, shape.hidden)).astype(np.float32)
        weights[f"{name}.bias"] = np.zeros(rows, dtype=np.float32)
    write_safetensors(folder / "model.safetensors", weights)
    write_tokenizer(folder / "tokenizer.json", shape.vocab)
    config = {
        "architectures": ["BertForSequenceClassification"],
        "model_type": "bert",
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": shape.positions,
        "type_vocab_size": shape.token_types,
        "pad_token_id": 0,
        "id2label": dict(enumerate(_LABELS)),
    }
    (folder / "config.json").write_text(json.dumps(config))
    generic = {"tokenizer_class": "TokenizersBackend"}
    (folder / "tokenizer_config.json").write_text(json.dumps(generic))


_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_FRAME = 2  # [CLS] and [SEP]

Batch = dict[str, NDArray[np.int32]]


def ensure_graph(options: Options, preset: str, form: GraphOptions) -> Path:
    """Return the file of a graph, built when it is not there."""
    build_graphs(options, preset, [form])
    return _path(options, preset, form)


def build_graphs(options: Options, preset: str, forms: Sequence[GraphOptions]) -> None:
    """Build the graphs that are not there, all on the same weights."""
    missing = {_path(options, preset, form): form for form in forms}
    missing = {path: form for path, form in missing.items() if not path.exists()}
    if not missing:
        return
    shape = options.shape(preset)
    weights = seeded_weights(shape, seed=1)
    for path, form in missing.items():
        temporary = path.with_suffix(".part")
        temporary.write_bytes(build_bert(shape, weights, form).SerializeToString())
        temporary.replace(path)


def _path(options: Options, preset: str, form: GraphOptions) -> Path:
    size = "tiny" if options.tiny else preset
    return options.work / f"{size}-{form.precision}-{form.attention}.onnx"


def words(vocabulary: int) -> list[str]:
    """Return the words of the tokenizer's vocabulary, each one token."""
    letters = itertools.product(_LETTERS, repeat=4)
    return ["".join(next(letters)) for _ in range(vocabulary - len(_SPECIAL))]


def texts(options: Options, *, length: int, seed: int) -> Iterator[str]:
    """Yield texts without end, none twice, of exactly `length` tokens each."""
    known = words(options.shape(LARGE).vocab)
    random = np.random.default_rng(seed)
    drawn = random.integers(0, len(known), (1000, length - _FRAME - 3))
    bodies = [" ".join(known[place] for place in row) for row in drawn]
    for number in itertools.count():
        high, low = divmod(number, len(known))
        yield f"{known[seed]} {known[high]} {known[low]} {bodies[number % len(bodies)]}"


def random_batch(options: Options, shape: Shape, *, seed: int, mixed: bool = False) -> Batch:
    """Return random tokens, all of the full length or, when `mixed`, of lengths as texts have."""
    random = np.random.default_rng(seed)
    lengths = np.full(shape.rows, shape.length)
    if mixed:
        drawn = random.lognormal(np.log(shape.length / 3), 0.6, shape.rows)
        lengths = np.clip(drawn, 4, shape.length).astype(np.int64)
        lengths[0] = shape.length
    return batch_of(lengths, vocabulary=options.shape(LARGE).vocab, random=random)


def batch_of(lengths: NDArray[np.int64], *, vocabulary: int, random: np.random.Generator) -> Batch:
    """Return rows of these lengths, padded on the right, with ids below `vocabulary`."""
    mask = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int32)
    ids = random.integers(len(_SPECIAL), vocabulary, mask.shape, dtype=np.int32) * mask
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


def write_tokenizer(path: Path, vocabulary: int) -> None:
    """Write a word piece tokenizer that splits and lowers text as BERT's does."""
    # Sections that run bare graphs do not need this package.
    from tokenizers import (  # noqa: PLC0415
        Tokenizer,
        models,
        normalizers,
        pre_tokenizers,
        processors,
    )

    pieces = {word: n for n, word in enumerate([*_SPECIAL, *words(vocabulary)])}
    tokenizer = Tokenizer(models.WordPiece(pieces, unk_token="[UNK]"))  # noqa: S106 - a piece
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    frame = [("[CLS]", pieces["[CLS]"]), ("[SEP]", pieces["[SEP]"])]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=frame
    )
    tokenizer.save(str(path))
