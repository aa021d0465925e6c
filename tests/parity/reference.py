"""Runs the reference libraries and stores their answers: `python -m tests.parity.reference`.

Runs where torch is installed (`make parity`), never in `make test`.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from transformers import (
    AutoModelForMultipleChoice,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    pipeline,
)

from sluicegate.backends.model_tools.demo.source import find_source
from tests.parity.checkpoints import MAX_TOKENS, Checkpoint, all_checkpoints, write_checkpoint
from tests.parity.references import AGGREGATIONS, Entity, References, reference_file
from tests.parity.sentence_reference import record_sentences
from tests.parity.texts import LABELS, TEMPLATE, pairs, questions, read_texts, searches

_CLASSES = {
    "tokens": AutoModelForTokenClassification,
    "choice": AutoModelForMultipleChoice,
}


def main() -> None:
    """Answer every task on every checkpoint, or on those that are named."""
    torch.set_num_threads(1)
    texts = read_texts()
    with tempfile.TemporaryDirectory() as folder:
        for checkpoint in all_checkpoints():
            if checkpoint.purpose == "answer":
                continue  # another release answers: see `answer_reference`
            if sys.argv[1:] and checkpoint.name not in sys.argv[1:]:
                continue
            path = write_checkpoint(checkpoint, Path(folder) / checkpoint.name)
            references = _answer(checkpoint, path, checkpoint.choose(texts))
            references.write(reference_file(checkpoint.name))
            sys.stdout.write(f"{checkpoint.name}: logits spread by {references.spread:.2f}\n")
    minilm = References()
    _embed(minilm, find_source(), texts)
    minilm.write(reference_file("minilm"))
    record_sentences()


def _answer(checkpoint: Checkpoint, path: Path, texts: list[str]) -> References:
    found = References()
    purpose = checkpoint.purpose
    if purpose in {"embed", "embed-cls"}:
        _embed(found, path, texts)
    elif purpose == "cross":
        _rank(found, path, texts)
    else:
        kind: Any = _CLASSES.get(purpose, AutoModelForSequenceClassification)
        model, loading = kind.from_pretrained(path, output_loading_info=True)
        # A weight that is not found is made at random, with no more than a warning.
        assert not loading["missing_keys"], loading
        tokenizer = AutoTokenizer.from_pretrained(path)
        if purpose == "tokens":
            _find_entities(found, model.eval(), tokenizer, texts)
        elif purpose == "choice":
            _choose(found, model.eval(), tokenizer, texts)
        else:
            _classify(found, model.eval(), tokenizer, texts, zero_shot=purpose == "text")
    return found


def _classify(
    found: References, model: Any, tokenizer: Any, texts: list[str], *, zero_shot: bool
) -> None:
    classify: Any = pipeline("text-classification", model=model, tokenizer=tokenizer)
    names = [model.config.id2label[place] for place in range(model.config.num_labels)]

    def scores(item: Any, function: str | None = None) -> list[float]:
        answer = classify(item, top_k=None, truncation=True, function_to_apply=function)
        by_label = {label["label"]: label["score"] for label in answer}
        return [by_label[name] for name in names]

    paired = [{"text": first, "text_pair": second} for first, second in pairs(texts)]
    found.scores["single"] = np.array([scores(text) for text in texts])
    found.scores["pair"] = np.array([scores(pair) for pair in paired])
    found.spread = float(np.array([scores(text, "none") for text in texts]).std(axis=0).min())
    if not zero_shot:
        return
    ask: Any = pipeline("zero-shot-classification", model=model, tokenizer=tokenizer)
    for task, several in (("zero-shot", False), ("zero-shot-multi", True)):
        lines = []
        for text in texts:
            answer = ask(text, LABELS, hypothesis_template=TEMPLATE, multi_label=several)
            by_label = dict(zip(answer["labels"], answer["scores"], strict=True))
            lines.append([by_label[label] for label in LABELS])
        found.scores[task] = np.array(lines)


def _find_entities(found: References, model: Any, tokenizer: Any, texts: list[str]) -> None:
    for aggregation in AGGREGATIONS:
        find: Any = pipeline(
            "token-classification",
            model=model,
            tokenizer=tokenizer,
            aggregation_strategy=aggregation,
        )
        found.entities[aggregation] = [
            Entity(
                text=place,
                label=entity.get("entity_group", entity.get("entity")),
                start=entity["start"],
                end=entity["end"],
                score=float(entity["score"]),
            )
            for place, text in enumerate(texts)
            for entity in find(text)
        ]
    with torch.no_grad():
        logits = [
            model(**tokenizer(text, truncation=True, return_tensors="pt")).logits[0]
            for text in texts
        ]
    found.spread = float(torch.cat(logits).std(dim=0).min())


def _choose(found: References, model: Any, tokenizer: Any, texts: list[str]) -> None:
    lines = []
    for prompt, choices in questions(texts):
        encoded = tokenizer(
            [prompt] * len(choices), choices, truncation=True, padding=True, return_tensors="pt"
        )
        with torch.no_grad():
            logits = model(**{name: tensor[None] for name, tensor in encoded.items()}).logits[0]
        lines.append(logits)
    logits = torch.stack(lines)
    found.spread = float(logits.std())
    found.scores["choice"] = logits.softmax(dim=-1).numpy()


def _embed(found: References, path: Path, texts: list[str]) -> None:
    model = SentenceTransformer(str(path), device="cpu")
    found.scores["embedding"] = model.encode(texts, normalize_embeddings=True)


def _rank(found: References, path: Path, texts: list[str]) -> None:
    model = CrossEncoder(str(path), device="cpu", max_length=MAX_TOKENS)
    asked = [(query, document) for query, documents in searches(texts) for document in documents]
    found.scores["rerank"] = model.predict(asked)
    logits = model.predict(asked, activation_fn=torch.nn.Identity())
    found.spread = float(np.std(logits))


if __name__ == "__main__":
    main()
