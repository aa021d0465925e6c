"""Caches the vectors of label sets, so that their texts are not tokenized again."""

from collections import OrderedDict

from backends.types import FloatArray

# The scope is part of the key: no tenant learns from timing what another asked.
LabelSet = tuple[str, str, tuple[str, ...]]


# What a set costs beside its texts and directions: objects, a place in the dictionary.
_SET_BYTES = 400
_LABEL_BYTES = 100


class LabelVectorCache:
    """Caches the label sets used last, within a number of bytes."""

    def __init__(self, *, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._directions: OrderedDict[LabelSet, FloatArray] = OrderedDict()
        self.size_bytes = 0

    def get(self, labels: LabelSet) -> FloatArray | None:
        """Return the directions of a label set, a line per label, where they are kept."""
        found = self._directions.get(labels)
        if found is not None:
            self._directions.move_to_end(labels)
        return found

    def put(self, labels: LabelSet, directions: FloatArray) -> None:
        """Keep the directions of a label set; those used longest ago make room."""
        size = _size(labels, directions)
        if labels in self._directions or size > self._most_bytes:
            return
        self._directions[labels] = directions
        self.size_bytes += size
        while self.size_bytes > self._most_bytes:
            self.size_bytes -= _size(*self._directions.popitem(last=False))


def _size(labels: LabelSet, directions: FloatArray) -> int:
    _, template, texts = labels
    text = 4 * (len(template) + sum(map(len, texts)))  # no character takes more
    return directions.nbytes + text + _SET_BYTES + _LABEL_BYTES * len(texts)
