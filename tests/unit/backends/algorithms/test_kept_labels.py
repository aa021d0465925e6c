"""Label sets are kept, so many of them; the one used longest ago makes room."""

import numpy as np

from backends.algorithms.kept_labels import KeptLabels


def test_the_set_used_longest_ago_makes_room() -> None:
    kept = KeptLabels(most=2)
    sets = [("tenant", "{}", (name,)) for name in "abc"]
    directions = np.ones((1, 2), dtype=np.float32)

    kept.put(sets[0], directions)
    kept.put(sets[1], directions)
    kept.get(sets[0])
    kept.put(sets[2], directions)

    assert [kept.get(one) is not None for one in sets] == [True, False, True]
