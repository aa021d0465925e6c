"""Trains the head `entities-demo`, which labels tokens: `python -m training.entities_demo --help`.

The first token of a word gets the word's tag. The other tokens of an entity get `I-`, as the
algorithm for entities expects. Two thirds of the sentences of WNUT 2017 have no entity. These
sentences are left out, because the head would learn from them to find no entities. Every fifth
sentence of Wikigold and the test file of WNUT 2017 are kept for testing.
"""

import argparse
import warnings
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from tokenizers import Encoding

from training.conll import Sentence, read_conll, spans
from training.encoder import Encoder
from training.heads import apply_head, save_head

LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG", "I-ORG", "B-MISC", "I-MISC"]
SEED = 0
HIDDEN = 128
# The value was chosen on another fifth of Wikigold and on the development file of WNUT 2017.
PENALTY, EPOCHS = 0.03, 10
TEST_EVERY = 5


def first_tokens(encoding: Encoding, sentence: Sentence) -> list[int | None]:
    """Return the index of the first token of each word; `None` for a truncated word."""
    starts = [0]
    for word, _ in sentence:
        starts.append(starts[-1] + len(word) + 1)
    index_of: dict[int, int] = {}
    number = 0
    for index, (begin, end) in enumerate(encoding.offsets):
        if begin == end:  # [CLS] and [SEP] have no text
            continue
        while begin >= starts[number + 1]:
            number += 1
        index_of.setdefault(number, index)
    return [index_of.get(number) for number in range(len(sentence))]


def token_labels(encoding: Encoding, sentence: Sentence) -> list[int]:
    """Return the label of every token."""
    labels = [0] * len(encoding.ids)
    known = [
        (index, tag)
        for index, (_, tag) in zip(first_tokens(encoding, sentence), sentence, strict=True)
        if index is not None
    ]
    for (index, tag), (after, _) in pairwise([*known, (len(labels) - 1, "O")]):
        labels[index] = LABELS.index(tag)
        inside = LABELS.index(tag.replace("B-", "I-"))
        labels[index + 1 : after] = [inside] * (after - index - 1)
    return labels


def encode(
    encoder: Encoder, sentences: list[Sentence]
) -> Iterator[tuple[Sentence, Encoding, NDArray[np.float32]]]:
    """Yield every sentence with its tokens and their hidden states."""
    texts = [" ".join(word for word, _ in sentence) for sentence in sentences]
    for sentence, (encoding, states) in zip(sentences, encoder.states(texts), strict=True):
        yield sentence, encoding, states


def entity_f1(encoder: Encoder, head: Path, sentences: list[Sentence]) -> float:
    """Return the F1 score of entities; an entity counts if its words and its type are right."""
    right = found = wanted = 0
    for sentence, encoding, states in encode(encoder, sentences):
        best = apply_head(head, states).argmax(axis=1)
        tags = [
            LABELS[best[index]] if index is not None else "O"
            for index in first_tokens(encoding, sentence)
        ]
        truth, guess = spans([tag for _, tag in sentence]), spans(tags)
        right += len(truth & guess)
        found += len(guess)
        wanted += len(truth)
    return 2 * right / (found + wanted)


def main() -> None:
    """Train and save the head, and print the F1 score of the saved head."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wikigold", type=Path, required=True, help="wikigold.conll")
    parser.add_argument("--wnut-train", type=Path, required=True, help="wnut17_train.conll")
    parser.add_argument("--wnut-test", type=Path, required=True, help="wnut17_test.conll")
    parser.add_argument("--models", type=Path, required=True, help="repository with `minilm`")
    parser.add_argument("--output", type=Path, required=True, help="entities-demo.npz")
    arguments = parser.parse_args()

    wikigold = list(read_conll(arguments.wikigold))
    test = wikigold[::TEST_EVERY]
    train = [sentence for index, sentence in enumerate(wikigold) if index % TEST_EVERY]
    train += [
        sentence
        for sentence in read_conll(arguments.wnut_train)
        if any(tag != "O" for _, tag in sentence)
    ]

    encoder = Encoder(arguments.models)
    encoded = list(encode(encoder, train))
    model = MLPClassifier((HIDDEN,), alpha=PENALTY, batch_size=256, random_state=SEED)
    # The number of epochs is fixed, because the training loss does not show when to stop.
    model.set_params(max_iter=EPOCHS, n_iter_no_change=EPOCHS)
    labels = [token_labels(encoding, sentence) for sentence, encoding, _ in encoded]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(np.concatenate([states for _, _, states in encoded]), np.concatenate(labels))
    save_head(arguments.output, list(zip(model.coefs_, model.intercepts_, strict=True)))

    for name, sentences in (("Wikigold", test), ("WNUT", list(read_conll(arguments.wnut_test)))):
        score = entity_f1(encoder, arguments.output, sentences)
        print(f"trained on {len(train)}, {name} {len(sentences)}: F1 {score:.4f}")  # noqa: T201


if __name__ == "__main__":
    main()
