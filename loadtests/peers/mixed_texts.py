"""Generates texts of which half repeat earlier ones, by Zipf's law."""

import random

from loadtests.workload import sentences

_NEW = 0.5


def mixed_texts(count: int, *, seed: int) -> list[str]:
    """Return `count` texts: each other one is new, on average, and the rest repeat earlier ones.

    The one that came n-th is repeated with a chance that falls as 1 / n.
    """
    chooser = random.Random(seed)
    unseen = sentences(count, seed=seed)
    seen: list[str] = []
    texts = []
    for _ in range(count):
        if not seen or chooser.random() < _NEW:
            seen.append(unseen[len(seen)])
            texts.append(seen[-1])
        else:
            # The logarithm of such a rank is uniform.
            texts.append(seen[int((len(seen) + 1) ** chooser.random()) - 1])
    return texts
