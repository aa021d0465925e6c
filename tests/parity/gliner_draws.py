"""Draws what checkpoints that read labels are made of, and the questions to ask them."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from tests.parity.gliner_answers import Asked
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

    def __init__(self, kind: str, number: int, seed: int) -> None:
        self.name = f"{kind}-{number:02}"
        self.random = random.Random(f"{seed} {self.name}")

    def one(self, *choices: Any) -> Any:
        return self.random.choice(choices)


def draw_encoder(drawn: Drawn) -> dict[str, Any]:
    """Return the configuration of an encoder."""
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


def write_tokenizer(drawn: Drawn, folder: Path) -> None:
    """Write a tokenizer with few tokens."""
    document = json.loads((DATA / "unigram-tokenizer.json").read_text(encoding="utf-8"))
    tokenizer = transformers.DebertaV2Tokenizer(
        vocab=[tuple(each) for each in document["model"]["vocab"]],
        **{f"{role}_token": f"[{role.upper()}]" for role in ("unk", "sep", "pad", "cls", "mask")},
        bos_token="[CLS]",
        eos_token="[SEP]",
        split_by_punct=drawn.one(False, True),
        do_lower_case=drawn.one(False, False, True),
    )
    tokenizer.save_pretrained(folder)


def draw_weights(drawn: Drawn, model: torch.nn.Module) -> None:
    """Give a model random weights."""
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
