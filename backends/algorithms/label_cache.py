"""Caches the vectors of label sets, so that repeated labels are not tokenized again."""

from sluicegate.backends.batching.vector_cache import VectorCache

# (scope, template, labels). The scope keeps one tenant from detecting another tenant's labels by
# timing.
LabelSet = tuple[str, str, tuple[str, ...]]
# Bytes of a Python object per label, without its text.
_LABEL_BYTES = 100


class LabelVectorCache(VectorCache[LabelSet]):
    """Caches the unit vectors of label sets, one row per label."""

    def __init__(self, *, max_bytes: int) -> None:
        super().__init__(max_bytes=max_bytes, key_bytes=_key_bytes)


def _key_bytes(labels: LabelSet) -> int:
    _, template, texts = labels
    # A character takes at most 4 bytes.
    return 4 * (len(template) + sum(map(len, texts))) + _LABEL_BYTES * len(texts)
