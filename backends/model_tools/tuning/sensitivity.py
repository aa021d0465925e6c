"""Finds the fewest products of a graph that must stay in float."""

from collections.abc import Callable, Mapping

Flips = Callable[[frozenset[str]], float]


def find_sensitive(
    sizes: Mapping[str, int], *, flips: Flips, damage: Callable[[str], float], bound: float
) -> frozenset[str]:
    """Return products to keep in float, so that `flips` of these products is at most `bound`.

    `flips` gets the products that stay in float, and returns the share of labels that change.
    `damage` returns how much logits change if only the given product is in int8. The search begins
    with the products that do the most damage in relation to their size. `damage` is called only if
    int8 for all products exceeds `bound`.
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
