"""Has `gliner` write random checkpoints, and records which entities it finds with them.

`python -m tests.parity.gliner_checkpoints FOLDER`, where `gliner` is installed.
"""

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import transformers
from gliner import GLiNER, GLiNERConfig

from tests.parity.gliner_answers import Asked, GlinerAnswers, answers_file
from tests.parity.texts import DATA, read_texts

CHECKPOINTS = 10
_SPREAD = 0.3
# Weights in these steps are small in a compressed file.
_STEP = 1 / 64
_LABELS = (
    *(
        "person",
        "city",
        "Organisation",
        "date of birth",
        "email",
        "caf\u00e9",
        "\u4e2d\u6587",
        "a-b_c",
    ),
    *("phone number", "x", "MONEY", "it's", "award", "very long label of many words", "\U0001f642"),
)
TEXTS = 56


def odd_texts() -> list[str]:
    """Return the texts that every checkpoint reads."""
    odd = json.loads((DATA / "odd-texts.json").read_text(encoding="utf-8"))
    return [*odd, *read_texts()[: TEXTS - len(odd)]]


class Drawn:
    """Holds what one checkpoint is made of; every choice is drawn from its seed."""

    def __init__(self, number: int, seed: int) -> None:
        self.name = f"gliner-{number:02}"
        self.random = random.Random(f"{seed} {self.name}")

    def one(self, *choices: Any) -> Any:
        return self.random.choice(choices)


def _encoder(drawn: Drawn) -> dict[str, Any]:
    hidden, heads = drawn.one((16, 2), (24, 3))
    shared = {
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_hidden_layers": drawn.one(1, 2),
        "intermediate_size": 32,
        "max_position_embeddings": 512,
    }
    if drawn.one(False, False, False, True):
        special = ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")
        local = drawn.one(8, 128)
        own = {"local_attention": local, "pad_token_id": 0, **dict.fromkeys(special)}
        return {"model_type": "modernbert", **shared, **own}
    return {
        "model_type": "deberta-v2",
        **shared,
        "type_vocab_size": 0,
        "relative_attention": True,
        "position_buckets": drawn.one(-1, 16, 256),
        "pos_att_type": drawn.one(["p2c", "c2p"], ["c2p"]),
        "share_att_key": drawn.one(True, True, False),
        "norm_rel_ebd": drawn.one("layer_norm", "none"),
        "position_biased_input": drawn.one(False, False, True),
    }


def draw_config(drawn: Drawn, backbone: Path) -> Any:
    """Return a configuration that Sluicegate supports."""
    return GLiNERConfig(
        model_name=str(backbone),
        encoder_config=_encoder(drawn),
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
    document = json.loads((DATA / "unigram-tokenizer.json").read_text(encoding="utf-8"))
    tokenizer = transformers.DebertaV2Tokenizer(
        vocab=[tuple(each) for each in document["model"]["vocab"]],
        **{f"{role}_token": f"[{role.upper()}]" for role in ("unk", "sep", "pad", "cls", "mask")},
        bos_token="[CLS]",
        eos_token="[SEP]",
        split_by_punct=drawn.one(False, True),
        do_lower_case=drawn.one(False, False, True),
    )
    with tempfile.TemporaryDirectory() as place:
        backbone = Path(place)
        tokenizer.save_pretrained(backbone)
        (backbone / "config.json").write_text('{"model_type": "deberta-v2"}')
        config = draw_config(drawn, backbone)
        model = GLiNER.from_config(config, backbone_from_pretrained=False)
        _draw_weights(drawn, model.model)
        model.config.model_name = "random"
        model.save_pretrained(folder, safe_serialization=True)


def _draw_weights(drawn: Drawn, model: torch.nn.Module) -> None:
    generator = np.random.default_rng([ord(letter) for letter in drawn.name])
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = generator.standard_normal(tuple(weight.shape)) * _SPREAD
            centre = 1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0
            steps = np.round((centre + noise) / _STEP) * _STEP
            weight.copy_(torch.from_numpy(steps.astype(np.float32)))


def draw_questions(drawn: Drawn, texts: list[str]) -> list[Asked]:
    """Return for each text a question with labels and options of its own."""
    return [
        Asked(
            text=text,
            labels=drawn.random.sample(_LABELS, drawn.one(1, 2, 3, 5, 9)),
            threshold=drawn.one(0.3, 0.5, 0.7, 0.9),
            flat=drawn.one(True, False),
            multi_label=drawn.one(False, False, True),
        )
        for text in texts
    ]


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
        drawn = Drawn(number, given.seed)
        folder = given.folder / drawn.name
        write(drawn, folder)
        found = answer(folder, draw_questions(drawn, odd_texts()))
        answers_file(folder).write_bytes(msgspec.json.encode(found))
        total = sum(map(len, found.alone))
        sys.stdout.write(f"{drawn.name}: {total} entities\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
