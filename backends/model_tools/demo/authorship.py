"""Records which revisions the demo build made, so that it replaces no others.

Each revision that it writes holds a hidden file with the digests of its files.
"""

import hashlib
import json
from pathlib import Path

MARK = ".sluicegate-demo.json"


def sign(revision: Path) -> None:
    """Write the mark into a revision that is complete."""
    text = json.dumps({"files": _digests(revision)}, indent=1)
    (revision / MARK).write_text(text, encoding="utf-8")


def is_own(revision: Path, built: Path) -> bool:
    """Whether the build made a revision, whole or damaged.

    `built` is the same revision as it is made now: a file that lost its end is the beginning of
    the one there. A file that somebody added or changed makes the revision somebody else's.
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
    """Whether an unmarked revision equals what would be built: releases before marks."""
    try:
        return _digests(revision) == _digests(built)
    except OSError:
        return False


def _digests(revision: Path) -> dict[str, str]:
    """Return the digest of each file; hidden ones are what backends measured and prepared."""
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
