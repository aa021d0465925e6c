"""Generates seeded distinct sentences that are as long as the sentences of film reviews."""

import random

# Everyday words, each a single token in the demo model's vocabulary.
_WORDS = (  # noqa: SIM905 - a hundred quoted words are no easier to read
    "the a of to and in that it is was for on with as but not this film story movie one you all by"
    " from at have more than its an are has be who so what about up out if can into just time like"
    " good bad great funny dark warm cold long short young old new little big best worst comedy"
    " drama action heart mind people life work world family performance director music script"
    " character scene moment humor feeling picture screen beautiful simple strange rich thin loud"
    " quiet slow fast never always often even still much most some any every other first last"
).split()


def sentences(count: int, *, seed: int) -> list[str]:
    """Return `count` distinct sentences with a median of 9 words and a maximum of 50 words."""
    chooser = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        length = min(50, max(2, round(chooser.lognormvariate(2.2, 0.6))))
        found[" ".join(chooser.choices(_WORDS, k=length))] = None
    return list(found)
