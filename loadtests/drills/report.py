"""Writes the report of drills as a page of Markdown."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from statistics import median

from loadtests.drills.catalogue import DRILLS, Drill, Step, file_of
from loadtests.drills.results import BlindPlay, DrillResult

_HEAD = """# Drills

Which alerts fire when something breaks, and how fast does an operator find the cause?
Read this page before your first incident: it shows what you see for six faults, step by step.
The [runbooks](runbooks/README.md) say what to do.

`make drills` injects the faults into a running system: two regions, one worker, both Redis,
billing, three small tenants and a large one, {rate} requests a second. A Prometheus scrapes it
every 15 s with the rules of `deploy/`. Seconds count from the fault. The machine has two cores
and other work.

"""
_PLAYS = """
"Cause named" is from blind plays (`make drills ARGS=--blind`): one fault is injected without its
name, and the operator types the cause. The seconds count from the first alert, and are the
median of the plays that were right. The operator had the alerts, the console as a
[viewer](operations/operators.md), the dashboards, the runbooks and the traces, not the logs. All
operators were language models, which read faster than a person; some knew the code or had seen a
fault before. Two plays are left out: one operator saw the name of the fault in a list of
processes, one was busy elsewhere when the alert fired. `loadtests/results/drills-blind.jsonl` has
what each looked at and said.

The pictures show the console in a browser, and panels drawn from the queries of the dashboards in
`deploy/grafana`. A dashed line is the fault. Traces come from a collector: 1 % of requests, and
[each that failed](configuration.md#traces).
"""
_RATE = 38
_TRACES = {"failed": "A trace that failed", "longest": "The longest trace since the fault"}


def report(results: Iterable[DrillResult], plays: Sequence[BlindPlay]) -> str:
    """Return the page."""
    drills = {drill.name: drill for drill in DRILLS}
    results = list(results)
    parts = [_HEAD.format(rate=_RATE) + _summary(results, plays) + _PLAYS]
    parts += ["\n".join(_section(drills[result.name], result)) for result in results]
    return "\n".join(parts)


def _summary(results: Iterable[DrillResult], plays: Sequence[BlindPlay]) -> str:
    lines = [
        "| fault | first alert | expected alerts | other alerts | answers | cause named |",
        "|---|---|---|---|---|---|",
    ]
    for each in results:
        expected = {name: at for name, at in each.fired.items() if name in each.expected}
        others = {name: at for name, at in each.fired.items() if name not in expected}
        cells = (
            *(each.name, _alerts(dict(sorted(each.fired.items(), key=_at)[:1])) or "none"),
            *(_alerts(expected) or "none", _alerts(others) or "-", _answers(each)),
            _named([play for play in plays if play.name == each.name]),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _named(plays: Sequence[BlindPlay]) -> str:
    times = [play.named_after for play in plays if play.is_right]
    if not plays:
        return "-"
    after = f"after {median(times):.0f} s, " if times else ""
    return f"{after}{len(times)} of {len(plays)} right"


def _section(drill: Drill, result: DrillResult) -> Iterator[str]:
    yield f"## {_capital(drill.name)}\n"
    yield f"{_capital(drill.what)}, for {result.seconds:.0f} s."
    yield f"Measured on {result.date} at commit {result.commit}, load {result.load:.1f}.\n"
    yield f"**The alert.** {_first(result)}\n"
    yield from _picture(drill, 0, "The console's overview when the first alert fires")
    for number, step in enumerate(drill.steps, start=1):
        yield f"**Step {number}.** {step.text}\n"
        yield from _shown(drill, step, number, result.traces)
    yield f"**The cause**: {drill.cause}.\n"


def _first(result: DrillResult) -> str:
    ordered = sorted(result.fired.items(), key=_at)
    rounds = [
        f"{' and '.join(_link(name) for name, _ in each)} after {at:.0f} s"
        for at, each in groupby(ordered, key=_at)
    ]
    if not rounds:
        return "None fired."
    return f"{rounds[0]}{', then ' if rounds[1:] else ''}{', '.join(rounds[1:])}."


def _shown(drill: Drill, step: Step, number: int, traces: Mapping[str, str]) -> Iterator[str]:
    if step.view is not None:
        yield from _picture(drill, number, f"The console, {step.view.path}")
    if step.panels:
        titles = ", ".join(f"*{title}*" for _, title in step.panels)
        boards = " and ".join(dict.fromkeys(uid for uid, _ in step.panels))
        caption = f"Drawn from the queries of the dashboard {boards}: {titles}"
        yield f"![{caption.replace('*', '')}](images/drills/{file_of(drill, number, kind='svg')})\n"
        yield f"{caption}.\n"
    if step.trace is not None and step.trace in traces:
        yield f"{_TRACES[step.trace]}:\n\n```text\n{traces[step.trace]}\n```\n"


def _picture(drill: Drill, number: int, caption: str) -> Iterator[str]:
    yield f"![{caption}](images/drills/{file_of(drill, number)})\n"


def _capital(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


def _at(item: tuple[str, float]) -> float:
    return item[1]


def _alerts(fired: dict[str, float]) -> str:
    return ", ".join(f"{_link(name)} ({at:.0f} s)" for name, at in sorted(fired.items(), key=_at))


def _link(name: str) -> str:
    return f"[{name}](runbooks/{name}.md)"


def _answers(result: DrillResult) -> str:
    return ", ".join(f"{count:,} x {status or 'none'}" for status, count in result.statuses.items())
