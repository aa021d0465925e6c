"""Trains the head `banking-intents` on Banking77: `python -m training.banking_intents --help`.

Six training texts that are also in the test file are left out. The comparison of texts ignores
case, and blanks at both ends.
"""

import argparse
import csv
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression

from training.encoder import Encoder
from training.heads import apply_head, layer_of, save_head

# Chosen from 20, 30 and 50 by cross-validation on the training file.
INVERSE_REGULARISATION = 30


def main() -> None:
    """Train and save the head, and print the accuracy of the saved head."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", type=Path, required=True, help="path of banking77_train.csv")
    parser.add_argument("--test", type=Path, required=True, help="path of banking77_test.csv")
    parser.add_argument("--models", type=Path, required=True, help="repository with `minilm`")
    parser.add_argument("--output", type=Path, required=True, help="banking-intents.npz")
    arguments = parser.parse_args()

    test = _read(arguments.test)
    known = {text.strip().lower() for text, _ in test}
    train = [row for row in _read(arguments.train) if row[0].strip().lower() not in known]

    encoder = Encoder(arguments.models)
    model = LogisticRegression(C=INVERSE_REGULARISATION, max_iter=1000)
    model.fit(encoder.embed([text for text, _ in train]), [intent for _, intent in train])
    save_head(arguments.output, [layer_of(model)])

    logits = apply_head(arguments.output, encoder.embed([text for text, _ in test]))
    found = np.asarray(model.classes_)[logits.argmax(axis=1)]
    accuracy = (found == np.array([intent for _, intent in test])).mean()
    print(f"trained on {len(train)}, tested on {len(test)}: accuracy {accuracy:.4f}")  # noqa: T201


def _read(path: Path) -> list[tuple[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return [(row["text"], row["category"]) for row in csv.DictReader(file)]


if __name__ == "__main__":
    main()
