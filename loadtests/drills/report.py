"""Writes the report of drills as a page of Markdown."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from loadtests.drills.catalogue import DRILLS, Drill, Step, file_of
from loadtests.drills.results import BlindPlay, DrillResult

_HEAD = """# Drills

`make drills` injects faults into a running system (two regions, one worker, both Redis, billing,
three small tenants beside a large one), which a Prometheus scrapes with the rules of `deploy/`
every 15 s, under {rate} requests a second.
For each it records which alerts fire after how many seconds, how the large tenant is answered,
what panels show, and with `ARGS=--screenshots` what an operator sees at each step.

- The console is pictured in a real browser, logged in with the key of a
  [viewer](operations/operators.md).
- Panels are drawn from the queries, titles and units of the dashboards in `deploy/grafana`, by
  matplotlib: Grafana has no package that could be tested here. A dashed line is the fault.
- Traces are what a collector got: of 1 % of requests, and a span of
  [each that failed](configuration.md#traces).
- `make drills ARGS=--blind` injects one fault that it does not name, prints what a pager would,
  and takes the time until the operator has typed the cause.

The machine is shared and noisy: the load below is how many processes could run on its two cores,
as the mean of the last five minutes of a drill. Seconds and latencies are those of such a machine.
"""
_PLAYS = """## Time until the cause is named

Each fault was injected blindly. The operator was given the alerts as they fired, the console with
the key of a viewer, the panels of all dashboards, the [runbooks](runbooks/README.md) and the
traces; not the log. Seconds to the cause count from the first alert.
A language model reads pages as text, and faster than a person: the pages that it looked at, which
the section of each fault names, say as much as the seconds.
Of 2026-11-28 two plays are left out: in one the operator saw the fault's name in a list of
processes, in the other it was occupied elsewhere when the alert fired. Both faults were played
again.

| fault | operator | date, load | first alert after | cause named after | what was said | right |
|---|---|---|---|---|---|---|
"""
_RATE = 38
_TRACES = {"failed": "A trace that failed", "longest": "The longest trace since the fault"}


def report(results: Iterable[DrillResult], plays: Sequence[BlindPlay]) -> str:
    """Return the page."""
    drills = {drill.name: drill for drill in DRILLS}
    results = list(results)
    parts = [_HEAD.format(rate=_RATE), _summary(results, plays)]
    if plays:
        parts.append(_plays(plays))
    for result in results:
        own = [play for play in plays if play.name == result.name]
        parts.append("\n".join(_section(drills[result.name], result, own)))
    return "\n".join(parts)


def _summary(results: Iterable[DrillResult], plays: Sequence[BlindPlay]) -> str:
    lines = [
        "| fault | first alert | expected alerts | other alerts | answers | cause named after |",
        "|---|---|---|---|---|---|",
    ]
    for each in results:
        expected = {name: at for name, at in each.fired.items() if name in each.expected}
        others = {name: at for name, at in each.fired.items() if name not in expected}
        named = [play.named_after for play in plays if play.name == each.name and play.is_right]
        cells = (
            *(each.name, _alerts(dict(sorted(each.fired.items(), key=_at)[:1])) or "none"),
            *(_alerts(expected) or "none", _alerts(others) or "-", _answers(each)),
            f"{named[-1]:.0f} s" if named else "-",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _plays(plays: Sequence[BlindPlay]) -> str:
    lines = [
        f"| {play.name} | {play.operator or '-'} | {play.date}, {play.load:.1f}"
        f" | {_link(play.alert)}, {play.alert_after:.0f} s | {play.named_after:.0f} s"
        f" | {play.said} | {_is_right(play)} |"
        for play in plays
    ]
    return _PLAYS + "\n".join(lines) + "\n"


def _is_right(play: BlindPlay) -> str:
    return {True: "yes", False: "no", None: "not judged"}[play.is_right]


def _section(drill: Drill, result: DrillResult, plays: Iterable[BlindPlay]) -> Iterator[str]:
    yield f"## {_capital(drill.name)}\n"
    yield f"{_capital(drill.what)}, for {result.seconds:.0f} s."
    yield f"Measured on {result.date} at commit {result.commit}, load {result.load:.1f}.\n"
    yield f"**The alert.** {_first(result)}\n"
    yield from _picture(drill, 0, "The console's overview when the first alert fires")
    for number, step in enumerate(drill.steps, start=1):
        yield f"**Step {number}.** {step.text}\n"
        yield from _shown(drill, step, number, result.traces)
    yield f"**The cause**: {drill.cause}.\n"
    for play in plays:
        yield from _play(play)
    yield "| panel | before | at the end |\n|---|---|---|"
    yield from (f"| {each.panel} | {each.before} | {each.after} |" for each in result.seen)
    yield ""


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


def _play(play: BlindPlay) -> Iterator[str]:
    right = "" if play.is_right else ", wrongly,"
    looked = f" after looking at {play.looked_at}" if play.looked_at else ""
    mended = f" Mended since: {play.mended}." if play.mended else ""
    when = f"{play.named_after:.0f} s after the first alert"
    yield f"Played blind on {play.date}: named{right} {when}{looked}.{mended}\n"


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
