"""Keeps the result of each case as a line of JSON, and prints results as a table."""

import subprocess
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple  # figures are values of many types

import msgspec

_RESULTS = Path(__file__).parents[2] / "build/faults.jsonl"
HEADING = "| case | result | figures |\n|---|---|---|"


class Record(NamedTuple):
    """The result of a case at a commit. No `findings` means that all invariants held."""

    case: str
    """Topology, fault and part: `processes kill worker`."""
    commit: str
    figures: dict[str, Any]
    findings: list[str]


def add(record: Record) -> None:
    """Append a record immediately, so that an interrupted run keeps its results."""
    _RESULTS.parent.mkdir(exist_ok=True)
    with _RESULTS.open("ab") as file:
        file.write(msgspec.json.encode(record) + b"\n")


def records(commit: str) -> list[Record]:
    """Return the records of a commit, in the order in which the cases ran."""
    lines = _RESULTS.read_bytes().splitlines() if _RESULTS.exists() else []
    found = [msgspec.json.decode(line, type=Record) for line in lines]
    return [each for each in found if each.commit == commit]


def current_commit() -> str:
    """Return the commit that is checked out.

    If files differ from the commit, `+` and a digest of the difference follow. So the results of a
    changed program do not mix with the results of the commit.
    """
    head = _git("rev-parse", "--short=8", "HEAD").decode()
    changes = _git("diff", "HEAD", "--binary")
    return f"{head}+{blake2b(changes, digest_size=4).hexdigest()}" if changes else head


def row(record: Record) -> str:
    """Return the record as a row of a table in Markdown, below `HEADING`. Times are in seconds."""
    figures = ", ".join(f"{name} {value}" for name, value in record.figures.items())
    return f"| {record.case} | {'; '.join(record.findings) or 'as it must'} | {figures} |"


def _git(*words: str) -> bytes:
    command = ("git", *words)
    return subprocess.run(command, capture_output=True, check=True).stdout.strip()
