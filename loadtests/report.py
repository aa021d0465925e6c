"""Prints tables for people and JSON for later comparison."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from loadtests.generator import Outcome
from loadtests.machine import Machine


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Processor time for each request, in microseconds.

    That of the `server`, of the `others` it needs (Redis, events), and of the load generator.
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


def rows(measured: dict[str, list[Outcome]]) -> list[Row]:
    """Return the median run of each; the first is the baseline of the ratios."""
    medians = {
        what: sorted(runs, key=lambda run: run.rate)[len(runs) // 2]
        for what, runs in measured.items()
    }
    baseline = next(iter(medians.values())).rate
    return [
        Row(
            what=what,
            rate=round(run.rate, 1),
            ratio=round(run.rate / baseline, 3),
            p50=round(run.percentile(0.5) * 1000, 2) if run.latencies else None,
            p99=round(run.percentile(0.99) * 1000, 2) if run.latencies else None,
            statuses=run.statuses,
        )
        for what, run in medians.items()
    ]


def show(title: str, table: list[Row], memory: dict[str, float], machine: Machine) -> None:
    """Print a table as Markdown, and keep it under `loadtests/results`."""
    print(f"\n## {title}\n\n{machine.headline}\n")
    print("| what | a second | of the baseline | p50 ms | p99 ms | statuses |")
    print("|---|---|---|---|---|---|")
    for row in table:
        latency = f"{row.p50} | {row.p99}" if row.p50 is not None else "- | -"
        print(f"| {row.what} | {row.rate:,.0f} | {row.ratio:.2f} | {latency} | {row.statuses} |")
    if any(row.costs for row in table):
        print("\n| what, in µs a request | server | what it needs | both | load generator |")
        print("|---|---|---|---|---|")
    for row in table:
        if (c := row.costs) is not None:
            each = (
                f"{c.server:.1f} | {c.others:.1f} | {c.server + c.others:.1f} | {c.generator:.1f}"
            )
            print(f"| {row.what} | {each} |")
    if memory:
        print("\n| process | MiB (PSS) |\n|---|---|")
        for name, mib in memory.items():
            print(f"| {name} | {mib:.0f} |")
    keep(title, table, memory, machine)


def keep(
    title: str, table: Sequence[msgspec.Struct], memory: dict[str, float], machine: Machine
) -> None:
    """Keep a table under `loadtests/results`, for later comparison."""
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    name = title.split(":", maxsplit=1)[0].lower().replace(" ", "-")
    result = {"title": title, "machine": machine, "rows": table, "memory_mib": memory}
    path = folder / f"{machine.date}-{name}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
