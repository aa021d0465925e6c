"""Records the revisions that were served last, in case the newest revision is broken.

A backend that starts can then serve a recorded revision. The record is a hidden file in the model's
folder, so it is not part of the model's digest. If the folder is read-only, nothing is recorded.
Then a backend that starts tries the newest revisions first.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from sluicegate.backends.repository.publishing import replace_file

FILE = ".last-served.json"


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    revisions: dict[str, int]


def read_last_good(folder: Path) -> Mapping[str, int]:
    """Return the weights of the revisions that were served last; empty if none are recorded."""
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=_Record).revisions
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return {}


def write_last_good(folder: Path, shares: Mapping[str, int]) -> None:
    """Record the weights of the revisions that are served now, if they changed."""
    if read_last_good(folder) == shares:
        return
    replace_file(folder / FILE, msgspec.json.encode(_Record(revisions=dict(shares))))
