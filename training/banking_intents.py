"""Trains the head `banking-intents` on Banking77: `python -m training.banking_intents --help`.

Training texts that are also in the test file (6, case and outer blanks ignored) are left out.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression

from training.encoder import Encoder
from training.heads import apply_head, layer_of, save_head

# Chosen from 20, 30 and 50 by cross-validation on the training file.
INVERSE_REGULARISATION = 30


def main() -> None:
    """Train, save and report accuracy of what was saved."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", type=Path, required=True, help="banking77_train.csv")
    parser.add_argument("--test", type=Path, required=True, help="banking77_test.csv")
    parser.add_argument("--models", type=Path, required=True, help="repository with `minilm`")
    parser.add_argument("--output", type=Path, required=True, help="banking-intents.npz")
    arguments = parser.parse_args()

    test = pd.read_csv(arguments.test)
    train = pd.read_csv(arguments.train)
    known = set(test["text"].str.strip().str.lower())
    train = train[~train["text"].str.strip().str.lower().isin(known)]

    encoder = Encoder(arguments.models)
    model = LogisticRegression(C=INVERSE_REGULARISATION, max_iter=1000)
    model.fit(encoder.embed(list(train["text"])), train["category"])
    save_head(arguments.output, [layer_of(model)])

    logits = apply_head(arguments.output, encoder.embed(list(test["text"])))
    found = np.asarray(model.classes_)[logits.argmax(axis=1)]
    accuracy = (found == test["category"].to_numpy()).mean()
    print(f"trained on {len(train)}, tested on {len(test)}: accuracy {accuracy:.4f}")  # noqa: T201


if __name__ == "__main__":
    main()
