"""Writes a model with random weights, and runs it with its reference library.

`python -m loadtests.libraries.library NAME TOKENIZER FOLDER`, where the libraries are installed.
Then each line of the input is a JSON list of texts. Each line of the output has the
seconds of wall time and of processor time that the library took for them, and its answers.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from loadtests.libraries.shapes import LABELS, SHAPES, THREADS, THRESHOLD, Shape

_LONGEST = 512
_WIDTH = 96  # of a token's vector in ColBERT-small
_STATIC_WIDTH = 256
_RARE = -2.0
_MODELS = "sentence_transformers.sparse_encoder.models"
_ROLES = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
Answer = Callable[[list[str]], list[Any]]


def write(shape: Shape, tokenizer: Path, folder: Path) -> None:
    """Write the folder of a model, as its library does."""
    torch.manual_seed(1)
    if shape.kind == "static":
        _write_static(tokenizer, folder)
        return
    import transformers  # noqa: PLC0415 - not every environment has every library

    words = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer),
        model_max_length=_LONGEST,
        **{f"{role}_token": token for role, token in _ROLES.items()},
    )
    words.model_input_names = ["input_ids", "attention_mask"]
    if shape.kind == "entities":
        _write_gliner(shape, words, folder)
        return
    if shape.kind == "multi_vector":
        words.add_tokens(["[Q] ", "[D] "], special_tokens=True)
    ids = {f"{role}_token_id": words.convert_tokens_to_ids(t) for role, t in _ROLES.items()}
    ids = {name: ids[name] for name in ("pad_token_id", "cls_token_id", "sep_token_id")}
    ids |= {"bos_token_id": ids["cls_token_id"], "eos_token_id": ids["sep_token_id"]}
    config = getattr(transformers, f"{shape.model}Config")(**shape.config, **ids)
    head = "ForMaskedLM" if shape.kind == "sparse" else "Model"
    model = getattr(transformers, f"{shape.model}{head}")(config).eval()
    if shape.kind == "sparse":
        # So that about as many weights are above zero as in a trained model.
        model.vocab_projector.bias.data.fill_(_RARE)
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    if shape.kind == "dense":
        _write_dense(shape, folder)
    elif shape.kind == "sparse":
        config = {"pooling_strategy": "max", "activation_function": "relu"}
        modules = (f"{_MODELS}.MLMTransformer", f"{_MODELS}.SpladePooling", config)
        _write_modules(folder, *modules, model_type="SparseEncoder", similarity_fn_name="dot")
    else:
        _write_colbert(shape, folder)


def _write_dense(shape: Shape, folder: Path) -> None:
    from sentence_transformers import SentenceTransformer, models  # noqa: PLC0415

    encoder = models.Transformer(str(folder), max_seq_length=_LONGEST)
    mode = "lasttoken" if shape.model == "Qwen3" else "cls" if shape.model == "Gte" else "mean"
    pooling = models.Pooling(encoder.get_embedding_dimension(), pooling_mode=mode)
    made = SentenceTransformer(modules=[encoder, pooling, models.Normalize()], device="cpu")
    made.save_pretrained(str(folder))


def _write_colbert(shape: Shape, folder: Path) -> None:
    from safetensors.torch import save_file  # noqa: PLC0415

    sizes = {"in_features": shape.config["hidden_size"], "out_features": _WIDTH, "bias": False}
    identity = "torch.nn.modules.linear.Identity"
    config = {**sizes, "activation_function": identity, "use_residual": False}
    _write_modules(
        folder,
        "sentence_transformers.models.Transformer",
        "pylate.models.Dense.Dense",
        config,
        model_type="ColBERT",
        query_prefix="[Q] ",
        document_prefix="[D] ",
        query_length=32,
        document_length=_LONGEST,
        attend_to_expansion_tokens=False,
        skiplist_words=[],
    )
    weight = torch.randn(_WIDTH, shape.config["hidden_size"])
    save_file({"linear.weight": weight}, folder / "1_Module" / "model.safetensors")


def _write_modules(
    folder: Path, first: str, second: str, config: dict[str, Any], **settings: Any
) -> None:
    (folder / "1_Module").mkdir()
    (folder / "1_Module" / "config.json").write_text(json.dumps(config))
    listed = [
        {"idx": place, "name": str(place), "path": path, "type": kind}
        for place, (kind, path) in enumerate(((first, ""), (second, "1_Module")))
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    limits = {"max_seq_length": _LONGEST, "do_lower_case": False}
    (folder / "sentence_bert_config.json").write_text(json.dumps(limits))
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))


def _write_gliner(shape: Shape, words: Any, folder: Path) -> None:
    from gliner import GLiNER, GLiNERConfig  # noqa: PLC0415

    backbone = folder.with_name(f"{folder.name}.backbone")
    words.save_pretrained(backbone)
    (backbone / "config.json").write_text('{"model_type": "deberta-v2"}')
    config = GLiNERConfig(
        model_name=str(backbone),
        encoder_config=shape.config,
        hidden_size=512,
        max_width=12,
        max_len=384,
        subtoken_pooling="first",
        span_mode="markerV0",
        fuse_layers=False,
    )
    model = GLiNER.from_config(config, backbone_from_pretrained=False)
    model.config.model_name = "random"
    model.save_pretrained(folder, safe_serialization=True)


def _write_static(tokenizer: Path, folder: Path) -> None:
    from model2vec import StaticModel  # noqa: PLC0415
    from tokenizers import Tokenizer  # noqa: PLC0415

    words = Tokenizer.from_file(str(tokenizer))
    words.no_truncation()
    words.no_padding()
    size = words.get_vocab_size()
    vectors = np.random.default_rng(1).standard_normal((size, _STATIC_WIDTH)).astype(np.float32)
    StaticModel(vectors, words, normalize=True).save_pretrained(folder)


def load(shape: Shape, folder: Path) -> Answer:
    """Return a function that answers texts with the library, with its defaults for batches."""
    if shape.kind == "static":
        from model2vec import StaticModel  # noqa: PLC0415

        static: Any = StaticModel.from_pretrained(folder)
        return static.encode  # type: ignore[no-any-return]
    if shape.kind == "entities":
        return _load_gliner(folder)
    import sentence_transformers  # noqa: PLC0415

    kinds = {"sparse": "SparseEncoder", "multi_vector": "MultiVectorEncoder"}
    made = getattr(sentence_transformers, kinds.get(shape.kind, "SentenceTransformer"))
    model: Any = made(str(folder), device="cpu")
    if shape.kind == "multi_vector":
        return lambda texts: model.encode_document(texts, normalize_embeddings=True)
    return model.encode  # type: ignore[no-any-return]


def _load_gliner(folder: Path) -> Answer:
    from gliner import GLiNER  # noqa: PLC0415

    model: Any = GLiNER.from_pretrained(str(folder), local_files_only=True)
    return lambda texts: model.inference(texts, LABELS, threshold=THRESHOLD)


def _listed(shape: Shape, answers: list[Any]) -> list[Any]:
    """Return answers as JSON can hold them."""
    if shape.kind == "entities":
        return [[(e["label"], e["start"], e["end"], e["score"]) for e in each] for each in answers]
    if shape.kind == "sparse":
        return [_pairs(each.to_dense().numpy()) for each in answers]
    return [np.asarray(each, dtype=np.float64).tolist() for each in answers]


def _pairs(line: Any) -> list[tuple[int, float]]:
    return [(int(place), float(line[place])) for place in np.flatnonzero(line)]


def main() -> None:
    """Write and load a model, and answer the lines of the input."""
    name, tokenizer, place = sys.argv[1:]
    shape = next(each for each in SHAPES if each.name == name)
    folder = Path(place)
    torch.set_num_threads(THREADS)
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        write(shape, Path(tokenizer), folder)
    answer = load(shape, folder)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        asked = json.loads(line)
        wall, used = time.perf_counter(), time.process_time()
        found = answer(asked["texts"])
        spent = [time.perf_counter() - wall, time.process_time() - used]
        answers = _listed(shape, found) if asked["answers"] else []
        sys.stdout.buffer.write(msgspec.json.encode({"spent": spent, "answers": answers}) + b"\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
