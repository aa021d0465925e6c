"""Defines what ends a bulk job before its last row."""


class BulkStopped(Exception):
    """Says why a job cannot begin or go on; in one line, for the person who started it."""


def too_many_failed(failed: int, most: int) -> BulkStopped:
    """Return what ends a job of which more rows have failed than it may have."""
    return BulkStopped(
        f"{failed} rows have failed, and --max-errors is {most}; "
        "`_errors.jsonl` in the output says which and why"
    )
