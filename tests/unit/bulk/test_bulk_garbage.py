"""Garbage collection while a bulk job runs."""

import gc

from bulk.garbage import tuned_gc


def test_collections_exempt_what_was_loaded_before_and_are_as_before_afterwards() -> None:
    """A full collection traverses what the job makes, and no libraries."""
    before = gc.get_threshold()

    with tuned_gc():
        exempt, during = gc.get_freeze_count(), gc.get_threshold()

    assert exempt > 10_000
    assert during > before
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() < exempt
