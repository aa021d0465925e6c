"""Has `gliner` write random checkpoints, and records which entities it finds with them.

`python -m tests.parity.gliner_checkpoints FOLDER`, where `gliner` is installed.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import torch
import transformers
from gliner import GLiNER, GLiNERConfig

from tests.parity.gliner_answers import Asked, GlinerAnswers, answers_file
from tests.parity.gliner_draws import (
    CHECKPOINTS,
    Drawn,
    draw_encoder,
    draw_questions,
    draw_weights,
    odd_texts,
    write_tokenizer,
)


def draw_config(drawn: Drawn, backbone: Path) -> Any:
    """Return a configuration that Sluicegate supports."""
    return GLiNERConfig(
        model_name=str(backbone),
        encoder_config=draw_encoder(drawn),
        hidden_size=drawn.one(16, 24),
        num_rnn_layers=drawn.one(1, 1, 1, 0, 2),
        max_width=drawn.one(1, 3, 8, 12, 12),
        max_len=384,
        subtoken_pooling=drawn.one("first", "first", "last"),
        embed_ent_token=drawn.one(True, True, False),
        span_mode="markerV0",
        fuse_layers=False,
        dropout=0.1,
    )


def write(drawn: Drawn, folder: Path) -> None:
    """Write a checkpoint as `gliner` does."""
    with tempfile.TemporaryDirectory() as place:
        backbone = Path(place)
        write_tokenizer(drawn, backbone)
        (backbone / "config.json").write_text('{"model_type": "deberta-v2"}')
        config = draw_config(drawn, backbone)
        model = GLiNER.from_config(config, backbone_from_pretrained=False)
        draw_weights(drawn, model.model)
        model.config.model_name = "random"
        model.save_pretrained(folder, safe_serialization=True)


def answer(folder: Path, asked: list[Asked]) -> GlinerAnswers:
    """Return the entities of each question, asked alone and in batches."""
    model = GLiNER.from_pretrained(str(folder), local_files_only=True)
    alone, batched = [], []
    for each in asked:
        options = {"flat_ner": each.flat, "multi_label": each.multi_label}
        found = model.inference([each.text], each.labels, threshold=each.threshold, **options)
        alone.append(_entities(found[0]))
    for start in range(0, len(asked), 8):
        batched += _together(model, asked[start : start + 8])
    return GlinerAnswers(asked=asked, alone=alone, batched=batched)


def _together(model: Any, asked: list[Asked]) -> list[list[Any]]:
    """Return the entities of questions that one batch answers."""
    prepared = model.prepare_batch([each.text for each in asked], [each.labels for each in asked])
    assert prepared["valid_to_orig_idx"] == list(range(len(asked)))
    batch = model.collate_batch(prepared["input_x"], prepared["entity_types"])
    decoded = model.decode_batch(
        model.run_batch(batch),
        batch,
        threshold=[each.threshold for each in asked],
        flat_ner=[each.flat for each in asked],
        multi_label=[each.multi_label for each in asked],
    )
    places = [prepared[key] for key in ("start_token_map", "end_token_map")]
    valid = prepared["valid_texts"], prepared["valid_to_orig_idx"]
    return [
        _entities(each) for each in model.map_entities_to_text(decoded, *valid, *places, len(asked))
    ]


def _entities(found: list[dict[str, Any]]) -> list[Any]:
    return [(each["label"], each["start"], each["end"], each["score"]) for each in found]


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
        drawn = Drawn("gliner", number, given.seed)
        folder = given.folder / drawn.name
        write(drawn, folder)
        found = answer(folder, draw_questions(drawn, odd_texts()))
        answers_file(folder).write_bytes(msgspec.json.encode(found))
        total = sum(map(len, found.alone))
        sys.stdout.write(f"{drawn.name}: {total} entities\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
