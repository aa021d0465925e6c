"""Keeps the result of each case as a line of JSON, and prints results as a table."""

import subprocess
from collections.abc import Container, Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any  # figures of many kinds

import msgspec

RESULTS = Path(__file__).parents[2] / "build/faults.jsonl"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a case at a commit. No `findings` means that all invariants held."""

    case: str
    """Topology, fault and part: `processes kill worker`."""
    commit: str
    date: str
    seconds: float
    figures: dict[str, Any]
    findings: list[str]


class ResultFile:
    """A file of records. The last record of a case and commit counts."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, record: Record) -> None:
        """Append a record at once, so that an interrupted run loses nothing."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(record) + b"\n")

    def records(self, commit: str) -> dict[str, Record]:
        """Return the records of a commit by case, in the order in which cases were first run."""
        lines = self._path.read_bytes().splitlines() if self._path.exists() else []
        found = (msgspec.json.decode(line, type=Record) for line in lines)
        return {each.case: each for each in found if each.commit == commit}

    def broken(self, commit: str, cases: Container[str]) -> list[str]:
        """Return the cases of a commit that have findings, also from an earlier run."""
        found = self.records(commit).values()
        return [each.case for each in found if each.findings and each.case in cases]


def current_commit() -> str:
    """Return the commit that is checked out, with a `+` and a digest if files of it were changed.

    Other changes are another program, whose results are not the ones of this one.
    """
    head = _git("rev-parse", "--short=8", "HEAD") or "none"
    changes = _git("diff", "HEAD", "--binary")
    return f"{head}+{blake2b(changes.encode(), digest_size=4).hexdigest()}" if changes else head


def table(records: Iterable[Record]) -> Iterator[str]:
    """Yield the lines of a Markdown table with a row for each record."""
    yield "| case | requests | wrong | errors | allowed | p99 around it | more | result |"
    yield "|---|---|---|---|---|---|---|---|"
    for record in records:
        rest = dict(record.figures)
        requests, wrong = (rest.pop(name, "-") for name in ("requests", "wrong"))
        errors, codes = rest.pop("errors", "-"), rest.pop("codes", {})
        start, end = rest.pop("errors_from", 0.0), rest.pop("errors_to", 0.0)
        if errors and errors != "-":
            errors = f"{errors} at {start} to {end} s, {codes}"
        times = [rest.pop(f"p99_{when}", None) for when in ("before", "during", "after")]
        shown = ", ".join("-" if each is None else f"{each * 1000:.0f}" for each in times)
        allowed = rest.pop("allowed", "-")
        other = ", ".join(f"{name} {value}" for name, value in rest.items())
        result = "; ".join(record.findings) or "as it must"
        yield (
            f"| {record.case} | {requests} | {wrong} | {errors} | {allowed}"
            f" | {shown} ms | {other} | {result} |"
        )


def _git(*words: str) -> str:
    command = ("git", *words)
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    return done.stdout.strip()
