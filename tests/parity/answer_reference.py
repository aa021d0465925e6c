"""Runs the pipeline `question-answering`, and stores its answers.

The pipeline was last part of `transformers` 4.57, so `make parity` runs this with that release:
`python -m tests.parity.answer_reference`.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForQuestionAnswering, AutoTokenizer, pipeline

from tests.parity.checkpoints import all_checkpoints, write_checkpoint
from tests.parity.question_texts import ASKED, question_pairs
from tests.parity.references import Entity, References, reference_file


def main() -> None:
    """Ask every checkpoint with a head for answers."""
    torch.set_num_threads(1)
    pairs = question_pairs()
    with tempfile.TemporaryDirectory() as folder:
        for checkpoint in all_checkpoints():
            if checkpoint.purpose != "answer":
                continue
            path = write_checkpoint(checkpoint, Path(folder) / checkpoint.name)
            references = _answer(path, pairs)
            references.write(reference_file(checkpoint.name))
            sys.stdout.write(f"{checkpoint.name}: logits spread by {references.spread:.2f}\n")


def _answer(path: Path, pairs: Sequence[tuple[str, str]]) -> References:
    model, loading = AutoModelForQuestionAnswering.from_pretrained(path, output_loading_info=True)
    assert not loading["missing_keys"], loading
    tokenizer = AutoTokenizer.from_pretrained(path)
    find: Any = pipeline("question-answering", model=model.eval(), tokenizer=tokenizer)
    found = References()
    for name, asked in ASKED.items():
        found.entities[name] = [
            Entity(
                text=place,
                label="answer",
                start=answer["start"],
                end=answer["end"],
                score=float(answer["score"]),
            )
            for place, (question, context) in enumerate(pairs)
            for answer in _listed(find(question=question, context=context, **asked.given()))
            # Spans that cannot be answers have a score of 0. They fill up the list in any order.
            if answer["score"] > 0
        ]
    with torch.no_grad():
        outputs = [
            model(**tokenizer(*pair, truncation=True, return_tensors="pt")) for pair in pairs
        ]
    both = [
        torch.cat([getattr(o, f"{end}_logits")[0] for o in outputs]) for end in ("start", "end")
    ]
    found.spread = min(float(logits.std()) for logits in both)
    return found


def _listed(answers: Any) -> list[dict[str, Any]]:
    return answers if isinstance(answers, list) else [answers]


if __name__ == "__main__":
    main()
