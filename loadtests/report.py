"""Prints tables for people and JSON for later comparison."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from loadtests.generator import Outcome
from loadtests.machine import Machine, this_machine
from loadtests.turns import middle


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Processor time for each request, in microseconds.

    The `server`, the `others` that it needs (Redis, events), and the load generator.
    """

    server: float
    others: float
    generator: float


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a table. Latencies in milliseconds; `ratio` is to the table's first line."""

    what: str
    rate: float
    ratio: float
    p50: float | None = None
    p99: float | None = None
    statuses: dict[int, int] = {}
    costs: Costs | None = None


def row_of(what: str, run: Outcome, *, baseline: float, items: int = 1) -> Row:
    """Return the line of a run; each of its requests has `items` items."""
    rate = run.rate * items
    return Row(
        what=what,
        rate=round(rate, 1),
        ratio=round(rate / baseline, 3),
        p50=milliseconds(run.percentile(0.5)) if run.latencies else None,
        p99=milliseconds(run.percentile(0.99)) if run.latencies else None,
        statuses=run.statuses,
    )


def rows(measured: Mapping[str, Sequence[Outcome]]) -> list[Row]:
    """Return the median run of each; the first is the baseline of the ratios."""
    medians = {what: middle(runs, lambda run: run.rate) for what, runs in measured.items()}
    baseline = next(iter(medians.values())).rate
    return [row_of(what, run, baseline=baseline) for what, run in medians.items()]


def milliseconds(seconds: float) -> float:
    """Return a duration in milliseconds for a table."""
    return round(seconds * 1000, 2)


def heading(title: str, machine: Machine | None = None) -> Machine:
    """Print a title, and the machine on which all below it depends; return the machine."""
    machine = machine or this_machine()
    print(f"\n## {title}\n\n{machine.headline}\n")
    return machine


def table(columns: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """Return a table as Markdown."""
    every = (columns, ["---"] * len(columns), *lines)
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in every)


def print_table(columns: Sequence[str], lines: Iterable[Sequence[object]]) -> None:
    """Print a table as Markdown."""
    print(table(columns, lines))


def show(
    title: str,
    table: list[Row],
    memory: Mapping[str, float] | None = None,
    machine: Machine | None = None,
) -> None:
    """Print a table with the costs and the memory that are known, and keep it."""
    machine = heading(title, machine)
    print_table(
        ("what", "a second", "of the baseline", "p50 ms", "p99 ms", "statuses"),
        [
            (row.what, f"{row.rate:,.0f}", f"{row.ratio:.2f}", *_latencies(row), row.statuses)
            for row in table
        ],
    )
    if costs := [(row.what, row.costs) for row in table if row.costs]:
        print()
        columns = ("what, in µs a request", "server", "what it needs", "both", "load generator")
        each = ((w, c.server, c.others, c.server + c.others, c.generator) for w, c in costs)
        print_table(columns, [(what, *(f"{cost:.1f}" for cost in of)) for what, *of in each])
    if memory:
        print()
        print_table(("process", "MiB (PSS)"), [(n, f"{mib:.0f}") for n, mib in memory.items()])
    keep(title, table, memory or {}, machine)


def _latencies(row: Row) -> tuple[object, object]:
    return ("-", "-") if row.p50 is None else (row.p50, row.p99)


def keep(
    title: str,
    table: Sequence[msgspec.Struct],
    memory: Mapping[str, float],
    machine: Machine,
) -> None:
    """Keep a table under `loadtests/results`, for later comparison."""
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    name = title.split(":", maxsplit=1)[0].lower().replace(" ", "-")
    result = {"title": title, "machine": machine, "rows": table, "memory_mib": memory}
    path = folder / f"{machine.date}-{name}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
