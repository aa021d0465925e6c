"""Items that ended a process are refused for a while, and no more of them than there is room."""

import pytest

from sluicegate.backends.algorithms.refused_items import RefusedItems
from sluicegate.backends.errors import ItemRefused


def test_an_item_is_refused_for_a_while() -> None:
    refused = RefusedItems(time=60.0)
    refused.add(b"a", now=100.0)

    with pytest.raises(ItemRefused) as caught:
        refused.check(b"a", now=159.0)
    refused.check(b"b", now=159.0)
    refused.check(b"a", now=160.0)

    assert caught.value.code == "algorithm_killed"


def test_the_latest_are_remembered() -> None:
    refused = RefusedItems(most=2)
    for digest in (b"a", b"b", b"a", b"c"):
        refused.add(digest, now=0.0)

    refused.check(b"b", now=1.0)
    for digest in (b"a", b"c"):
        with pytest.raises(ItemRefused):
            refused.check(digest, now=1.0)
