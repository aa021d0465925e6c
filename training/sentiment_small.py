"""Trains the head `sentiment-small` to answer as `sentiment` does.

Run `python -m training.sentiment_small --help`. The training and test texts are those of
`sentiment.py`. The head is a linear regression of the large model's logits (Ba and Caruana 2014),
so it needs no labels. The other phrases of SST-2's file overlap with test texts, so no model was
trained on them. 20,000 of these phrases are written to a file, with which
`sluicegate models calibrate` finds the threshold of the cascade.
"""

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from sklearn.linear_model import Ridge

from training.encoder import Encoder
from training.heads import apply_head, save_head
from training.sentiment import Sentences, read_sst2

# Chosen from 0.3, 1 and 3 on a fifth of 8,000 training texts.
REGULARISATION = 1.0
UNSEEN = 20_000


def main() -> None:
    """Train and save the head, and print how often it agrees with the large model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", type=Path, required=True, help="sst2_train.parquet")
    parser.add_argument("--models", type=Path, required=True, help="repository with the encoders")
    parser.add_argument("--large", type=Path, required=True, help="sentiment.npz")
    parser.add_argument("--output", type=Path, required=True, help="sentiment-small.npz")
    parser.add_argument("--unseen", type=Path, required=True, help="CSV file of unseen phrases")
    arguments = parser.parse_args()

    train, test, rest = read_sst2(arguments.train)
    _write(arguments.unseen, rest, [*train.texts, *test.texts])

    encoder, large_encoder = Encoder(arguments.models, "minilm-l0"), Encoder(arguments.models)
    wanted = apply_head(arguments.large, large_encoder.embed(train.texts))
    model = Ridge(alpha=REGULARISATION).fit(encoder.embed(train.texts), wanted)
    save_head(arguments.output, [(model.coef_.T, model.intercept_)])

    small = apply_head(arguments.output, encoder.embed(test.texts)).argmax(axis=1)
    large = apply_head(arguments.large, large_encoder.embed(test.texts)).argmax(axis=1)
    accuracy, agreement = (small == test.labels).mean(), (small == large).mean()
    counts = f"trained on {len(train.texts)}, tested on {len(test.texts)}"
    print(f"{counts}: accuracy {accuracy:.4f}, agreement {agreement:.4f}")  # noqa: T201


def _write(path: Path, rest: Sentences, known: Sequence[str]) -> None:
    """Write random phrases of `rest` that do not equal one of `known`."""
    taken = {text.strip().lower() for text in known}
    pairs = zip(rest.texts, rest.labels, strict=True)
    unseen = {text.strip(): label for text, label in pairs if text.strip().lower() not in taken}
    lines = [(text, ("negative", "positive")[label]) for text, label in unseen.items()]
    order = np.random.default_rng(1).permutation(len(lines))[:UNSEEN]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        writer.writerows(lines[place] for place in order)


if __name__ == "__main__":
    main()
