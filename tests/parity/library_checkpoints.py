"""Has the reference libraries write random checkpoints, and answers what they answer of them.

`python -m tests.parity.library_checkpoints FOLDER`, where the reference libraries are installed.
Each is written by `save_pretrained`, with a legal configuration, a class of tokenizer and options
drawn by a seed; some are then trimmed by hand as published ones are: absent defaults, no list of
inputs, options that `tokenizer.json` does not have. What the libraries then load is what is right.
"""

import argparse
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import transformers
from sentence_transformers import CrossEncoder, SentenceTransformer, models
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoTokenizer, pipeline

from tests.parity.library_answers import (
    CANDIDATES,
    ENCODERS,
    TEMPLATE,
    LibraryAnswers,
    answers_file,
)
from tests.parity.texts import DATA

PER_FAMILY = 30
_SPREAD = 0.35
# Weights in these steps are small in a compressed file.
_STEP = 1 / 64
_POSITIONS = 64
_CLASSES = {
    "bert": "Bert",
    "distilbert": "DistilBert",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "mpnet": "MPNet",
    "electra": "Electra",
    "albert": "Albert",
    "deberta-v2": "DebertaV2",
    "modernbert": "ModernBert",
}
_OWN_TOKENIZERS = {
    "bert": "BertTokenizer",
    "distilbert": "DistilBertTokenizer",
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "mpnet": "MPNetTokenizer",
    "electra": "ElectraTokenizer",
    "albert": "AlbertTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    "modernbert": "TokenizersBackend",
}
_FILES = {
    "BertTokenizer": "wordpiece",
    "DistilBertTokenizer": "wordpiece",
    "ElectraTokenizer": "wordpiece",
    "MPNetTokenizer": "wordpiece",
    "RobertaTokenizer": "bpe",
    "XLMRobertaTokenizer": "unigram",
    "AlbertTokenizer": "unigram",
    "DebertaV2Tokenizer": "unigram",
}
_HEADS = {
    "text": "ForSequenceClassification",
    "rerank": "ForSequenceClassification",
    "tokens": "ForTokenClassification",
    "choice": "ForMultipleChoice",
    "embed": "Model",
}
_ANGLED = {"bos": "<s>", "eos": "</s>", "sep": "</s>", "cls": "<s>", "pad": "<pad>"}
_BRACKETED = {"sep": "[SEP]", "cls": "[CLS]", "pad": "[PAD]", "unk": "[UNK]", "mask": "[MASK]"}
_PLAIN = (
    "Paris is big",
    "The Café in São Paulo  was   closed.",
    "中文 text, and ``quotes'' here!",
    "HELLO world",
    "tabs\tand\nlines",
    "Größe & naïveté 😀 42",
)


class Drawn:
    """Holds what one checkpoint is made of; every choice is drawn from its seed."""

    def __init__(self, family: str, number: int, seed: int) -> None:
        self.family = family
        self.name = f"{family}-{number:02}"
        self.random = random.Random(f"{seed} {self.name}")
        self.purpose = ("text", "rerank", "tokens", "choice", "embed")[number % 5]
        self.notes: list[str] = []

    def one(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def chance(self, share: float) -> bool:
        return self.random.random() < share


def draw_tokenizer(drawn: Drawn) -> Any:
    """Return a tokenizer of the family's class, of the generic one, or of another class."""
    own = _OWN_TOKENIZERS[drawn.family]
    kind = drawn.one(own, own, own, "TokenizersBackend", drawn.one(*_FILES))
    file = _FILES.get(kind) or _FILES.get(own) or "wordpiece"
    drawn.notes.append(kind)
    document = json.loads((DATA / f"{file}-tokenizer.json").read_text(encoding="utf-8"))
    special = _special(document)
    if drawn.chance(0.3):
        # Some roles are then played by words of the vocabulary, or by none.
        document["added_tokens"] = document["added_tokens"][: drawn.one(3, 5)]
    if kind == "TokenizersBackend":
        document["post_processor"] = drawn.one(
            document["post_processor"], document["post_processor"], None, _template(document)
        )
        made = transformers.PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer.from_str(json.dumps(document)), **special
        )
        if drawn.chance(0.3):
            made.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
        return made
    return _of_class(drawn, kind, document, special)


def _template(document: dict[str, Any]) -> dict[str, Any]:
    """Return a template that ends texts otherwise than any class does."""
    end = document["added_tokens"][2]
    part = {"SpecialToken": {"id": end["content"], "type_id": 1}}
    first, second = ({"Sequence": {"id": each, "type_id": 0}} for each in "AB")
    known = {"id": end["content"], "ids": [end["id"]], "tokens": [end["content"]]}
    return {
        "type": "TemplateProcessing",
        "single": [first, {"SpecialToken": {"id": end["content"], "type_id": 0}}],
        "pair": [first, part, second, part],
        "special_tokens": {end["content"]: known},
    }


def _special(document: dict[str, Any]) -> dict[str, str]:
    known = {token["content"] for token in document["added_tokens"]}
    named = _BRACKETED if "[PAD]" in known else {**_ANGLED, "unk": "<unk>", "mask": "<mask>"}
    return {f"{role}_token": token for role, token in named.items() if token in known}


def _of_class(drawn: Drawn, kind: str, document: dict[str, Any], special: dict[str, str]) -> Any:
    vocabulary = document["model"]["vocab"]
    options: dict[str, Any] = {}
    if kind in {"BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MPNetTokenizer"}:
        options = {
            "do_lower_case": drawn.one(True, False),
            "strip_accents": drawn.one(None, True, False),
            "tokenize_chinese_chars": drawn.one(True, False),
        }
        if kind == "MPNetTokenizer":
            special = {f"{role}_token": token for role, token in _BRACKETED.items()}
            special |= {"bos_token": "[CLS]", "eos_token": "[SEP]"}
    elif kind == "RobertaTokenizer":
        merges = [tuple(each) for each in document["model"]["merges"]]
        options = {"merges": merges, "add_prefix_space": drawn.one(True, False)}
    else:
        vocabulary = [tuple(each) for each in vocabulary]
        options = {"add_prefix_space": drawn.one(True, False)}
        if kind == "AlbertTokenizer":
            options["do_lower_case"] = drawn.one(True, False)
            options["keep_accents"] = drawn.one(True, False)
        if kind == "DebertaV2Tokenizer":
            options["do_lower_case"] = drawn.one(True, False)
            options["split_by_punct"] = drawn.one(True, False)
        special = {**special, "bos_token": "[CLS]", "eos_token": "[SEP]"}
    if drawn.chance(0.2):
        options["extra_special_tokens"] = ["<own>"]
    made = getattr(transformers, kind)(vocab=vocabulary, **special, **options)
    made.model_max_length = _POSITIONS - 4
    return made


def draw_config(drawn: Drawn, tokenizer: Any) -> Any:
    """Return a legal configuration of the family."""
    family, labels = drawn.family, {"rerank": 1, "choice": 1, "tokens": 4}.get(drawn.purpose, 3)
    hidden, heads = drawn.one((16, 2), (16, 4), (24, 3))
    padding = tokenizer.pad_token_id
    fields: dict[str, Any] = {
        # Some tokens are added by hand.
        "vocab_size": len(tokenizer) + 4,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_hidden_layers": drawn.one(1, 2),
        "intermediate_size": drawn.one(24, 32),
        "max_position_embeddings": _POSITIONS,
        "num_labels": labels,
    }
    if drawn.purpose == "text":
        fields["id2label"] = dict(enumerate(["contradiction", "neutral", "entailment"]))
        fields["label2id"] = {label: place for place, label in fields["id2label"].items()}
        fields["problem_type"] = drawn.one(None, None, "multi_label_classification")
    if drawn.chance(0.6) and padding is not None:
        fields["pad_token_id"] = padding
    if family not in {"distilbert", "mpnet", "modernbert"}:
        fields["type_vocab_size"] = drawn.one(1, 2, 2, 3)
        fields["layer_norm_eps"] = drawn.one(1e-12, 1e-5, 1e-2)
    if family not in {"distilbert", "modernbert"}:
        fields["hidden_act"] = drawn.one(*["gelu"] * 6, *["gelu_new"] * 3, "relu")
    if family in _OWN_FIELDS:
        fields.update(_OWN_FIELDS[family](drawn, fields, padding))
    return getattr(transformers, f"{_CLASSES[family]}Config")(**fields)


def _distilbert_fields(drawn: Drawn, fields: dict[str, Any], _: int | None) -> dict[str, Any]:
    sizes = {"dim": "hidden_size", "n_heads": "num_attention_heads"}
    sizes |= {"n_layers": "num_hidden_layers", "hidden_dim": "intermediate_size"}
    own = {ours: fields.pop(theirs) for ours, theirs in sizes.items()}
    return own | {"activation": drawn.one(*["gelu"] * 9, "relu")}


def _electra_fields(drawn: Drawn, fields: dict[str, Any], _: int | None) -> dict[str, Any]:
    return {"embedding_size": drawn.one(8, fields["hidden_size"])}


def _albert_fields(drawn: Drawn, _: dict[str, Any], __: int | None) -> dict[str, Any]:
    return {"embedding_size": 8, "inner_group_num": drawn.one(1, 2)}


def _deberta_fields(drawn: Drawn, fields: dict[str, Any], _: int | None) -> dict[str, Any]:
    return {
        "hidden_act": drawn.one(*["gelu"] * 9, "gelu_new"),
        "type_vocab_size": drawn.one(0, fields["type_vocab_size"]),
        "relative_attention": drawn.one(True, True, False),
        "position_buckets": drawn.one(-1, 4, 16),
        "pos_att_type": drawn.one(["p2c", "c2p"], ["c2p"], ["p2c"], "c2p|p2c"),
        "share_att_key": drawn.one(True, False),
        "norm_rel_ebd": drawn.one("layer_norm", "none"),
        "position_biased_input": drawn.one(True, False),
        "pooler_hidden_size": fields["hidden_size"],
    }


def _modernbert_fields(drawn: Drawn, fields: dict[str, Any], padding: int | None) -> dict[str, Any]:
    biases = ("norm_bias", "mlp_bias", "attention_bias", "classifier_bias")
    absent = ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")
    return {
        "pad_token_id": padding or 0,
        "norm_eps": drawn.one(1e-5, 1e-2),
        "local_attention": drawn.one(4, 8, 128),
        "layer_types": [
            drawn.one("full_attention", "sliding_attention")
            for _ in range(fields["num_hidden_layers"])
        ],
        "classifier_pooling": drawn.one("cls", "mean"),
        **{name: drawn.one(True, False) for name in biases},
        **dict.fromkeys(absent),
    }


_OWN_FIELDS: dict[str, Callable[[Drawn, dict[str, Any], int | None], dict[str, Any]]] = {
    "distilbert": _distilbert_fields,
    "electra": _electra_fields,
    "albert": _albert_fields,
    "deberta-v2": _deberta_fields,
    "modernbert": _modernbert_fields,
}


def draw_weights(drawn: Drawn, model: torch.nn.Module) -> None:
    """Make weights that differ visibly, those of the padding too."""
    generator = np.random.default_rng([ord(letter) for letter in drawn.name])
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = generator.standard_normal(tuple(weight.shape)) * _SPREAD
            centre = 1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0
            steps = np.round((centre + noise) / _STEP) * _STEP
            weight.copy_(torch.from_numpy(steps.astype(np.float32)))


def write(drawn: Drawn, folder: Path) -> None:
    """Write a checkpoint as the libraries do, and trim some of it."""
    tokenizer = draw_tokenizer(drawn)
    config = draw_config(drawn, tokenizer)
    drawn.notes.append(drawn.purpose)
    kind = getattr(transformers, f"{_CLASSES[drawn.family]}{_HEADS[drawn.purpose]}")
    model = kind(config).eval()
    draw_weights(drawn, model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if drawn.purpose == "embed":
        _write_sentence(drawn, folder)
    elif drawn.purpose == "rerank" and drawn.chance(0.5):
        CrossEncoder(str(folder), device="cpu", max_length=_POSITIONS - 4).save_pretrained(
            str(folder)
        )
    _trim(drawn, folder, tokenizer)


def _write_sentence(drawn: Drawn, folder: Path) -> None:
    encoder = models.Transformer(str(folder), max_seq_length=drawn.one(16, _POSITIONS - 4))
    width = encoder.get_embedding_dimension()
    modes = ("mean", "cls", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
    modules: list[Any] = [encoder, models.Pooling(width, pooling_mode=drawn.one(*modes))]
    if drawn.chance(0.3):
        dense = models.Dense(
            width, 8, activation_function=drawn.one(torch.nn.Tanh(), torch.nn.GELU())
        )
        draw_weights(drawn, dense)
        modules.append(dense)
    if drawn.chance(0.4):
        modules.append(models.Normalize())
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(folder))


def _trim(drawn: Drawn, folder: Path, tokenizer: Any) -> None:
    """Change files by hand, as publishers do."""
    if drawn.chance(0.5):
        path = folder / "config.json"
        config = json.loads(path.read_text())
        default = type(AutoConfig.for_model(drawn.family))().to_dict()
        kept = {"model_type", "architectures", "id2label", "label2id", "num_labels"}
        trimmed = {n: v for n, v in config.items() if n in kept or default.get(n, ...) != v}
        path.write_text(json.dumps(trimmed))
        drawn.notes.append("trimmed config")
    path = folder / "tokenizer_config.json"
    given = json.loads(path.read_text())
    changes: dict[str, Any] = {}
    edits: list[Callable[[], None]] = [
        lambda: changes.update(split_special_tokens=True),
        lambda: changes.update(add_prefix_space=drawn.one(True, False)),
        lambda: changes.update(do_lower_case=drawn.one(True, False)),
        lambda: changes.update(strip_accents=drawn.one(True, False)),
        lambda: changes.update(tokenize_chinese_chars=False),
        lambda: changes.update(
            model_input_names=drawn.one(
                ["input_ids", "attention_mask"], ["input_ids", "token_type_ids", "attention_mask"]
            )
        ),
        lambda: changes.update(model_input_names=...),
        lambda: changes.update(added_tokens_decoder=...),
        lambda: changes.update(tokenizer_class=...),
        lambda: changes.update(tokenizer_class="PreTrainedTokenizerFast"),
        lambda: changes.update(extra_special_tokens=["big"]),
        lambda: changes.update(padding_side="left"),
        lambda: changes.update(cls_token="big", sep_token="text"),
    ]
    if drawn.chance(0.6):
        for edit in drawn.random.sample(edits, drawn.one(1, 1, 2)):
            edit()
        shown = ", ".join(f"{n}={'absent' if v is ... else v}" for n, v in changes.items())
        drawn.notes.append(shown)
    merged = {**given, **changes}
    path.write_text(json.dumps({n: v for n, v in merged.items() if v is not ...}))
    if drawn.chance(0.08):
        path.unlink()
        drawn.notes.append("no tokenizer_config.json")


def draw_texts(drawn: Drawn, folder: Path) -> list[str]:
    """Return texts, most with special tokens of the tokenizer in them."""
    document = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    special = [token["content"] for token in document["added_tokens"] if token["special"]]
    texts = [*drawn.random.sample(_PLAIN, 4), "x [PAD][PAD] y", "x <pad><pad> y"]
    for token in special:
        other = drawn.random.choice(special)
        texts.append(f"a fine {token} film {other}{token} big")
    texts.append("".join(special) or "end")
    return texts


def answer(drawn: Drawn, folder: Path, texts: list[str]) -> LibraryAnswers:
    """Return what the libraries answer of a folder, or how they fail on it."""
    found = LibraryAnswers(
        name=drawn.name,
        family=drawn.family,
        purpose=drawn.purpose,
        notes=drawn.notes,
        texts=texts,
        versions=f"transformers {transformers.__version__}",
    )
    try:
        _ANSWERS[drawn.purpose](found, folder)
    except Exception as error:  # noqa: BLE001 - whatever they raise is their answer
        found.scores = {}
        found.failure = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
    return found


def _pairs(texts: list[str]) -> list[tuple[str, str]]:
    return [(text, texts[(place + 1) % len(texts)]) for place, text in enumerate(texts)]


def _text(found: LibraryAnswers, folder: Path) -> None:
    classify: Any = pipeline("text-classification", model=str(folder), device="cpu")
    names = list(classify.model.config.id2label.values())

    def scores(item: Any) -> list[float]:
        lines = {each["label"]: each["score"] for each in classify(item, top_k=None)}
        return [lines[name] for name in names]

    found.labels = names
    found.scores["single"] = [scores(text) for text in found.texts]
    both = [{"text": first, "text_pair": second} for first, second in _pairs(found.texts)]
    found.scores["pair"] = [scores(pair) for pair in both]
    ask: Any = pipeline("zero-shot-classification", model=str(folder), device="cpu")
    lines = []
    for text in found.texts:
        given = ask(text, CANDIDATES, hypothesis_template=TEMPLATE)
        by_label = dict(zip(given["labels"], given["scores"], strict=True))
        lines.append([by_label[label] for label in CANDIDATES])
    found.scores["zero-shot"] = lines


def _tokens(found: LibraryAnswers, folder: Path) -> None:
    find: Any = pipeline(
        "token-classification", model=str(folder), device="cpu", aggregation_strategy="none"
    )
    found.scores["entities"] = [
        [[int(e["entity"][-1]), e["start"], e["end"], float(e["score"])] for e in find(text)]
        for text in found.texts
    ]


def _choice(found: LibraryAnswers, folder: Path) -> None:
    model = transformers.AutoModelForMultipleChoice.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    lines = []
    for text in found.texts:
        logits = []
        for option in found.texts[:3]:
            encoded = tokenizer(text, option, return_tensors="pt")
            with torch.no_grad():
                given = {name: tensor[None] for name, tensor in encoded.items()}
                logits.append(model(**given).logits[0, 0])
        lines.append(torch.stack(logits).softmax(dim=-1).tolist())
    found.scores["choice"] = lines


def _embed(found: LibraryAnswers, folder: Path) -> None:
    model = SentenceTransformer(str(folder), device="cpu")
    vectors = model.encode(found.texts, batch_size=1, normalize_embeddings=True)
    found.scores["embedding"] = vectors.tolist()


def _rerank(found: LibraryAnswers, folder: Path) -> None:
    model = CrossEncoder(str(folder), device="cpu")
    asked = [(found.texts[0], text) for text in found.texts]
    found.scores["rerank"] = model.predict(asked, batch_size=1).tolist()


_ANSWERS: dict[str, Callable[[LibraryAnswers, Path], None]] = {
    "text": _text,
    "tokens": _tokens,
    "choice": _choice,
    "embed": _embed,
    "rerank": _rerank,
}


def main() -> None:
    """Write the checkpoints of all families, and the answers beside them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--each", type=int, default=PER_FAMILY)
    parser.add_argument("--families", nargs="*", default=ENCODERS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for family in given.families:
        for number in range(given.each):
            drawn = Drawn(family, number, given.seed)
            folder = given.folder / drawn.name
            try:
                write(drawn, folder)
            except Exception as error:  # noqa: BLE001 - an illegal draw is no checkpoint
                sys.stdout.write(f"{drawn.name}: not written: {error!r}"[:200] + "\n")
                continue
            found = answer(drawn, folder, draw_texts(drawn, folder))
            answers_file(folder).write_bytes(msgspec.json.encode(found))
            sys.stdout.write(f"{drawn.name}: {'; '.join(drawn.notes)}: {found.failure or 'ok'}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
