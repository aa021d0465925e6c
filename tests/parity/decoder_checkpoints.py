"""Has the reference libraries write random decoders, and answers what they answer of them.

`python -m tests.parity.decoder_checkpoints FOLDER`, where the reference libraries are installed.
Decoders are asked about odd texts, alone and in batches. They are embedders, rerankers that answer
with a word, and models with a head.
"""

import argparse
import functools
import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch
import transformers
from sentence_transformers import CrossEncoder, SentenceTransformer, models
from sentence_transformers.cross_encoder.modules import LogitScore
from tokenizers import (
    Tokenizer,
    decoders,
    models as token_models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.parity.library_answers import (
    DECODERS,
    INSTRUCTION,
    PROMPT_NAMES,
    LibraryAnswers,
    answers_file,
)
from tests.parity.library_checkpoints import Drawn, draw_weights
from tests.parity.texts import DATA, read_texts

PER_FAMILY = 10
_POSITIONS, _CUT = 320, 80
_PURPOSES = ("embed", "embed", "rank", "text", "embed", "rank", "embed", "rerank", "card", "embed")
_FIELDS = {"card": "tasks: [rerank]\n", "text": "truncate: true\n"}
_RANKED = {"rank", "rerank", "card"}
_CLASSES = {"qwen3": "Qwen3", "gemma3_text": "Gemma3Text"}
_CAUSAL = {"qwen3": "Qwen3ForCausalLM", "gemma3_text": "Gemma3ForCausalLM"}
_ENDS = {
    "qwen3": ("<|im_start|>", "<|im_end|>"),
    "gemma3_text": ("<start_of_turn>", "<end_of_turn>"),
}
_PROMPTS = {"query": "Find\nQuery:", "document": "title: none | text: ", "STS": "sts: "}
_ODD = (
    *(" leading", "trailing ", "two  spaces", "tab\there", "a\nb\n\n\nc", "a" * 200, "'"),
    *("ﬁne ligature", "e\u0301 combined", "é composed", "ZERO\u200bWIDTH", "\ufeffmark"),
    *("日本語のテキスト", "한국어", "العربية", "हिन्दी", "👩\u200d👩\u200d👧", "🇩🇪🇫🇷", "¿qué?"),
    *("don't I'LL we've", "3.14159 1,000,000", "a/b\\c|d", "<tag attr='x'>", "{braces} {}"),
    *("MiXeD CaSe", "ALL CAPS", "snake_case-kebab", "http://a.b/c?d=e#f", "\r\nwindows\r\n"),
)
_TEXTS = 56


def odd_texts(drawn: Drawn, special: list[str]) -> list[str]:
    """Return texts of many scripts and lengths, some with special tokens, and a few ordinary."""
    mixed = [f"a fine {token} film {drawn.one(*special)}{token} big" for token in special]
    long = [" ".join(read_texts()[:9]), "word " * 150]
    usual = drawn.random.sample(read_texts(), _TEXTS - len(_ODD) - len(long) - len(mixed))
    return [*_ODD, *mixed, *long, *usual]


def make_tokenizer(drawn: Drawn) -> Any:
    """Return a tokenizer of the family's class, or of the generic one."""
    start, end = _ENDS[drawn.family]
    if drawn.family == "qwen3":
        document = json.loads((DATA / "bpe-tokenizer.json").read_text(encoding="utf-8"))
        merges = [tuple(each) for each in document["model"]["merges"]]
        vocabulary = {word: n for word, n in document["model"]["vocab"].items() if n > 4}
        vocabulary = {word: n for n, word in enumerate(vocabulary)}
        made = transformers.Qwen2Tokenizer(vocab=vocabulary, merges=merges)
    else:
        trained = train_gemma()
        merges = [tuple(each) for each in trained["merges"]]
        made = transformers.GemmaTokenizer(vocab=trained["vocab"], merges=merges)
    made.add_tokens(["yes", "no"])
    made.add_special_tokens({"additional_special_tokens": [start, end]})
    made.model_max_length = _POSITIONS if drawn.purpose in _RANKED else _CUT
    made.backend_tokenizer.post_processor = drawn.one(
        _template(made, ends=True), _template(made, ends=True), _template(made, ends=False)
    )
    return made


def _template(made: Any, *, ends: bool) -> Any:
    """Return a template as published: text and end, for Gemma with a beginning, too."""
    end = (made.eos_token, made.convert_tokens_to_ids(made.eos_token))
    tokens, row = [end] if ends else [], f"$A:0 {end[0]}" if ends else "$A:0"
    if made.bos_token is not None:
        tokens.append((made.bos_token, made.convert_tokens_to_ids(made.bos_token)))
        row = f"{made.bos_token} {row}"
    pair = row.replace("$A", "$B").replace(":0", ":1")
    return processors.TemplateProcessing(single=row, pair=f"{row} {pair}", special_tokens=tokens)


@functools.cache
def train_gemma() -> dict[str, Any]:
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    tokenizer = Tokenizer(token_models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    tokenizer.decoder = decoders.Fuse()
    letters = [f"<0x{number:02X}>" for number in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=[*special, *letters], limit_alphabet=120, show_progress=False
    )
    tokenizer.train_from_iterator(
        itertools.chain.from_iterable(text.split(" ") for text in read_texts()), trainer
    )
    found: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    return found


def draw_config(drawn: Drawn, size: int, padding: int) -> Any:
    """Return a legal configuration of the family."""
    heads, shared = drawn.one((4, 2), (4, 1), (4, 4), (6, 2))
    layers = drawn.one(2, 3)
    fields: dict[str, Any] = {
        "vocab_size": size,
        "hidden_size": heads * drawn.one(3, 4),
        "num_attention_heads": heads,
        "num_key_value_heads": shared,
        "head_dim": drawn.one(8, 16),
        "intermediate_size": drawn.one(24, 32),
        "num_hidden_layers": layers,
        "max_position_embeddings": _POSITIONS,
        "rms_norm_eps": drawn.one(1e-6, 1e-2),
        "attention_bias": drawn.chance(0.3),
        "pad_token_id": padding,
        "tie_word_embeddings": drawn.chance(0.5),
        "num_labels": {"text": 3, "rerank": 1}.get(drawn.purpose, 2),
        "layer_types": [drawn.one("full_attention", "sliding_attention") for _ in range(layers)],
        "sliding_window": drawn.one(4, 9, 32),
    }
    if drawn.purpose == "text":
        fields["id2label"] = dict(enumerate(["contradiction", "neutral", "entailment"]))
        fields["label2id"] = {label: place for place, label in fields["id2label"].items()}
    plain, linear = {"rope_type": "default"}, {"rope_type": "linear", "factor": 2.0}
    if drawn.family == "qwen3":
        fields["use_sliding_window"] = True
        if drawn.chance(0.5):
            del fields["layer_types"]
            fields |= {"use_sliding_window": drawn.chance(0.5), "max_window_layers": 1}
        yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24}
        scaling = drawn.one(plain, plain, linear, yarn)
        fields["rope_parameters"] = scaling | {"rope_theta": drawn.one(1e4, 1e6)}
        fields["hidden_act"] = drawn.one("silu", "silu", "silu", "gelu")
        return transformers.Qwen3Config(**fields)
    fields["use_bidirectional_attention"] = drawn.chance(0.7)
    fields["query_pre_attn_scalar"] = drawn.one(8, 30, 256)
    fields["rope_parameters"] = {
        "full_attention": drawn.one(plain, plain, linear) | {"rope_theta": 1e6},
        "sliding_attention": plain | {"rope_theta": drawn.one(1e4, 500.0)},
    }
    fields["attention_dropout"] = 0.0
    return transformers.Gemma3TextConfig(**fields)


def write(drawn: Drawn, folder: Path) -> None:
    """Write a checkpoint as the libraries do, in float32 or bfloat16."""
    tokenizer = make_tokenizer(drawn)
    config = draw_config(drawn, len(tokenizer) + 2, tokenizer.pad_token_id)
    drawn.notes.append(drawn.purpose)
    head = {"text": "ForSequenceClassification", "rerank": "ForSequenceClassification"}
    kind: Any = getattr(transformers, f"{_CLASSES[drawn.family]}{head.get(drawn.purpose, 'Model')}")
    if drawn.purpose in {"rank", "card"} or (drawn.purpose == "embed" and drawn.chance(0.4)):
        # As published: embedders may have the class of a language model.
        kind = getattr(transformers, _CAUSAL[drawn.family])
    model = kind(config).eval()
    draw_weights(drawn, model)
    if drawn.chance(0.4):
        model = model.to(torch.bfloat16)
        drawn.notes.append("bfloat16")
    if drawn.purpose == "rank" or (drawn.family == "gemma3_text" and drawn.purpose == "card"):
        tokenizer.chat_template = chat_template(drawn)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if drawn.purpose in _FIELDS:
        (folder / "model.yaml").write_text(_FIELDS[drawn.purpose])
    elif drawn.purpose == "embed":
        _write_embedder(drawn, folder)
    elif drawn.purpose == "rank":
        _write_ranker(drawn, folder)
    _edit(drawn, folder)


def _edit(drawn: Drawn, folder: Path) -> None:
    """Change files by hand: the libraries ignore flags of templates where there is a file."""
    if drawn.chance(0.4):
        path = folder / "tokenizer_config.json"
        given = json.loads(path.read_text()) | {"padding_side": drawn.one("left", "right")}
        path.write_text(json.dumps(given | {"add_bos_token": False, "add_eos_token": False}))


def _write_embedder(drawn: Drawn, folder: Path) -> None:
    encoder = models.Transformer(
        str(folder), max_seq_length=drawn.one(40, _CUT), model_kwargs={"dtype": torch.float32}
    )
    encoder.tokenizer.chat_template = None
    width = encoder.get_embedding_dimension()
    mode = "lasttoken" if drawn.family == "qwen3" else drawn.one("mean", "mean", "lasttoken")
    modules: list[Any] = [encoder, models.Pooling(width, pooling_mode=mode)]
    drawn.notes.append(mode)
    if drawn.family == "gemma3_text":
        identity = torch.nn.Identity()
        for sizes in ((width, 20), (20, 12)):
            dense = models.Dense(*sizes, bias=False, activation_function=identity)
            draw_weights(drawn, dense)
            modules.append(dense)
    modules.append(models.Normalize())
    made = SentenceTransformer(modules=modules, device="cpu", prompts=dict(_PROMPTS))
    if drawn.chance(0.2):
        made.default_prompt_name = "STS"
        drawn.notes.append("a default prompt")
    made.save_pretrained(str(folder))


def chat_template(drawn: Drawn) -> str:
    """Return a template as rerankers have; that of Qwen3-Reranker, or another one."""
    start, end = _ENDS[drawn.family]
    taken = (
        "{{{{ messages | selectattr('role', 'eq', '{0}') | map(attribute='content') | first{1} }}}}"
    )
    usual = " | default('Given a web search query, find passages')"
    instruction = taken.format("system", usual)
    query, document = taken.format("query", ""), taken.format("document", "")
    if drawn.chance(0.5):
        return (
            f'{start}system\nThe answer can only be "yes" or "no".{end}\n{start}user\n'
            f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}{end}\n"
            f"{start}assistant\n<think>\n\n</think>\n\n\n"
        )
    return f"{start}judge: {instruction}\n\nq: {query}\n\nd: {document}{end}\n"


def _write_ranker(drawn: Drawn, folder: Path) -> None:
    encoder = models.Transformer(
        str(folder), transformer_task="text-generation", model_kwargs={"dtype": torch.float32}
    )
    ids = [encoder.tokenizer.convert_tokens_to_ids(word) for word in ("yes", "no")]
    words = LogitScore(ids[0], drawn.one(ids[1], ids[1], None))
    given: dict[str, Any] = {}
    if drawn.chance(0.3):
        given = {"prompts": {"query": "Judge by the place"}, "default_prompt_name": "query"}
        drawn.notes.append("an own instruction")
    CrossEncoder(modules=[encoder, words], device="cpu", **given).save_pretrained(str(folder))


def _embed(found: LibraryAnswers, folder: Path) -> None:
    model = SentenceTransformer(
        str(folder), device="cpu", model_kwargs={"dtype": torch.float32}
    ).eval()
    for name in (None, *PROMPT_NAMES):
        alone = model.encode(found.texts, batch_size=1, prompt_name=name)
        found.scores[f"embedding {name or ''}".strip()] = alone.round(5).tolist()
    batched = model.encode(found.texts, batch_size=8)
    found.scores["embedding batched"] = batched.round(5).tolist()


def _rank(found: LibraryAnswers, folder: Path) -> None:
    model = CrossEncoder(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})
    asked = [(found.texts[0], text) for text in found.texts]
    found.scores["rerank"] = model.predict(asked, batch_size=1).tolist()
    found.scores["rerank batched"] = model.predict(asked, batch_size=8).tolist()
    if found.purpose == "rank":
        told = model.predict(asked, batch_size=1, prompt=INSTRUCTION)
        found.scores["rerank instructed"] = told.tolist()


def _card(found: LibraryAnswers, folder: Path) -> None:
    """Answer as the model card of Qwen3-Reranker-0.6B does."""
    if found.family != "qwen3":
        _rank(found, folder)
        return
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    start, end = _ENDS["qwen3"]
    before = (
        f"{start}system\nJudge whether the Document meets the requirements based on the Query and "
        f'the Instruct provided. Note that the answer can only be "yes" or "no".{end}\n'
        f"{start}user\n"
    )
    after = f"{end}\n{start}assistant\n<think>\n\n</think>\n\n"
    first, last = (tokenizer.encode(text, add_special_tokens=False) for text in (before, after))
    words = [tokenizer.convert_tokens_to_ids(word) for word in ("no", "yes")]
    usual = "Given a web search query, retrieve relevant passages that answer the query"
    for name, instruction in (("rerank", usual), ("rerank instructed", INSTRUCTION)):
        lines = []
        for text in found.texts:
            given = f"<Instruct>: {instruction}\n<Query>: {found.texts[0]}\n<Document>: {text}"
            ids = first + tokenizer.encode(given, add_special_tokens=False) + last
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([ids])).logits[0, -1, words]
            lines.append(float(logits.softmax(dim=-1)[1]))
        found.scores[name] = lines


def _text(found: LibraryAnswers, folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    kind = transformers.AutoModelForSequenceClassification
    model = kind.from_pretrained(folder, dtype=torch.float32).eval()
    found.labels = [model.config.id2label[place] for place in range(3)]
    lines = []
    for text in found.texts:
        given = tokenizer(text, truncation=True, max_length=_CUT, return_tensors="pt")
        with torch.no_grad():
            lines.append(model(**given).logits[0].softmax(dim=-1).tolist())
    found.scores["single"] = lines


_ANSWERS: dict[str, Callable[[LibraryAnswers, Path], None]] = {
    "embed": _embed,
    "rank": _rank,
    "rerank": _rank,
    "card": _card,
    "text": _text,
}


def answer(drawn: Drawn, folder: Path) -> LibraryAnswers:
    """Return what the libraries answer of a folder, or how they fail on it."""
    document = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    special = [token["content"] for token in document["added_tokens"] if token["special"]]
    texts = odd_texts(drawn, special)
    if drawn.purpose in _RANKED:
        # Texts that are cut are compared only by embedders: libraries cut pairs in other ways.
        texts = [text if len(text) < _CUT // 2 else text[: _CUT // 4] for text in texts]
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


def main() -> None:
    """Write the checkpoints of both families, and the answers beside them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--each", type=int, default=PER_FAMILY)
    parser.add_argument("--families", nargs="*", default=DECODERS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for family in given.families:
        for number in range(given.each):
            drawn = Drawn(family, number, given.seed)
            drawn.purpose = _PURPOSES[number % len(_PURPOSES)]
            folder = given.folder / drawn.name
            write(drawn, folder)
            found = answer(drawn, folder)
            answers_file(folder).write_bytes(msgspec.json.encode(found))
            sys.stdout.write(f"{drawn.name}: {'; '.join(drawn.notes)}: {found.failure or 'ok'}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
