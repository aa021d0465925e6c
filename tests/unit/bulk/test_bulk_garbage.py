"""Garbage collection while a bulk job runs."""

import gc
from collections.abc import Iterator

import pytest

from sluicegate.bulk.garbage import tuned_gc

_THRESHOLDS = (700, 10, 10)


@pytest.fixture(autouse=True)
def _usual_thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*_THRESHOLDS)
    yield
    gc.set_threshold(*before)


def test_collections_exempt_what_was_loaded_before_and_are_as_before_afterwards() -> None:
    """A full collection traverses what the job makes, and no libraries."""
    with tuned_gc():
        exempt, during = gc.get_freeze_count(), gc.get_threshold()

    assert exempt > 10_000
    assert during > _THRESHOLDS
    assert gc.get_threshold() == _THRESHOLDS
    assert gc.get_freeze_count() < exempt
