"""Compares two results of the same item."""

from collections.abc import Mapping
from typing import Any

import msgspec


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Tells how two results differ.

    If `changed` is true, the results disagree. Otherwise, `largest` is the largest difference
    between two corresponding numbers.
    """

    changed: bool = False
    largest: float = 0.0


_CHANGED = Difference(changed=True)
_NONE = Difference()


def compare(one: Any, other: Any) -> Difference:
    """Compare two results, as parsed JSON.

    Two rankings agree if they have the same labels and the same first label. Other values agree if
    they differ only in floats.
    """
    if _is_number(one) and _is_number(other):
        return Difference(largest=abs(one - other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return _compare_mappings(one, other)
    if isinstance(one, list) and isinstance(other, list):
        if _is_ranking(one) and _is_ranking(other):
            return _compare_rankings(one, other)
        if len(one) != len(other):
            return _CHANGED
        return _worst([compare(*pair) for pair in zip(one, other, strict=True)])
    return _NONE if one == other else _CHANGED


def _compare_mappings(one: Mapping[str, Any], other: Mapping[str, Any]) -> Difference:
    if one.keys() != other.keys():
        return _CHANGED
    return _worst(
        [
            # An integer is a position or a choice, so results with different integers disagree.
            (_NONE if one[key] == other[key] else _CHANGED)
            if isinstance(one[key], int)
            else compare(one[key], other[key])
            for key in one
        ]
    )


def _compare_rankings(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> Difference:
    scores, others = (
        {entry["label"]: entry["score"] for entry in ranking} for ranking in (one, other)
    )
    if one[0]["label"] != other[0]["label"]:
        return _CHANGED
    return _compare_mappings(scores, others)


def _worst(differences: list[Difference]) -> Difference:
    if any(difference.changed for difference in differences):
        return _CHANGED
    return Difference(largest=max((each.largest for each in differences), default=0.0))


def _is_ranking(values: list[Any]) -> bool:
    """Return whether `values` are distinct labels, each with a score and no other field."""
    if not values or not all(isinstance(value, dict) for value in values):
        return False
    if any(value.keys() != {"label", "score"} for value in values):
        return False
    return len({value["label"] for value in values}) == len(values)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
