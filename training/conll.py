"""Reads sentences with entities from CoNLL files. Each line has a word and its tag."""

from collections.abc import Iterator
from pathlib import Path

Sentence = list[tuple[str, str]]

# The entity types of WNUT 2017 and Wikigold, mapped to the four types of the head.
TYPES = {
    "person": "PER",
    "location": "LOC",
    "corporation": "ORG",
    "group": "ORG",
    "product": "MISC",
    "creative-work": "MISC",
    "PER": "PER",
    "LOC": "LOC",
    "ORG": "ORG",
    "MISC": "MISC",
}


def read_conll(path: Path) -> Iterator[Sentence]:
    """Yield the sentences of a file, with BIO tags of the four types."""
    words: Sentence = []
    for line in [*path.read_text(encoding="utf-8").splitlines(), ""]:
        if line.strip():
            word, tag = line.split()
            words.append((word, tag))
        elif words:
            # Wikigold ends each document with this mark.
            if words[0][0] != "-DOCSTART-":
                yield as_bio(words)
            words = []


def as_bio(words: Sentence) -> Sentence:
    """Return `words` with this project's types, and with a `B-` tag at each entity's first word.

    Wikigold has only `I-` tags, so `B-` tags must be added.
    """
    result: Sentence = []
    previous = "O"
    for word, tag in words:
        if tag == "O":
            mapped = "O"
        else:
            prefix, kind = tag.split("-", 1)
            kind = TYPES[kind]
            starts = prefix == "B" or previous[2:] != kind
            mapped = f"{'B' if starts else 'I'}-{kind}"
        result.append((word, mapped))
        previous = mapped
    return result


def spans(tags: list[str]) -> set[tuple[int, int, str]]:
    """Return the entities of a tag sequence as (first word, word after the last word, type)."""
    found: set[tuple[int, int, str]] = set()
    start = 0
    for index, tag in enumerate(tags):
        continues = tag.startswith("I-") and index > 0 and tags[index - 1][2:] == tag[2:]
        if not continues:
            start = index
        ends = index + 1 == len(tags) or tags[index + 1] != f"I-{tag[2:]}"
        if tag != "O" and ends:
            found.add((start, index + 1, tag[2:]))
    return found
