"""Scales and centres the logits of the checkpoints: `python -m tests.parity.calibrate_heads`.

Seeded heads give logits that are far from zero and near each other, so that every score is 0 or 1
whatever the encoder says. What is found here is applied by `write_checkpoint`.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from sluicegate.backends.executors.provider import DeviceOptions, open_session
from sluicegate.backends.model_tools.importing.convert import convert
from tests.parity.checkpoints import HEADS_FILE, Checkpoint, all_checkpoints, write_checkpoint
from tests.parity.question_texts import question_pairs
from tests.parity.texts import LABELS, TEMPLATE, pairs, questions, read_texts, searches

_SPREAD = 2.0
_PAIRED = {"tokens", "choice", "cross", "answer"}


def main() -> None:
    """Run every head over what it will be asked, and write what it needs."""
    texts = read_texts()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for checkpoint in all_checkpoints():
            if not checkpoint.labels:
                continue
            source = write_checkpoint(checkpoint, Path(folder, checkpoint.name), raw=True)
            entry = source / "entry"
            convert(source, entry)
            chosen = checkpoint.choose(texts)
            logits = _logits(entry, checkpoint, _asked(checkpoint, chosen))
            # Texts alone come first where they are asked; pairs of them lie elsewhere.
            alone = logits if checkpoint.purpose in _PAIRED else logits[: len(chosen)]
            scale = _SPREAD / alone.std(axis=0)
            centre = -logits.mean(axis=0) * scale
            found[checkpoint.name] = {
                "scale": scale.astype(np.float64).round(3).tolist(),
                "centre": centre.astype(np.float64).round(3).tolist(),
            }
    lines = [f" {json.dumps(name)}: {json.dumps(head)}" for name, head in found.items()]
    HEADS_FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _asked(checkpoint: Checkpoint, texts: list[str]) -> list[Any]:
    if checkpoint.purpose == "tokens":
        return list(texts)
    if checkpoint.purpose == "answer":
        return question_pairs()
    if checkpoint.purpose == "choice":
        return [(prompt, choice) for prompt, choices in questions(texts) for choice in choices]
    if checkpoint.purpose == "cross":
        return [(query, document) for query, found in searches(texts) for document in found]
    asked: list[Any] = [*texts, *pairs(texts)]
    if checkpoint.purpose == "text":
        asked += [(text, TEMPLATE.replace("{}", LABELS[0])) for text in texts]
    return asked


def _logits(entry: Path, checkpoint: Checkpoint, asked: list[Any]) -> NDArray[np.float32]:
    tokenizer = tokenizers.Tokenizer.from_file(str(entry / "tokenizer.json"))
    tokenizer.enable_truncation(checkpoint.max_tokens)
    session = open_session(entry / "model.onnx", DeviceOptions(provider="cpu"))
    names = {node.name for node in session.get_inputs()}
    rows = []
    for encoding in tokenizer.encode_batch(asked):
        given = {
            "input_ids": encoding.ids,
            "attention_mask": encoding.attention_mask,
            "token_type_ids": encoding.type_ids,
        }
        feeds = {name: np.array([given[name]], dtype=np.int32) for name in names}
        (logits,) = session.run(["logits"], feeds)
        rows.append(logits.reshape(-1, logits.shape[-1]))
    return np.concatenate(rows)


if __name__ == "__main__":
    main()
