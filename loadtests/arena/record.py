"""Stores the results of cases as lines of JSON and renders them as a table."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from loadtests.arena.judging import LedgerComparison, Verdict


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a case; `findings` is empty if all held."""

    case: str
    commit: str
    time: float
    rate: float
    begun: float
    ended: float
    window: str
    verdict: Verdict
    books: LedgerComparison
    ledger_settled: float
    """Seconds from the last answer until the ledger had all of them."""
    memory: dict[str, float]
    findings: list[str]


class ResultFile:
    """A file of results, of which the last one of a case counts."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, result: Result) -> None:
        """Append a result at once, so that an interrupted run loses nothing."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(result) + b"\n")

    def results(self) -> dict[str, Result]:
        """Return the last result of each case, in the order in which cases were first run."""
        if not self._path.exists():
            return {}
        lines = self._path.read_bytes().splitlines()
        found = (msgspec.json.decode(line, type=Result) for line in lines)
        return {result.case: result for result in found}


def table(results: Iterable[Result]) -> Iterator[str]:
    """Yield the lines of a table with a row for each case."""
    yield (
        "| case | requests | wrong | errors | when | allowed | p99 ms before, during, after"
        " | answered, billed | largest process | |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for result in results:
        verdict, books = result.verdict, result.books
        when = f"{verdict.errors_from:.1f} to {verdict.errors_to:.1f} s" if verdict.errors else "-"
        times = (verdict.p99_before, verdict.p99_during, verdict.p99_after)
        yield (
            f"| {result.case} | {verdict.requests:,} | {verdict.wrong} | {verdict.errors} | {when}"
            f" | {result.window} | {', '.join(f'{seconds * 1000:.0f}' for seconds in times)}"
            f" | {books.answered:,}, {books.billed:,} | {_largest(result.memory)}"
            f" | {'; '.join(result.findings) or 'as it must'} |"
        )


def _largest(memory: Mapping[str, float]) -> str:
    if not memory:
        return "-"
    kind = max(memory, key=lambda name: memory[name])
    return f"{kind} {memory[kind]:.0f} MiB"
