"""Trains the head `sentiment` on SST-2: `python -m training.sentiment --help`.

The test set is the rows of SST-2's training file with `idx % 32 == 7`. SST-2 has many phrases of
its own sentences. So a text is used for training only if it neither contains a test text nor occurs
in one. The comparison ignores case, and blanks at both ends.
"""

import argparse
from collections.abc import Iterable, Sequence
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from training.encoder import Encoder
from training.heads import apply_head, layer_of, save_head

TEST_MODULUS, TEST_REMAINDER = 32, 7
# Chosen from 0.3, 1 and 3 on training rows with two other remainders of `idx % 32`, with the
# training texts filtered in the same way.
INVERSE_REGULARISATION = 0.3


class Sentences(NamedTuple):
    """Holds texts and their labels: 1 is positive, 0 is negative."""

    texts: list[str]
    labels: NDArray[np.int64]


def read_sst2(path: Path) -> tuple[Sentences, Sentences, Sentences]:
    """Return the training texts, the test texts, and the texts that are neither."""
    rows = pq.read_table(path, columns=["idx", "sentence", "label"]).to_pylist()
    test = [row for row in rows if row["idx"] % TEST_MODULUS == TEST_REMAINDER]
    rest = [row for row in rows if row["idx"] % TEST_MODULUS != TEST_REMAINDER]
    is_kept = untouched([row["sentence"] for row in rest], [row["sentence"] for row in test])
    left_out = compress(rest, [not kept for kept in is_kept])
    return _sentences(compress(rest, is_kept)), _sentences(test), _sentences(left_out)


def _sentences(rows: Iterable[dict[str, Any]]) -> Sentences:
    kept = list(rows)
    labels = np.array([row["label"] for row in kept], dtype=np.int64)
    return Sentences([row["sentence"] for row in kept], labels)


def untouched(texts: Sequence[str], test_texts: Sequence[str]) -> list[bool]:
    """Return for each text whether it neither contains a test text nor occurs in one."""
    tests = sorted({text.strip().lower() for text in test_texts}, key=len)
    joined = "\n".join(tests)
    return [
        text not in joined and not any(test in text for test in tests if len(test) <= len(text))
        for text in (text.strip().lower() for text in texts)
    ]


def main() -> None:
    """Train and save the head, and print the accuracy of the saved head."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", type=Path, required=True, help="sst2_train.parquet")
    parser.add_argument("--models", type=Path, required=True, help="repository with `minilm`")
    parser.add_argument("--output", type=Path, required=True, help="sentiment.npz")
    arguments = parser.parse_args()

    train, test, _ = read_sst2(arguments.train)

    encoder = Encoder(arguments.models)
    model = LogisticRegression(C=INVERSE_REGULARISATION, max_iter=1000)
    model.fit(encoder.embed(train.texts), train.labels)
    save_head(arguments.output, [layer_of(model)])

    logits = apply_head(arguments.output, encoder.embed(test.texts))
    accuracy = (logits.argmax(axis=1) == test.labels).mean()
    counts = f"trained on {len(train.texts)}, tested on {len(test.texts)}"
    print(f"{counts}: accuracy {accuracy:.4f}")  # noqa: T201


if __name__ == "__main__":
    main()
