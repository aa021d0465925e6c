"""Reads or generates the texts with which variants are calibrated and evaluated."""

import csv
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import msgspec
import numpy as np

from sluicegate.backends.errors import StartProblem
from sluicegate.backends.qualification.gate import Measure
from sluicegate.backends.qualification.invariance import ORDINARY
from sluicegate.backends.types import Text

_TEXT = ("text", "sentence", "query", "prompt", "premise")
_PAIR = ("text_pair", "pair", "document", "choice", "hypothesis")
_LABEL = ("label", "category", "intent")
# To make pairs of plain texts: documents for each query, and the largest number of queries.
_DOCUMENTS, _QUERIES = 4, 1000
_TEXTS = 512


class GoldenSet(msgspec.Struct, frozen=True, kw_only=True):
    """Holds texts or pairs of texts, and their labels if they are known.

    `groups` is set only if documents are ranked. For each pair, it holds the number of the query.
    """

    texts: list[Text]
    labels: list[str] | None = None
    groups: list[int] | None = None

    def suited_to(self, measure: Measure, *, reads_pairs: bool) -> Self:
        """Return the texts in the form that a model reads.

        A model that reads pairs needs pairs: each text that is not in a pair is paired with the
        next text, or with the next four texts if documents are ranked. A model whose token or text
        vectors are compared needs single texts: each pair is split into its two texts. If documents
        are ranked, queries with a single document are left out.
        """
        if measure in ("tokens", "vectors"):
            parts = [[text] if isinstance(text, str) else text for text in self.texts]
            texts = list(dict.fromkeys(part for both in parts for part in both))
            return msgspec.structs.replace(self, texts=list(texts), labels=None)
        single = [text for text in self.texts if isinstance(text, str)]
        if single and reads_pairs:
            made = _searches(single, documents=_DOCUMENTS if measure == "order" else 1)
            return msgspec.structs.replace(self, texts=made, labels=None).suited_to(
                measure, reads_pairs=reads_pairs
            )
        if measure != "order":
            return self
        queries = [text[0] for text in self.texts]
        several = {query for query, documents in Counter(queries).items() if documents > 1}
        kept = [text for text in self.texts if text[0] in several]
        numbers = {query: number for number, query in enumerate(dict.fromkeys(t[0] for t in kept))}
        groups = [numbers[text[0]] for text in kept]
        return msgspec.structs.replace(self, texts=kept, groups=groups, labels=None)

    def split(self) -> tuple[Self, Self]:
        """Return a third of the texts for calibration, and the other texts for evaluation."""
        places = range(len(self.texts))
        first, second = (
            [place for place in places if (place % 3 == 0) is third] for third in (True, False)
        )
        return self.take(first), self.take(second)

    def take(self, places: Sequence[int]) -> Self:
        """Return the texts at the given indices."""
        return msgspec.structs.replace(
            self,
            texts=[self.texts[place] for place in places],
            labels=self.labels and [self.labels[place] for place in places],
            groups=self.groups and [self.groups[place] for place in places],
        )


def default_texts(count: int = _TEXTS) -> list[str]:
    """Generate texts as long as usual sentences.

    Half of them have fewer than ten words, and a few have more than 30.
    """
    random = np.random.default_rng(0)
    words = np.array(" ".join(ORDINARY).split())
    lengths = np.clip(random.lognormal(2.2, 0.6, count), 1, 60).astype(int)
    return [" ".join(random.choice(words, length)) for length in lengths]


def read_golden(path: Path) -> GoldenSet:
    """Read a text file with one text per line, or a `.csv` with texts, pairs and labels.

    The header of a `.csv` names the columns.

    Raises:
        StartProblem: the file cannot be read, or has no text.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            golden = (
                _csv(file.read().splitlines(keepends=True), path)
                if (path.suffix == ".csv")
                else GoldenSet(texts=[line.strip() for line in file if line.strip()])
            )
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise StartProblem(f"cannot read `{path}`: {error}") from None
    if not golden.texts:
        raise StartProblem(f"`{path}` has no texts")
    return golden


def _csv(lines: list[str], path: Path) -> GoldenSet:
    rows = csv.DictReader(lines)
    columns = rows.fieldnames or []
    text, pair, label = (
        next((name for name in names if name in columns), None) for names in (_TEXT, _PAIR, _LABEL)
    )
    if text is None:
        raise StartProblem(f"`{path}` needs a column `text`; it has only {', '.join(columns)}")
    found = [row for row in rows if (row[text] or "").strip()]
    labels = [row[label] or "" for row in found] if label is not None else None
    texts: list[Text] = [
        row[text] if pair is None else (row[text], row[pair] or "") for row in found
    ]
    return GoldenSet(texts=texts, labels=labels)


def _searches(texts: list[str], *, documents: int) -> list[Text]:
    """Pair each of the first thousand distinct texts with the next `documents` texts.

    The first text of a pair serves as a query.
    """
    unique = list(dict.fromkeys(texts))
    reach = min(documents, len(unique) - 1)
    return [
        (query, unique[(place + step) % len(unique)])
        for place, query in enumerate(unique[:_QUERIES])
        for step in range(1, reach + 1)
    ]
