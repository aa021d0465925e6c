"""Has the reference libraries write random models with several outputs, and answer 56 texts.

`python -m tests.parity.output_checkpoints FOLDER`, where the reference libraries are installed.
SPLADE models are answered by `SparseEncoder`, PyLate's folders by `MultiVectorEncoder`, and models
with the heads of BGE-M3 by the formulas of FlagEmbedding (MIT).
"""

import argparse
import json
import random
import shutil
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from sentence_transformers import MultiVectorEncoder, SparseEncoder
from sentence_transformers.multi_vector_encoder.modules import HierarchicalTokenPooling
from tokenizers import AddedToken, Tokenizer

from tests.parity.library_answers import POOL_FACTOR, LibraryAnswers, answers_file
from tests.parity.texts import DATA, read_texts

_STEP, _SPREAD, _POSITIONS, _EVERY = 1 / 64, 0.3, 96, 10
_WIDTH, _HIDDEN = 16, 32
_IDENTITY = "torch.nn.modules.linear.Identity"
_ODD = (
    "Paris is big",
    "The Café in São Paulo  was   closed.",
    "中文 text, and ``quotes'' here!",
    "HELLO world",
    "tabs\tand\nlines",
    "Größe & naïveté 😀 42 ?!",
)
_SPECIAL = {
    "wordpiece": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    "unigram": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    "bpe": ("<pad>", "<unk>", "<s>", "</s>", "<mask>"),
}
_ROLES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
# A class of `transformers` and a tokenizer by family.
_FAMILIES = {
    "bert": ("Bert", "wordpiece"),
    "distilbert": ("DistilBert", "wordpiece"),
    "roberta": ("Roberta", "bpe"),
    "xlm-roberta": ("XLMRoberta", "bpe"),
    "mpnet": ("MPNet", "bpe"),
    "electra": ("Electra", "wordpiece"),
    "albert": ("Albert", "unigram"),
    "modernbert": ("ModernBert", "wordpiece"),
}


class OutputCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a model: its family, its kind of output, and the options of this kind."""

    family: str
    kind: str
    options: dict[str, Any] = {}


# A `native` model is for late interaction, too, and saved by sentence-transformers.
_SPLADE, _LATE, _NATIVE, _JOINED = "splade", "late", "native", "joined"
CHECKPOINTS = (
    OutputCheckpoint(family="bert", kind=_SPLADE),
    OutputCheckpoint(
        family="distilbert", kind=_SPLADE, options={"activation_function": "log1p_relu"}
    ),
    OutputCheckpoint(family="roberta", kind=_SPLADE, options={"pooling_strategy": "sum"}),
    OutputCheckpoint(family="xlm-roberta", kind=_SPLADE),
    OutputCheckpoint(family="mpnet", kind=_SPLADE),
    OutputCheckpoint(family="electra", kind=_SPLADE),
    OutputCheckpoint(family="albert", kind=_SPLADE),
    OutputCheckpoint(family="modernbert", kind=_SPLADE),
    OutputCheckpoint(family="bert", kind=_LATE),
    OutputCheckpoint(family="modernbert", kind=_LATE, options={"skiplist_words": []}),
    OutputCheckpoint(family="distilbert", kind=_LATE, options={"attend_to_expansion_tokens": True}),
    OutputCheckpoint(family="roberta", kind=_LATE, options={"do_query_expansion": False}),
    OutputCheckpoint(family="electra", kind=_NATIVE),
    OutputCheckpoint(family="xlm-roberta", kind=_JOINED),
)


def output_texts() -> list[str]:
    """Return the texts: some of the 500, and odd ones."""
    return [*read_texts()[::_EVERY], *_ODD]


def write(checkpoint: OutputCheckpoint, folder: Path) -> None:
    """Write the folder of a checkpoint."""
    torch.manual_seed(len(folder.name))
    name, file = _FAMILIES[checkpoint.family]
    roles = dict(zip(_ROLES, _SPECIAL[file], strict=True))
    document = (DATA / f"{file}-tokenizer.json").read_text(encoding="utf-8")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(document), model_max_length=_POSITIONS, **roles
    )
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    if checkpoint.kind in {_LATE, _NATIVE}:
        marks = [AddedToken(mark, normalized=False, special=True) for mark in ("[Q] ", "[D] ")]
        tokenizer.add_tokens(marks)
    head = "ForMaskedLM" if checkpoint.kind == _SPLADE else "Model"
    config = _config(name, tokenizer)
    model = getattr(transformers, f"{name}{head}")(config)
    _draw(model, folder.name)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    kinds: dict[str, Callable[[OutputCheckpoint, Path], None]] = {
        _SPLADE: _write_splade,
        _LATE: _write_late,
        _NATIVE: _write_native,
        _JOINED: _write_joined,
    }
    kinds[checkpoint.kind](checkpoint, folder)


def _config(name: str, tokenizer: Any) -> Any:
    fields: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": _HIDDEN,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": _POSITIONS + 2,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.cls_token_id,
        "eos_token_id": tokenizer.sep_token_id,
        "cls_token_id": tokenizer.cls_token_id,
        "sep_token_id": tokenizer.sep_token_id,
    }
    if name == "DistilBert":
        fields |= {"dim": _HIDDEN, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}
    if name in {"Electra", "Albert"}:
        fields["embedding_size"] = 24
    if name == "ModernBert":
        # Every token of a query sees a real token, as with the window of published models.
        fields |= {
            "local_attention": 64,
            "global_attn_every_n_layers": 2,
            "hidden_activation": "gelu",
        }
    return getattr(transformers, f"{name}Config")(**fields)


def _draw(model: torch.nn.Module, seed: str) -> None:
    """Draw weights in steps, so that files are small when they are compressed."""
    generator = np.random.Generator(np.random.PCG64([*seed.encode()]))
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            noise = generator.normal(0.0, _SPREAD, tuple(tensor.shape))
            centre = 1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0
            values = np.round((centre + noise) / _STEP) * _STEP
            tensor.copy_(torch.from_numpy(values.astype(np.float32)))


def _write_modules(folder: Path, modules: list[tuple[str, str, dict[str, Any]]]) -> None:
    listed = []
    for place, (kind, path, config) in enumerate(modules):
        listed.append({"idx": place, "name": str(place), "path": path, "type": kind})
        if path:
            (folder / path).mkdir()
            (folder / path / "config.json").write_text(json.dumps(config))
    (folder / "modules.json").write_text(json.dumps(listed))
    limits = {"max_seq_length": 48, "do_lower_case": False}
    (folder / "sentence_bert_config.json").write_text(json.dumps(limits))


def _write_splade(checkpoint: OutputCheckpoint, folder: Path) -> None:
    models = "sentence_transformers.sparse_encoder.models"
    config = {"pooling_strategy": "max", "activation_function": "relu", **checkpoint.options}
    _write_modules(
        folder,
        [
            (f"{models}.MLMTransformer", "", {}),
            (f"{models}.SpladePooling", "1_SpladePooling", config),
        ],
    )
    settings = {"model_type": "SparseEncoder", "similarity_fn_name": "dot", "prompts": {}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))


def _write_late(checkpoint: OutputCheckpoint, folder: Path) -> None:
    sizes = {"in_features": _HIDDEN, "out_features": _WIDTH, "bias": False}
    config = {**sizes, "activation_function": _IDENTITY, "use_residual": False}
    _write_modules(
        folder,
        [
            ("sentence_transformers.models.Transformer", "", {}),
            ("pylate.models.Dense.Dense", "1_Dense", config),
        ],
    )
    save_file({"linear.weight": _matrix(_WIDTH)}, folder / "1_Dense" / "model.safetensors")
    settings = {
        "model_type": "ColBERT",
        "query_prefix": "[Q] ",
        "document_prefix": "[D] ",
        "query_length": 24,
        "document_length": 40,
        "attend_to_expansion_tokens": False,
        "skiplist_words": list(string.punctuation),
        **checkpoint.options,
    }
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))


def _write_native(checkpoint: OutputCheckpoint, folder: Path) -> None:
    _write_late(checkpoint, folder)
    model = MultiVectorEncoder(str(folder), device="cpu")
    shutil.rmtree(folder)
    model.save_pretrained(str(folder))


def _write_joined(_: OutputCheckpoint, folder: Path) -> None:
    models = "sentence_transformers.models"
    _write_modules(
        folder,
        [
            (f"{models}.Transformer", "", {}),
            (f"{models}.Pooling", "1_Pooling", {"pooling_mode": "cls"}),
            (f"{models}.Normalize", "2_Normalize", {}),
        ],
    )
    for name, width in (("sparse", 1), ("colbert", _HIDDEN)):
        head = {"weight": _matrix(width), "bias": _matrix(width)[:, 0].contiguous()}
        save_file(head, folder / f"{name}_linear.safetensors")


def _matrix(width: int) -> torch.Tensor:
    return torch.round(torch.randn(width, _HIDDEN) * _SPREAD / _STEP) * _STEP


def answer(checkpoint: OutputCheckpoint, folder: Path, texts: list[str]) -> LibraryAnswers:
    """Return the libraries' answers to the texts, each encoded alone."""
    found = LibraryAnswers(
        name=folder.name,
        family=checkpoint.family,
        purpose=checkpoint.kind,
        notes=[json.dumps(checkpoint.options)],
        texts=texts,
        versions=f"transformers {transformers.__version__}",
    )
    if checkpoint.kind == _SPLADE:
        model: Any = SparseEncoder(str(folder), device="cpu")
        lines = model.encode(texts, batch_size=1, convert_to_sparse_tensor=False)
        found.scores["sparse"] = [_pairs(line.numpy()) for line in lines]
    elif checkpoint.kind in {_LATE, _NATIVE}:
        _answer_late(found, folder)
    else:
        _answer_joined(found, folder)
    return found


def _answer_late(found: LibraryAnswers, folder: Path) -> None:
    model: Any = MultiVectorEncoder(str(folder), device="cpu")
    options = {"batch_size": 1, "normalize_embeddings": True}
    queries = model.encode_query(found.texts, **options)
    documents = model.encode_document(found.texts, **options)
    found.scores["query"] = [_listed(each) for each in queries]
    found.scores["document"] = [_listed(each) for each in documents]
    pooling = HierarchicalTokenPooling(POOL_FACTOR)
    pooled = pooling.pool([torch.as_tensor(each) for each in documents])
    found.scores["pooled"] = [sorted(_listed(each)) for each in pooled]
    query = torch.as_tensor(queries[0])
    found.scores["rerank"] = [
        float((query @ torch.as_tensor(each).T).max(dim=1).values.sum()) for each in documents
    ]


def _answer_joined(found: LibraryAnswers, folder: Path) -> None:
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    model: Any = transformers.AutoModel.from_pretrained(folder).eval()
    heads = {}
    for name in ("sparse", "colbert"):
        heads[name] = load_file(folder / f"{name}_linear.safetensors")
    unused = {tokenizer.cls_token_id, tokenizer.sep_token_id}
    unused |= {tokenizer.pad_token_id, tokenizer.unk_token_id}
    found.scores = {"embedding": [], "sparse": [], "document": []}
    for text in found.texts:
        given = tokenizer(text, return_tensors="pt", truncation=True, max_length=48)
        with torch.no_grad():
            states = model(**given).last_hidden_state[0]
            weights = torch.relu(_linear(states, heads["sparse"]))[:, 0]
            vectors = torch.nn.functional.normalize(_linear(states[1:], heads["colbert"]), dim=-1)
        largest: dict[int, float] = {}
        for number, weight in zip(given["input_ids"][0].tolist(), weights.tolist(), strict=True):
            if number not in unused and weight > 0:
                largest[number] = max(largest.get(number, 0.0), weight)
        found.scores["embedding"].append(_listed(torch.nn.functional.normalize(states[0], dim=-1)))
        found.scores["sparse"].append(sorted(largest.items()))
        found.scores["document"].append(_listed(vectors))


def _linear(states: torch.Tensor, head: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.nn.functional.linear(states, head["weight"], head["bias"])


def _pairs(line: Any) -> list[tuple[int, float]]:
    return [(int(place), round(float(line[place]), 6)) for place in np.flatnonzero(line)]


def _listed(values: Any) -> Any:
    return np.round(np.asarray(values, dtype=np.float64), 6).tolist()


def main() -> None:
    """Write all checkpoints and their answers to a folder."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every", type=int, default=1, help="answer every so many of the texts")
    given = parser.parse_args()
    torch.set_num_threads(1)
    random.seed(0)
    for checkpoint in CHECKPOINTS:
        folder = given.folder / f"{checkpoint.kind}-{checkpoint.family}"
        folder.mkdir(parents=True)
        write(checkpoint, folder)
        found = answer(checkpoint, folder, output_texts()[:: given.every])
        answers_file(folder).write_bytes(msgspec.json.encode(found))


if __name__ == "__main__":
    main()
