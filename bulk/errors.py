"""Defines the errors that end a bulk job early."""


class BulkStopped(Exception):
    """Reports in one line why a job cannot begin or continue."""


def too_many_failed(failed: int, most: int) -> BulkStopped:
    """Return the error of a job with more than `most` failed rows."""
    return BulkStopped(
        f"{failed} rows have failed, but --max-errors is {most}; see `_errors.jsonl` in the output"
    )
