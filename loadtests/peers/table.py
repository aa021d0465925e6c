"""Renders the peers' table, and says where a server's answers are not those of the first."""

from collections.abc import Mapping, Sequence

import msgspec

from backends.protocol import Task
from loadtests.generator import Outcome

# Of scores, and of the components of vectors of length one.
TOLERANCES = {"fp32": 1e-3, "bf16": 2e-2}
_WANTED = 1.35


class AnswersDiffer(Exception):
    """A server does other work than the first; the message says where."""


class PeerRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run, and the processor time of all the server's processes for a sentence, in seconds."""

    outcome: Outcome
    busy: float


class PeerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A server in one configuration: the medians of its runs, or why there are none.

    Times in milliseconds. `rates` and `efforts` are how many times as much the servers of
    Sluicegate answer, in a second and in a second of processor time, in the order of the table.
    """

    what: str
    rate: float = 0.0
    busy: float = 0.0
    p50: float = 0.0
    p95: float = 0.0
    rates: tuple[float, ...] = ()
    efforts: tuple[float, ...] = ()
    statuses: dict[int, int] = {}
    failure: str = ""


def check_answers(
    expected: Sequence[Sequence[float]],
    rows: Sequence[Sequence[float]],
    *,
    task: Task = Task.CLASSIFY,
    tolerance: float = TOLERANCES["fp32"],
) -> None:
    """Return when each sentence has the same label, and values within `tolerance`.

    Raises:
        AnswersDiffer: one has not.
    """
    if len(rows) != len(expected):
        raise AnswersDiffer(f"{len(rows)} answers, not {len(expected)}")
    for number, (row, wanted) in enumerate(zip(rows, expected, strict=True)):
        if len(row) != len(wanted):
            raise AnswersDiffer(f"{len(row)} values, not {len(wanted)}, at {number}")
        far = max(abs(a - b) for a, b in zip(row, wanted, strict=True))
        is_other = task is Task.CLASSIFY and row.index(max(row)) != wanted.index(max(wanted))
        if is_other or not far <= tolerance:  # nor is NaN within it
            raise AnswersDiffer(f"answers differ by {far:.4f} at {number}")


def lines(
    measured: Mapping[str, list[PeerRun]], failures: Mapping[str, str], *, own: int
) -> list[PeerRow]:
    """Return a line for each; the first `own` are what the others are compared with."""
    medians = {}
    for what, runs in measured.items():
        outcome = sorted((run.outcome for run in runs), key=lambda run: run.rate)[len(runs) // 2]
        medians[what] = outcome, sorted(run.busy for run in runs)[len(runs) // 2]
    ours = list(medians.values())[:own]
    return [
        PeerRow(
            what=what,
            rate=round(run.rate, 1),
            busy=round(busy * 1000, 3),
            p50=round(run.percentile(0.5) * 1000, 1),
            p95=round(run.percentile(0.95) * 1000, 1),
            rates=tuple(round(our.rate / run.rate, 2) for our, _ in ours),
            efforts=tuple(round(busy / our, 2) for _, our in ours),
            statuses=run.statuses,
        )
        for what, (run, busy) in medians.items()
    ] + [PeerRow(what=what, failure=reason) for what, reason in failures.items()]


def markdown(table: Sequence[PeerRow]) -> str:
    """Return the table as people read it; failures are said in their place."""
    head = "| what answers | sentences/s | Sluicegate's is | processor ms a sentence "
    out = [f"{head}| Sluicegate's is less by | p50 ms | p95 ms | statuses |"]
    out.append("|---" * 8 + "|")
    for line in table:
        if line.failure:
            out.append(f"| {line.what} | failed: {line.failure.replace('|', '/')} |" + " |" * 6)
        else:
            out.append(
                f"| {line.what} | {line.rate:,.0f} | {_times(line.rates)} "
                f"| {line.busy:.2f} | {_times(line.efforts)} "
                f"| {line.p50:.0f} | {line.p95:.0f} | {line.statuses} |"
            )
    return "\n".join(out)


def verdict(table: Sequence[PeerRow], *, own: int) -> str:
    """Say how each server of ours stands beside the best configuration of any peer."""
    peers = [line for line in table[own:] if not line.failure]
    if not peers:
        return "No peer was measured."
    quickest = max(peers, key=lambda line: line.rate)
    leanest = min(peers, key=lambda line: line.busy)
    return "\n".join(
        f"{ours.what}: {quickest.rates[number]:.2f} times the rate of `{quickest.what}`, "
        f"{leanest.efforts[number]:.2f} times less processor time than `{leanest.what}` "
        f"(aim: {_WANTED})."
        for number, ours in enumerate(table[:own])
    )


def _times(ratios: tuple[float, ...]) -> str:
    return ", ".join(f"{ratio:.2f} x" for ratio in ratios)
