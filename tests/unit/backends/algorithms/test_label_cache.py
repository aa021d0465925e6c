"""Label sets are kept, so many bytes of them; the one used longest ago makes room."""

import numpy as np

from sluicegate.backends.algorithms.label_cache import LabelVectorCache

_KIB = 1024


def test_the_set_used_longest_ago_makes_room() -> None:
    kept = LabelVectorCache(max_bytes=25 * _KIB)
    sets = [("tenant", "{}", (name,)) for name in "abc"]
    directions = np.ones((10, 256), dtype=np.float32)

    kept.put(sets[0], directions)
    kept.put(sets[1], directions)
    kept.get(sets[0])
    kept.put(sets[2], directions)

    assert [kept.get(one) is not None for one in sets] == [True, False, True]


def test_however_large_sets_are_they_take_no_more_than_the_bound() -> None:
    kept = LabelVectorCache(max_bytes=100 * _KIB)
    labels = ("x" * 20 * _KIB,)

    for number in range(10):
        kept.put((f"tenant-{number}", "{}", labels), np.ones((1, 4), dtype=np.float32))
    kept.put(("tenant", "{}", ("large",)), np.ones((100, 1024), dtype=np.float32))
    held = [kept.get((f"tenant-{number}", "{}", labels)) is not None for number in range(10)]

    assert held == [False] * 9 + [True]
    assert kept.get(("tenant", "{}", ("large",))) is None
    assert kept.size_bytes <= 100 * _KIB


def test_a_set_that_is_kept_anew_counts_once() -> None:
    kept = LabelVectorCache(max_bytes=25 * _KIB)
    directions = np.ones((10, 256), dtype=np.float32)

    for _ in range(5):
        kept.put(("tenant", "{}", ("a",)), directions)
    kept.put(("tenant", "{}", ("b",)), directions)

    assert kept.get(("tenant", "{}", ("a",))) is not None
