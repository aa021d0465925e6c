"""Renders the peers' table and refuses it when their answers differ."""

from collections.abc import Mapping

import msgspec

from loadtests.generator import Outcome

TOLERANCE = 1e-3


class AnswersDiffer(Exception):
    """Servers that should do the same work do not; the message names them."""


class PeerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A server in one configuration: the median of its runs, or why there is none.

    Latencies in milliseconds; `ours` is how many times as much Sluicegate's backend answers.
    """

    what: str
    rate: float = 0.0
    p50: float = 0.0
    p95: float = 0.0
    ours: float = 0.0
    statuses: dict[int, int] = {}
    failure: str = ""


def check_answers(answers: Mapping[str, list[list[float]]]) -> None:
    """Return when all servers gave each sentence the same label, and scores within `TOLERANCE`.

    The first is what the others are compared with; scores are negative, then positive.

    Raises:
        AnswersDiffer: a server did not.
    """
    (first, expected), *others = answers.items()
    for name, rows in others:
        if len(rows) != len(expected):
            raise AnswersDiffer(f"`{name}` gave {len(rows)} answers, `{first}` {len(expected)}")
        for number, (row, wanted) in enumerate(zip(rows, expected, strict=True)):
            label = row.index(max(row)) == wanted.index(max(wanted))
            far = max(abs(a - b) for a, b in zip(row, wanted, strict=True))
            if not label or far > TOLERANCE:
                raise AnswersDiffer(f"`{name}` and `{first}` differ by {far:.4f} at {number}")


def lines(measured: Mapping[str, list[Outcome]], failures: Mapping[str, str]) -> list[PeerRow]:
    """Return a line for each; the first measured is what the others are compared with."""
    medians = {
        what: sorted(runs, key=lambda run: run.rate)[len(runs) // 2]
        for what, runs in measured.items()
    }
    ours = next(iter(medians.values())).rate
    return [
        PeerRow(
            what=what,
            rate=round(run.rate, 1),
            p50=round(run.percentile(0.5) * 1000, 1),
            p95=round(run.percentile(0.95) * 1000, 1),
            ours=round(ours / run.rate, 2),
            statuses=run.statuses,
        )
        for what, run in medians.items()
    ] + [PeerRow(what=what, failure=reason) for what, reason in failures.items()]


def markdown(table: list[PeerRow]) -> str:
    """Return the table as people read it; failures are said in their place."""
    out = ["| what answers | sentences/s | Sluicegate's is | p50 ms | p95 ms | statuses |"]
    out.append("|---|---|---|---|---|---|")
    for line in table:
        if line.failure:
            out.append(f"| {line.what} | failed: {line.failure.replace('|', '/')} | | | | |")
        else:
            out.append(
                f"| {line.what} | {line.rate:,.0f} | {line.ours:.2f} x "
                f"| {line.p50:.0f} | {line.p95:.0f} | {line.statuses} |"
            )
    return "\n".join(out)
