"""Finds the fewest products of a graph that must stay in float."""

from collections.abc import Callable, Mapping

Flips = Callable[[frozenset[str]], float]


def find_sensitive(
    sizes: Mapping[str, int], *, flips: Flips, damage: Callable[[str], float], bound: float
) -> frozenset[str]:
    """Return the products to keep in float so that `flips` of them is at most `bound`.

    `flips` says what share of labels flips when all but the given products are in eight bits, and
    `damage` how far logits move when one alone is. Those that do most damage for their size are
    kept first; `damage` is only asked when not all can be in eight bits.
    """
    if flips(frozenset()) <= bound:
        return frozenset()
    order = sorted(sizes, key=lambda name: damage(name) / sizes[name], reverse=True)
    too_few, enough = 0, len(order)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if flips(frozenset(order[:middle])) <= bound:
            enough = middle
        else:
            too_few = middle
    return frozenset(order[:enough])
