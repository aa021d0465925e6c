"""Prints tables, and keeps them as JSON so that later runs can be compared."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec

from loadtests.generator import Outcome
from loadtests.machine import Machine, this_machine
from loadtests.turns import middle, paired

Line = dict[str, object]
"""The cells of a table line, by column."""


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Processor time for each request, in microseconds.

    `server` is the measured server, `others` are processes that it needs (Redis, events),
    `generator` is the load generator.
    """

    server: float
    others: float
    generator: float


class Turn(NamedTuple):
    """One run of a variant: its outcome, and the processor time of a request."""

    outcome: Outcome
    costs: Costs


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the usual table: latencies in milliseconds, ratios relative to the first line."""

    what: str
    rate: float
    ratio: float
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    p999: float | None = None
    statuses: dict[int, int] = {}
    costs: Costs | None = None
    economy: float | None = None
    """Requests per second of the server's processor time, relative to the first line."""

    def line(self) -> Line:
        """Return the cells of all columns; unknown values are `None`."""
        costs = self.costs
        return {
            "what": self.what,
            "a second": self.rate,
            "of the first": self.ratio,
            "p50 ms": self.p50,
            "p95 ms": self.p95,
            "p99 ms": self.p99,
            "p99.9 ms": self.p999,
            "statuses": self.statuses or None,
            "µs: server": costs.server if costs else None,
            "µs: others": costs.others if costs else None,
            "µs: generator": costs.generator if costs else None,
            "of the first by server time": self.economy,
        }


def row_of(what: str, run: Outcome, *, baseline: float, items: int = 1) -> Row:
    """Return the line of a run whose requests have `items` items each."""
    p50, p95, p99, p999 = (
        milliseconds(run.percentile(share)) if run.latencies else None
        for share in (0.5, 0.95, 0.99, 0.999)
    )
    return Row(
        what=what,
        rate=run.rate * items,
        ratio=run.rate * items / baseline,
        p50=p50,
        p95=p95,
        p99=p99,
        p999=p999,
        statuses=run.statuses,
    )


def table_of(
    turns: Mapping[str, Sequence[Turn]], *, by: Callable[[Turn], float] | None = None
) -> list[Row]:
    """Return for each variant the run with the median rate, and medians of ratios and CPU times.

    If `by` is given, the run with the median of `by` is taken instead of the run with the median
    rate. A steady load needs `by`, because all its runs have the same rate. The statuses are the
    sum over all runs.
    """
    first = next(iter(turns.values()))
    return [
        msgspec.structs.replace(
            row_of(what, middle(runs, by or _rate).outcome, baseline=1.0),
            ratio=paired(list(map(_rate, runs)), list(map(_rate, first))),
            statuses=dict(sum((Counter(run.outcome.statuses) for run in runs), Counter[int]())),
            costs=_costs(runs),
            economy=_economy(first, runs),
        )
        for what, runs in turns.items()
    ]


def show(title: str, rows: Sequence[Row | Line], *notes: str, keep: bool = True) -> None:
    """Print machine, date and commit, then a table and notes.

    With `keep`, also write a result file.
    """
    machine = heading(title)
    lines = [row.line() if isinstance(row, Row) else row for row in rows]
    columns = [
        column
        for column in dict.fromkeys(itertools.chain(*lines))
        if any(line.get(column) is not None for line in lines)
    ]
    print_table(columns, ([_shown(line.get(column)) for column in columns] for line in lines))
    for note in notes:
        print(f"\n{note}")
    if not keep:
        return
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    name = title.split(":", maxsplit=1)[0].lower().replace(" ", "-")
    result = {"title": title, "machine": machine, "rows": rows, "notes": notes}
    path = folder / f"{machine.date}-{name}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")


def milliseconds(seconds: float) -> float:
    """Return a duration in milliseconds, rounded for a table."""
    return round(seconds * 1000, 2)


def heading(title: str) -> Machine:
    """Print a title and a line on this machine; return the machine."""
    machine = this_machine()
    print(f"\n## {title}\n\n{machine.headline}\n")
    return machine


def table(columns: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """Return a table as Markdown."""
    every = (columns, ["---"] * len(columns), *lines)
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in every)


def print_table(columns: Sequence[str], lines: Iterable[Sequence[object]]) -> None:
    """Print a table as Markdown."""
    print(table(columns, lines))


def _rate(run: Turn) -> float:
    return run.outcome.rate


def _costs(runs: Sequence[Turn]) -> Costs | None:
    """Return the medians; `None` if no server was metered."""
    server, others, generator = (
        median(getattr(run.costs, name) for run in runs) for name in Costs.__struct_fields__
    )
    return Costs(server=server, others=others, generator=generator) if server else None


def _economy(first: Sequence[Turn], runs: Sequence[Turn]) -> float | None:
    if not all(run.costs.server for run in (*first, *runs)):
        return None
    return paired([run.costs.server for run in first], [run.costs.server for run in runs])


def _shown(cell: object) -> str:
    """Return a cell as text with its significant digits."""
    if isinstance(cell, float):
        size = abs(cell)
        shown = ",.0f" if size >= 100 else ",.1f" if size >= 10 else ".2f" if size >= 1 else ".3g"
        return f"{cell:{shown}}"
    if isinstance(cell, int):
        return f"{cell:,}"
    return "-" if cell is None else str(cell)
