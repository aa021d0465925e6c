"""Records the revisions that were served last, so that a start with a broken one finds them.

The file is hidden and lies in the model's folder: what was served belongs to no model's digest.
Where the folder cannot be written, a start has only the numbers to go by.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from backends.repository.publishing import replace_file

FILE = ".last-served.json"


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    revisions: dict[str, int]


def read_last_good(folder: Path) -> Mapping[str, int]:
    """Return the shares of the revisions that were served last; empty where there is no record."""
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=_Record).revisions
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return {}


def write_last_good(folder: Path, shares: Mapping[str, int]) -> None:
    """Keep the shares of the revisions that are served now, if they changed."""
    if read_last_good(folder) == shares:
        return
    replace_file(folder / FILE, msgspec.json.encode(_Record(revisions=dict(shares))))
