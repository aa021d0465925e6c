"""The directions of label sets that were asked before: their texts need not be tokenized again."""

from collections import OrderedDict

from backends.types import FloatArray

# A label set is known by who asked for it, too: nobody learns from timing what another asked.
LabelSet = tuple[str, str, tuple[str, ...]]


class KeptLabels:
    """The label sets used last, so many of them."""

    def __init__(self, *, most: int) -> None:
        self._most = most
        self._directions: OrderedDict[LabelSet, FloatArray] = OrderedDict()

    def get(self, labels: LabelSet) -> FloatArray | None:
        """Return the directions of a label set, a line per label, where they are kept."""
        found = self._directions.get(labels)
        if found is not None:
            self._directions.move_to_end(labels)
        return found

    def put(self, labels: LabelSet, directions: FloatArray) -> None:
        """Keep the directions of a label set; the one used longest ago makes room."""
        self._directions[labels] = directions
        if len(self._directions) > self._most:
            self._directions.popitem(last=False)
