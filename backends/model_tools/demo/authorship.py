"""Marks revisions that the demo build wrote, so that the build replaces no other revisions.

The mark is a hidden file in each revision, with the digests of the revision's files.
"""

import hashlib
import json
from pathlib import Path

MARK = ".sluicegate-demo.json"


def sign(revision: Path) -> None:
    """Write the mark into a complete revision."""
    text = json.dumps({"files": _digests(revision)}, indent=1)
    (revision / MARK).write_text(text, encoding="utf-8")


def is_own(revision: Path, built: Path) -> bool:
    """Return whether a build wrote a revision, even if the revision was damaged afterwards.

    `built` is the same revision, built again. A file counts as written by the build if it is
    unchanged, or if it is a truncated copy of the file in `built`. If the revision contains a file
    of any other kind, somebody has changed the revision.
    """
    try:
        signed = json.loads((revision / MARK).read_bytes())["files"]
        return all(
            signed.get(name) == digest or _is_beginning(revision / name, built / name)
            for name, digest in _digests(revision).items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return _is_equal(revision, built)


def _is_equal(revision: Path, built: Path) -> bool:
    """Whether a revision without a mark equals `built`.

    This recognizes revisions of earlier releases, which wrote no marks.
    """
    try:
        return _digests(revision) == _digests(built)
    except OSError:
        return False


def _digests(revision: Path) -> dict[str, str]:
    """Return the digest of each file, except hidden files, which backends write."""
    found = {}
    for path in sorted(revision.rglob("*")):
        parts = path.relative_to(revision).parts
        if path.is_file() and not any(part.startswith(".") for part in parts):
            with path.open("rb") as file:
                found["/".join(parts)] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def _is_beginning(path: Path, whole: Path) -> bool:
    if not whole.is_file() or path.stat().st_size > whole.stat().st_size:
        return False
    content = path.read_bytes()
    with whole.open("rb") as file:
        return file.read(len(content)) == content
