"""Has `gliner2` write random checkpoints, and records what it finds with them.

`python -m tests.parity.gliner2_checkpoints FOLDER`, where `gliner2` is installed.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import torch
import transformers
from gliner2 import GLiNER2
from gliner2.configuration import ExtractorConfig

from tests.parity.gliner_answers import (
    Asked,
    Found,
    GlinerAnswers,
    Related,
    answers_file,
    descriptions,
)
from tests.parity.gliner_draws import (
    CHECKPOINTS,
    Drawn,
    draw_encoder,
    draw_questions,
    draw_weights,
    odd_texts,
    write_tokenizer,
)

# The name that an imported model has for the labels of a text.
_TASK = "category"
DESCRIBED = 16
_COUNTING = ("count_lstm_v2", "count_lstm", "count_lstm_v2", "count_lstm_moe")


def write(drawn: Drawn, number: int, folder: Path) -> None:
    """Write a checkpoint as `gliner2` does."""
    with tempfile.TemporaryDirectory() as place:
        backbone = Path(place)
        write_tokenizer(drawn, backbone)
        own = draw_encoder(drawn)
        encoder = transformers.AutoConfig.for_model(own.pop("model_type"), **own)
        encoder.save_pretrained(backbone)
        config = ExtractorConfig(
            model_name=str(backbone),
            max_width=drawn.one(1, 3, 8, 8, 12),
            counting_layer=_COUNTING[number % len(_COUNTING)],
        )
        model = GLiNER2(config, encoder_config=encoder)
        draw_weights(drawn, model)
        with torch.no_grad():
            # A count of 0 hides all spans of a row, so few checkpoints may predict it.
            model.count_pred[-1].bias[0] = drawn.one(-30.0, -30.0, -30.0, 0.0)
        model.config.model_name = "random"
        model.save_pretrained(str(folder))


def answer(folder: Path, asked: list[Asked]) -> GlinerAnswers:
    """Return what is found for each question, asked alone and in batches."""
    model = GLiNER2.from_pretrained(str(folder))
    found: dict[int, tuple[list[list[Found]], list[list[float]], list[list[Related]]]] = {}
    for size in (1, 8):
        parts = [asked[start : start + size] for start in range(0, len(asked), size)]
        found[size] = (
            [entities for part in parts for entities in _entities(model, part)],
            [scores for part in parts for scores in _scores(model, part)],
            [relations for part in parts for relations in _relations(model, part)],
        )
    return GlinerAnswers(
        asked=asked,
        alone=found[1][0],
        batched=found[8][0],
        scores=found[1][1],
        batched_scores=found[8][1],
        relations=found[1][2],
        batched_relations=found[8][2],
        described=[_described(model, each) for each in asked[:DESCRIBED]],
        described_relations=[_described_relations(model, each) for each in asked[:DESCRIBED]],
    )


def _entities(model: Any, asked: list[Asked]) -> list[list[Found]]:
    """Return the entities of questions that one batch answers."""
    schemas = [
        model.create_schema().entities(each.labels, threshold=each.threshold) for each in asked
    ]
    flat, nested = (
        model.batch_extract(
            [each.text for each in asked],
            schemas,
            include_confidence=True,
            include_spans=True,
            overlap_policy=policy,
        )
        for policy in (None, "nested")
    )
    return [
        _merged((one if each.flat else other)["entities"] or {}, each.text)
        for each, one, other in zip(asked, flat, nested, strict=True)
    ]


def _merged(entities: dict[str, list[dict[str, Any]]], text: str) -> list[Found]:
    """Return the entities of all labels in the order of the text.

    Leave out the full stop that `gliner2` puts after a text.
    """
    spans = [(label, span) for label, spans in entities.items() for span in spans]
    found: dict[tuple[str, int, int], float] = {}
    for label, span in sorted(spans, key=lambda each: (each[1]["start"], each[1]["end"])):
        place = (label, span["start"], min(span["end"], len(text)))
        if place[1] < place[2]:
            found[place] = max(span["confidence"], found.get(place, 0.0))
    return [(*place, score) for place, score in found.items()]


def _relations(model: Any, asked: list[Asked]) -> list[list[Related]]:
    """Return the relations of questions that one batch answers, as `extract_relations` does."""
    schemas = [
        model.create_schema().relations(each.labels, threshold=each.threshold) for each in asked
    ]
    found = model.batch_extract(
        [each.text for each in asked], schemas, include_confidence=True, include_spans=True
    )
    return [
        _related(each["relation_extraction"], question)
        for each, question in zip(found, asked, strict=True)
    ]


def _related(relations: dict[str, list[dict[str, Any]]], asked: Asked) -> list[Related]:
    """Return the relations of all types, each once: the one with the highest score.

    Leave out the full stop that `gliner2` puts after a text.
    """
    found: dict[tuple[str, int, int, int, int], tuple[float, float]] = {}
    for label in asked.labels:
        for relation in relations[label]:
            ends = [relation["head"], relation["tail"]]
            spans = [(each["start"], min(each["end"], len(asked.text))) for each in ends]
            if all(start < end for start, end in spans):
                place = (label, *spans[0], *spans[1])
                scores = (ends[0]["confidence"], ends[1]["confidence"])
                if max(scores) > max(found.get(place, (-1.0,))):
                    found[place] = scores
    return [(*place[:3], scores[0], *place[3:], scores[1]) for place, scores in found.items()]


def _described(model: Any, asked: Asked) -> list[Found]:
    """Return the entities of a question with descriptions."""
    found = model.extract(
        asked.text,
        model.create_schema().entities(_with_descriptions(asked), threshold=asked.threshold),
        include_confidence=True,
        include_spans=True,
        overlap_policy=None if asked.flat else "nested",
    )
    return _merged(found["entities"] or {}, asked.text)


def _described_relations(model: Any, asked: Asked) -> list[Related]:
    """Return the relations of a question with descriptions.

    `gliner2` names a relation with its description, and forgets its own threshold.
    """
    given = _with_descriptions(asked)
    found = model.extract(
        asked.text,
        model.create_schema().relations(given),
        asked.threshold,
        include_confidence=True,
        include_spans=True,
    )
    names = {
        label: f"{label}: {config['description']}" if config else label
        for label, config in given.items()
    }
    relations = found["relation_extraction"]
    return _related({label: relations.get(name, []) for label, name in names.items()}, asked)


def _with_descriptions(asked: Asked) -> dict[str, dict[str, str]]:
    described = descriptions(asked)
    return {
        label: {"description": described[label]} if label in described else {}
        for label in asked.labels
    }


def _scores(model: Any, asked: list[Asked]) -> list[list[float]]:
    """Return the score of each label for the texts of questions that one batch answers."""
    schemas = [
        model.create_schema().classification(
            _TASK,
            each.labels,
            multi_label=True,
            cls_threshold=0.0,
            class_act="sigmoid" if each.multi_label else "softmax",
        )
        for each in asked
    ]
    found = model.batch_extract([each.text for each in asked], schemas, include_confidence=True)
    return [[label["confidence"] for label in each[_TASK]] for each in found]


def main() -> None:
    """Write the checkpoints, and the answers beside them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--number", type=int, default=CHECKPOINTS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for number in range(given.number):
        drawn = Drawn("gliner2", number, given.seed)
        folder = given.folder / drawn.name
        write(drawn, number, folder)
        found = answer(folder, draw_questions(drawn, odd_texts()))
        answers_file(folder).write_bytes(msgspec.json.encode(found))
        total = sum(map(len, found.alone))
        related = sum(map(len, found.relations))
        sys.stdout.write(f"{drawn.name}: {total} entities, {related} relations\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
