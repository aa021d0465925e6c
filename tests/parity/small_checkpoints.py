"""Has model2vec, sentence-transformers, setfit and peft write random checkpoints, with answers.

`python -m tests.parity.small_checkpoints FOLDER`, where these libraries are installed. Each is a
folder that its library saved, and what the library answers of 56 texts.
"""

import argparse
import itertools
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import skops.io
import torch
import transformers
from model2vec import StaticModel
from numpy.typing import NDArray
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer, models
from sentence_transformers.models import StaticEmbedding
from setfit import SetFitHead, SetFitModel
from skl2onnx import to_onnx
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier
from tokenizers import Tokenizer
from transformers import AutoTokenizer, pipeline

from tests.parity.library_answers import SMALL, LibraryAnswers, answers_file, base_folder
from tests.parity.library_checkpoints import (
    Drawn,
    draw_config,
    draw_tokenizer,
    draw_weights,
    write,
)
from tests.parity.texts import DATA, read_texts

PER_FAMILY = 10
_ODD = (
    "☃☃ ☃",
    "x ☃ y",
    "[CLS] a fine [MASK] film [UNK]",
    "x [PAD][PAD] y <pad> <s> </s> <unk>",
    "tabs\tand\nlines",
    "  The Café in São Paulo  was   closed. ",
    "中文 text, and ``quotes'' here!",
    "Größe & naïveté 😀 42",
    "HELLO",
    "a",
    "supercalifragilisticexpialidocious " * 9,
    "word " * 700,
    "longwords without " * 300,
    "e" * 700,
)
_TEXTS = 56
_OF_SENTENCES = 4
_ENCODERS = ("bert", "distilbert", "roberta", "mpnet", "electra", "albert", "modernbert")


def draw_texts(drawn: Drawn) -> list[str]:
    """Return real texts and odd ones."""
    return [*_ODD, *drawn.random.sample(read_texts(), _TEXTS - len(_ODD))]


def _numbers(drawn: Drawn, *shape: int) -> NDArray[np.float32]:
    """Return numbers in steps, which are small in a compressed file."""
    generator = np.random.default_rng([ord(letter) for letter in drawn.name])
    return (np.round(generator.standard_normal(shape) * 20) / 64).astype(np.float32)


def _tokenizer(drawn: Drawn) -> Tokenizer:
    kind = drawn.one("wordpiece", "wordpiece", "bpe", "unigram")
    drawn.notes.append(kind)
    return Tokenizer.from_file(str(DATA / f"{kind}-tokenizer.json"))


def write_model2vec(drawn: Drawn, folder: Path) -> LibraryAnswers:
    """Write a table with or without a mapping, weights, a limit and a normalization."""
    tokenizer = _tokenizer(drawn)
    words = tokenizer.get_vocab_size()
    rows = drawn.one(words, words, 40)
    vectors: NDArray[Any] = _numbers(drawn, rows, drawn.one(6, 16))
    kind = drawn.one("float32", "float32", "float16", "int8")
    if kind == "int8":
        vectors = (vectors * 8).astype(np.int8)
    generator = np.random.default_rng(drawn.random.randrange(99))
    has_weights = drawn.chance(0.5)
    limit = drawn.one(512, 512, 8, None, "absent")
    drawn.notes += [kind, f"{rows} rows", f"max_length {limit}", "weights" * has_weights]
    model = StaticModel(
        vectors.astype(kind),
        tokenizer,
        normalize=drawn.one(True, False),
        weights=generator.random(words).astype(np.float32) if has_weights else None,
        token_mapping=generator.integers(rows, size=words) if rows != words else None,
        max_length=512 if limit == "absent" else limit,
    )
    model.save_pretrained(folder)
    if limit == "absent":
        path = folder / "config.json"
        config = json.loads(path.read_bytes())
        del config["max_length"]
        path.write_text(json.dumps({"model_type": "model2vec", **config}))
        (folder / "modules.json").unlink()
    # What it answers of vectors in fp16 is rounded to fp16, so these are compared in fp32.
    exact = {"quantize_to": "float32"} if kind == "float16" else {}
    loaded = StaticModel.from_pretrained(folder, **exact)
    texts = [text for text in draw_texts(drawn) if tokenizer.encode(text).tokens[2:]]
    together = loaded.encode(texts)
    alone = [loaded.encode(text) for text in texts]
    return _found(drawn, "vectors", texts, together, alone)


def write_static(drawn: Drawn, folder: Path) -> LibraryAnswers:
    """Write a sentence transformer whose first module is a table."""
    _static_body(drawn).save_pretrained(str(folder))
    if drawn.chance(0.3):
        path = folder / "tokenizer.json"
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.enable_truncation(9)
        tokenizer.save(str(path))
        drawn.notes.append("truncation")
    if drawn.chance(0.3):
        _move_table(folder)
        drawn.notes.append("a subfolder")
    if drawn.chance(0.3):
        path = folder / "config_sentence_transformers.json"
        prompts = {"prompts": {"own": "Look for: "}, "default_prompt_name": "own"}
        path.write_text(json.dumps(json.loads(path.read_bytes()) | prompts))
        drawn.notes.append("a prompt")
    model, texts = SentenceTransformer(str(folder), device="cpu"), draw_texts(drawn)
    alone = [model.encode([text])[0] for text in texts]
    return _found(drawn, "vectors", texts, model.encode(texts), alone)


def _static_body(drawn: Drawn) -> SentenceTransformer:
    tokenizer, width = _tokenizer(drawn), drawn.one(6, 16)
    table = _numbers(drawn, tokenizer.get_vocab_size(), width)
    modules: list[Any] = [StaticEmbedding(tokenizer, embedding_weights=table)]
    if drawn.chance(0.3):
        dense = models.Dense(width, 5, activation_function=torch.nn.Tanh())
        draw_weights(drawn, dense)
        modules.append(dense)
        drawn.notes.append("Dense")
    if drawn.chance(0.5):
        modules.append(models.Normalize())
        drawn.notes.append("Normalize")
    return SentenceTransformer(modules=modules, device="cpu")


def _move_table(folder: Path) -> None:
    """Put the table into a folder of its own, as older versions do."""
    own = folder / "0_StaticEmbedding"
    own.mkdir()
    for name in ("model.safetensors", "tokenizer.json"):
        (folder / name).rename(own / name)
    path = folder / "modules.json"
    listed = json.loads(path.read_bytes())
    listed[0]["path"] = own.name
    path.write_text(json.dumps(listed))


_HEADS = (
    "two labels",
    "three labels",
    "names as classes",
    "one-vs-rest",
    "multi-output",
    "differentiable",
    "differentiable, multitarget",
    "ONNX",
    "ONNX, two labels",
    "ONNX, one-vs-rest",
)


def write_setfit(drawn: Drawn, folder: Path) -> LibraryAnswers:
    """Write a SetFit model, with its pickle and the file that is made of it."""
    kind = _HEADS[int(drawn.name[-2:]) % len(_HEADS)]
    drawn.notes.append(kind)
    body = _static_body(drawn) if drawn.chance(0.3) else _encoder_body(drawn, folder)
    model = SetFitModel(model_body=body, labels=None, normalize_embeddings=drawn.one(True, False))
    texts = draw_texts(drawn)
    _train(drawn, model, kind, model.encode(texts))
    model.save_pretrained(folder)
    loaded = SetFitModel.from_pretrained(str(folder), device="cpu")
    # In a batch, the library pools padding on the left, too.
    together = _of_labels(loaded.predict_proba(texts, batch_size=1, as_numpy=True))
    alone = [_of_labels(loaded.predict_proba([text], as_numpy=True))[0] for text in texts]
    _convert_head(model.model_head, kind, folder)
    found = _found(drawn, "labels", texts, together, alone)
    found.labels = model.labels or [str(each) for each in range(together.shape[1])]
    return found


def _of_labels(scores: NDArray[Any]) -> NDArray[Any]:
    """Return a score for each label; of `multi-output`, that of the label's second class."""
    return scores if scores.ndim == 2 else scores[..., 1]


def _encoder_body(drawn: Drawn, folder: Path) -> SentenceTransformer:
    own = Drawn(drawn.one(*_ENCODERS), 4, drawn.random.randrange(99))
    source = folder.with_name(f"{folder.name}.body")
    write(own, source)
    drawn.notes += own.notes
    body = SentenceTransformer(str(source), device="cpu")
    shutil.rmtree(source)
    return body


def _train(drawn: Drawn, model: SetFitModel, kind: str, vectors: Any) -> None:
    vectors = np.asarray(vectors)
    number = 2 if "two" in kind else 3
    if drawn.chance(0.6):
        model.labels = ["red", "green", "blue"][:number]
    order = (vectors - vectors.mean(axis=0)) @ _numbers(drawn, vectors.shape[1], number)
    best, several = order.argmax(axis=1), (order > np.median(order, axis=0)).astype(int)
    if kind.startswith("differentiable"):
        head = SetFitHead(
            vectors.shape[1],
            number,
            temperature=drawn.one(1.0, 0.5),
            multitarget="multitarget" in kind,
            device="cpu",
        )
        draw_weights(drawn, head)
        model.model_head = head
        return
    regression = LogisticRegression(C=drawn.one(1.0, 20.0))
    if "one-vs-rest" in kind:
        model.model_head = OneVsRestClassifier(regression).fit(vectors, several)
    elif kind == "multi-output":
        model.model_head = MultiOutputClassifier(regression).fit(vectors, several)
    elif kind == "names as classes":
        model.labels = ["blue", "green", "red"]
        model.model_head = regression.fit(vectors, np.array(model.labels)[best])
    else:
        best[:number] = range(number)
        model.model_head = regression.fit(vectors, best)


def _convert_head(head: Any, kind: str, folder: Path) -> None:
    """Do what the refusal of a pickle says."""
    if kind.startswith("differentiable"):
        names = ("temperature", "eps", "multitarget")
        metadata = {n: str(getattr(head, n)) for n in names}
        save_file(head.state_dict(), str(folder / "model_head.safetensors"), metadata)
    elif kind.startswith("ONNX"):
        regression = head.estimators_[0] if hasattr(head, "estimators_") else head
        vector = np.zeros((1, regression.coef_.shape[1]), dtype=np.float32)
        options = {"zipmap": False} if "one-vs-rest" in kind else {}
        graph = to_onnx(head, vector, options={id(head): options} if options else None)
        (folder / "model_head.onnx").write_bytes(graph.SerializeToString())
    else:
        skops.io.dump(head, folder / "model_head.skops")


# The modules of heads that an adapter must save, and some linear layers, where they are not BERT's.
_OF_BERT: tuple[list[str], Any] = ([], ["query", "value"])
_MODULES: dict[str, tuple[list[str], Any]] = {
    "distilbert": (["pre_classifier", "classifier"], ["q_lin", "v_lin"]),
    "modernbert": (["head", "classifier"], ["Wqkv", "Wo"]),
    "mpnet": ([], ["q", "v"]),
}


def write_peft(drawn: Drawn, folder: Path) -> LibraryAnswers:
    """Write an adapter, and its base model beside it."""
    family = drawn.one(*_ENCODERS)
    if int(drawn.name[-2:]) % 5 == _OF_SENTENCES:
        return _write_sentence_adapter(drawn, family, folder)
    task = ("SEQ_CLS", "TOKEN_CLS", "FEATURE_EXTRACTION", "")[int(drawn.name[-2:]) % 5]
    kind = {
        "SEQ_CLS": transformers.AutoModelForSequenceClassification,
        "TOKEN_CLS": transformers.AutoModelForTokenClassification,
    }.get(task, transformers.AutoModel)
    own = Drawn(family, 4, drawn.random.randrange(99))
    tokenizer = draw_tokenizer(own)
    config = draw_config(own, tokenizer)
    base = base_folder(folder)
    encoder = transformers.AutoModel.from_config(config)
    draw_weights(drawn, encoder)
    encoder.save_pretrained(base)
    tokenizer.save_pretrained(base)
    options = _lora_options(drawn, family, task)
    drawn.notes += [family, task, *(f"{name}={value}" for name, value in options.items())]
    labels = {"num_labels": 3} if task.endswith("CLS") else {}
    model = kind.from_pretrained(base, **labels)
    adapted = get_peft_model(model, LoraConfig(task_type=task or None, **options))
    _draw_adapter(drawn, adapted)
    adapted.save_pretrained(folder)
    model = PeftModel.from_pretrained(kind.from_pretrained(base, **labels), folder).eval()
    texts = [text[:40] for text in draw_texts(drawn)]
    return _ask_adapted(drawn, model, AutoTokenizer.from_pretrained(base), task, texts)


def _draw_adapter(drawn: Drawn, model: torch.nn.Module) -> None:
    """Draw weights, and make those of the adapter so small that attention stays smooth."""
    draw_weights(drawn, model)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".lora_" in name:
                weight.mul_(0.5)


def _lora_options(drawn: Drawn, family: str, task: str) -> dict[str, Any]:
    saved, targets = _MODULES.get(family, _OF_BERT)
    is_headed = task.endswith("CLS")
    if task != "TOKEN_CLS" and not (is_headed and saved):  # peft fails on its own heads
        targets = drawn.one(targets, "all-linear")
    if targets != "all-linear" and drawn.chance(0.3):
        targets = ["tok_embeddings" if family == "modernbert" else "word_embeddings", *targets]
    options: dict[str, Any] = {
        "r": drawn.one(2, 4),
        "lora_alpha": drawn.one(8, 3),
        "use_rslora": drawn.one(True, False),
        "bias": drawn.one("none", "all", "lora_only"),
        "target_modules": targets,
        "modules_to_save": saved if is_headed and saved else None,
    }
    if drawn.chance(0.3):
        options["rank_pattern"] = {r"\w+\.0\..*": 3}
        options["alpha_pattern"] = {r"\w+\.0\..*": 5}
    return options


def _write_sentence_adapter(drawn: Drawn, family: str, folder: Path) -> LibraryAnswers:
    """Write what sentence-transformers saves of a model with an adapter."""
    own = Drawn(family, 4, drawn.random.randrange(99))
    base = base_folder(folder)
    write(own, base)
    model = SentenceTransformer(str(base), device="cpu")
    _, targets = _MODULES.get(family, _OF_BERT)
    model.add_adapter(LoraConfig(r=2, lora_alpha=5, bias="all", target_modules=targets))
    _draw_adapter(drawn, model[0])
    model.save_pretrained(str(folder))
    drawn.notes += ["sentence-transformers", *own.notes]
    texts = [text[:40] for text in draw_texts(drawn)]
    vectors = SentenceTransformer(str(folder), device="cpu").encode(texts, batch_size=1)
    return _found(drawn, "vectors", texts, vectors, vectors)


def _ask_adapted(
    drawn: Drawn, model: Any, tokenizer: Any, task: str, texts: list[str]
) -> LibraryAnswers:
    if task == "TOKEN_CLS":
        merged = model.merge_and_unload()
        find: Any = pipeline(
            "token-classification",
            model=merged,
            tokenizer=tokenizer,
            device="cpu",
            aggregation_strategy="none",
        )
        given = {text: find(text) for text in texts}
        # Our entities never share a character; `train_tokenizers` makes tokens that do.
        texts = [text for text, entities in given.items() if not _overlap(entities)]
        found = _found(drawn, "tokens", texts, [], [])
        found.scores = {
            "entities": [
                [[int(e["entity"][-1]), e["start"], e["end"], float(e["score"])] for e in given[t]]
                for t in texts
            ]
        }
        return found
    lines = []
    for text in texts:
        with torch.no_grad():
            given = model(**tokenizer(text, return_tensors="pt", truncation=True))
        if task == "SEQ_CLS":
            lines.append(given.logits[0].softmax(dim=-1).numpy())
        else:
            lines.append(given.last_hidden_state[0].mean(dim=0).numpy())
    purpose = "labels" if task == "SEQ_CLS" else "vectors"
    found = _found(drawn, purpose, texts, lines, lines)
    found.labels = [f"LABEL_{place}" for place in range(3)] if task == "SEQ_CLS" else []
    return found


def _overlap(entities: Any) -> bool:
    return any(one["end"] > other["start"] for one, other in itertools.pairwise(entities))


def _found(
    drawn: Drawn, purpose: str, texts: list[str], together: Any, alone: Any
) -> LibraryAnswers:
    return LibraryAnswers(
        name=drawn.name,
        family=drawn.family,
        purpose=purpose,
        notes=[note for note in drawn.notes if note],
        texts=texts,
        versions=f"transformers {transformers.__version__}",
        scores={
            "together": np.asarray(together, dtype=float).round(6).tolist(),
            "alone": np.asarray(alone, dtype=float).round(6).tolist(),
        },
    )


_WRITERS: dict[str, Callable[[Drawn, Path], LibraryAnswers]] = {
    "model2vec": write_model2vec,
    "StaticEmbedding": write_static,
    "SetFit": write_setfit,
    "PEFT": write_peft,
}


def main() -> None:
    """Write the checkpoints of all libraries, and the answers beside them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--each", type=int, default=PER_FAMILY)
    parser.add_argument("--families", nargs="*", default=SMALL)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(given.seed)
    transformers.logging.set_verbosity_error()
    given.folder.mkdir(parents=True, exist_ok=True)
    for family in given.families:
        for number in range(given.each):
            found = _write_legal(family, number, given.seed, given.folder)
            answers_file(given.folder / found.name).write_bytes(msgspec.json.encode(found))
            sys.stdout.write(f"{found.name}: {'; '.join(found.notes)}\n")
            sys.stdout.flush()


def _write_legal(family: str, number: int, seed: int, root: Path) -> LibraryAnswers:
    """Draw until the libraries can load what they wrote; most first draws are legal."""
    for attempt in itertools.count():
        drawn = Drawn(family, number, seed + 1000 * attempt)
        drawn.name = drawn.name.lower()
        folder = root / drawn.name
        try:
            found = _WRITERS[family](drawn, folder)
            _forget_base(folder / "adapter_config.json")
        except Exception as error:  # noqa: BLE001 - an illegal draw is no checkpoint
            sys.stdout.write(f"{drawn.name}: drawn again: {error!r}"[:200] + "\n")
            for path in (folder, base_folder(folder)):
                shutil.rmtree(path, ignore_errors=True)
        else:
            return found
    raise AssertionError


def _forget_base(path: Path) -> None:
    """Name the base of an adapter as on the hub, not by its place on this machine."""
    if path.is_file():
        named = {"base_model_name_or_path": "owner/base"}
        path.write_text(json.dumps(json.loads(path.read_bytes()) | named))


if __name__ == "__main__":
    main()
