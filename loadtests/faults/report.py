"""Keeps the result of each case as a line of JSON, and prints results as a table."""

import subprocess
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any  # figures of many kinds

import msgspec

RESULTS = Path(__file__).parents[2] / "build/faults.jsonl"
HEADING = "| case | result | figures |\n|---|---|---|"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a case at a commit. No `findings` means that all invariants held."""

    case: str
    """Topology, fault and part: `processes kill worker`."""
    commit: str
    date: str
    seconds: float
    figures: dict[str, Any]
    findings: list[str]


def add(path: Path, record: Record) -> None:
    """Append a record immediately, so that an interrupted run keeps its results."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(msgspec.json.encode(record) + b"\n")


def records(path: Path, commit: str) -> dict[str, Record]:
    """Return the last record of each case at a commit, in the order in which cases first ran."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    found = (msgspec.json.decode(line, type=Record) for line in lines)
    return {each.case: each for each in found if each.commit == commit}


def current_commit() -> str:
    """Return the commit that is checked out.

    If files differ from the commit, `+` and a digest of the difference follow.

    So the results of a changed program do not mix with the results of the commit.
    """
    head = _git("rev-parse", "--short=8", "HEAD") or "none"
    changes = _git("diff", "HEAD", "--binary")
    return f"{head}+{blake2b(changes.encode(), digest_size=4).hexdigest()}" if changes else head


def rows(found: Iterable[Record]) -> Iterator[str]:
    """Yield a table row in Markdown for each record, to print below `HEADING`; times in seconds."""
    for record in found:
        figures = ", ".join(f"{name} {value}" for name, value in record.figures.items())
        yield f"| {record.case} | {'; '.join(record.findings) or 'as it must'} | {figures} |"


def _git(*words: str) -> str:
    command = ("git", *words)
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    return done.stdout.strip()
