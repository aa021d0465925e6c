"""Writes the report of drills as a page of Markdown."""

from collections.abc import Iterable

from loadtests.drills.faults import DRILLS, Drill
from loadtests.drills.run import DrillResult

_HEAD = """# Drills

`make drills` injects faults into a running system (two regions, one worker, both Redis, billing),
which a Prometheus scrapes with the rules of `deploy/`, under {rate} requests a second.
For each it records which alerts fire after how many seconds, how callers of the model that is not
at fault are answered, and what the panels show that an operator looks at.
Each alert has a [page](runbooks/README.md). Prometheus scrapes and evaluates every {interval}.

Measured on {machine}.
"""
_RATE = 35


def report(results: Iterable[DrillResult], *, interval: str, machine: str) -> str:
    """Return the page."""
    parts = [
        _HEAD.format(interval=interval, machine=machine, rate=_RATE),
        _summary(results := list(results)),
    ]
    drills = {drill.name: drill for drill in DRILLS}
    parts += [_section(drills[result.name], result) for result in results]
    return "\n".join(parts)


def _summary(results: list[DrillResult]) -> str:
    lines = ["| fault | first expected alert | other alerts | answers |", "|---|---|---|---|"]
    for each in results:
        expected = {name: at for name, at in each.fired.items() if name in each.expected}
        others = {name: at for name, at in each.fired.items() if name not in expected}
        first = _alerts(dict(sorted(expected.items(), key=lambda item: item[1])[:1])) or "none"
        lines.append(f"| {each.name} | {first} | {_alerts(others) or '-'} | {_answers(each)} |")
    return "\n".join(lines) + "\n"


def _section(drill: Drill, result: DrillResult) -> str:
    lines = [
        f"## {drill.name[0].upper()}{drill.name[1:]}",
        "",
        f"{drill.what[0].upper()}{drill.what[1:]}, for {result.seconds:.0f} s.",
        "",
        "| alert | fires after |",
        "|---|---|",
        *(f"| {_link(name)} | {at:.0f} s |" for name, at in sorted(result.fired.items(), key=_at)),
        "",
        "| panel | before | at the end |",
        "|---|---|---|",
        *(f"| {each.panel} | {each.before} | {each.after} |" for each in result.seen),
        "",
        f"The cause: {drill.cause}.",
        "",
    ]
    return "\n".join(lines)


def _at(item: tuple[str, float]) -> float:
    return item[1]


def _alerts(fired: dict[str, float]) -> str:
    return ", ".join(f"{_link(name)} ({at:.0f} s)" for name, at in sorted(fired.items(), key=_at))


def _link(name: str) -> str:
    return f"[{name}](runbooks/{name}.md)"


def _answers(result: DrillResult) -> str:
    return ", ".join(f"{count:,} x {status or 'none'}" for status, count in result.statuses.items())
