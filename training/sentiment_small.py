"""Trains the head `sentiment-small` on SST-2, and chooses the threshold of the cascade.

Run `python -m training.sentiment_small --help`. The training and test texts are those of
`sentiment.py`. If the probability of a text's best label is below the threshold, the cascade sends
the text to the large model. To find the threshold, a head is trained on four fifths of the training
texts. For 40 % of the texts in the other fifth, the probability of the best label is below the
threshold. The saved head is trained on all training texts.
"""

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from training.encoder import Encoder, Matrix
from training.heads import apply_head, layer_of, save_head
from training.sentiment import read_sst2

# Chosen from 1, 3 and 10 on the fifth of the training texts that was held out.
INVERSE_REGULARISATION = 3.0
ESCALATED = 0.4
_KEPT_APART = 5


def main() -> None:
    """Train and save the head, choose the threshold, and print the accuracy of the cascade."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", type=Path, required=True, help="sst2_train.parquet")
    parser.add_argument("--models", type=Path, required=True, help="repository with the encoders")
    parser.add_argument("--large", type=Path, required=True, help="sentiment.npz")
    parser.add_argument("--output", type=Path, required=True, help="sentiment-small.npz")
    arguments = parser.parse_args()

    train, test = read_sst2(arguments.train)

    encoder = Encoder(arguments.models, "minilm-l2")
    vectors, labels = encoder.embed(train.texts), train.labels
    threshold = _choose_threshold(vectors, labels)
    save_head(arguments.output, [layer_of(_fit(vectors, labels))])

    small = _probabilities(apply_head(arguments.output, encoder.embed(test.texts)))
    vectors = Encoder(arguments.models).embed(test.texts)
    large = _probabilities(apply_head(arguments.large, vectors))
    goes_on = small.max(axis=1) < threshold
    cascade = np.where(goes_on[:, None], large, small)
    for name, scores in (("small", small), ("large", large), ("cascade", cascade)):
        accuracy = (scores.argmax(axis=1) == test.labels).mean()
        print(f"{name}: accuracy {accuracy:.4f} on {len(test.texts)}")  # noqa: T201
    print(f"threshold {threshold:.3f}, {goes_on.mean():.1%} go to the large model")  # noqa: T201


def _choose_threshold(vectors: Matrix, labels: NDArray[np.int64]) -> float:
    """Return the probability below which 40 % of the held-out texts lie."""
    apart = np.arange(len(labels)) % _KEPT_APART == 0
    scores = _fit(vectors[~apart], labels[~apart]).predict_proba(vectors[apart])
    accuracy = (scores.argmax(axis=1) == labels[apart]).mean()
    print(f"held out: accuracy {accuracy:.4f} on {apart.sum()}")  # noqa: T201
    return round(float(np.quantile(scores.max(axis=1), ESCALATED)), 3)


def _fit(vectors: Matrix, labels: NDArray[np.int64]) -> LogisticRegression:
    return LogisticRegression(C=INVERSE_REGULARISATION, max_iter=2000).fit(vectors, labels)


def _probabilities(logits: Matrix) -> Matrix:
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True), dtype=np.float32)


if __name__ == "__main__":
    main()
