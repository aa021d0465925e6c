"""Caches the vectors of label sets, so that repeated labels are not tokenized again."""

from collections import OrderedDict

from sluicegate.backends.types import FloatArray

# (scope, template, labels). The scope keeps one tenant from detecting another tenant's labels by
# timing.
LabelSet = tuple[str, str, tuple[str, ...]]


# Bytes of Python objects per label set and per label, without the texts and vectors themselves.
_SET_BYTES = 400
_LABEL_BYTES = 100


class LabelVectorCache:
    """Caches the vectors of the most recently used label sets, up to `most_bytes`."""

    def __init__(self, *, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._directions: OrderedDict[LabelSet, FloatArray] = OrderedDict()
        self.size_bytes = 0

    def get(self, labels: LabelSet) -> FloatArray | None:
        """Return the unit vectors of a label set, one row per label, or `None`."""
        found = self._directions.get(labels)
        if found is not None:
            self._directions.move_to_end(labels)
        return found

    def put(self, labels: LabelSet, directions: FloatArray) -> None:
        """Store the unit vectors of a label set; evict the least recently used sets."""
        size = _size(labels, directions)
        if labels in self._directions or size > self._most_bytes:
            return
        self._directions[labels] = directions
        self.size_bytes += size
        while self.size_bytes > self._most_bytes:
            self.size_bytes -= _size(*self._directions.popitem(last=False))


def _size(labels: LabelSet, directions: FloatArray) -> int:
    _, template, texts = labels
    text = 4 * (len(template) + sum(map(len, texts)))  # a character takes at most 4 bytes
    return directions.nbytes + text + _SET_BYTES + _LABEL_BYTES * len(texts)
