"""Renders the comparison as a page of Markdown."""

from collections.abc import Iterator

from loadtests.peers.comparison import Comparison, Figure, Kind, Work

_HEAD = """# Peers

Sluicegate beside what else answers such requests, by kind of work.
`make bench-peers` writes this page, its picture and `loadtests/results/peers.json`.
A figure is the median run of one server.
"Of ours" is its rate, divided by that of the way of Sluicegate named beside it in the same source.
How each is set up, and what was tried, is in [performance](performance.md#peers).
"""
_TEXTS = {
    Kind.HITS: (
        "One text a request, all texts in the cache, the server on one core and everything else on "
        "another. Sluicegate checks keys and limits and writes usage events; nginx's Lua checks a "
        "key and a limit; LiteLLM has no classification, so that its answers are embeddings of 16 "
        "numbers."
    ),
    Kind.MISSES: (
        "Sentences of which none comes twice, through MiniLM-L6 on all cores. The peers are model "
        "servers, as Sluicegate's backend is; its gateway adds keys, limits, caches and bills. Up "
        "to 3cb73528 the gateway had two backends, which shared the cores; now it has one."
    ),
    Kind.MIXED: (
        "Half of the sentences are new, the others repeat earlier ones by Zipf's law, on all "
        "cores. No peer has a cache for classifications: the fastest one is measured alone, and "
        "behind nginx with Lua, which keeps whole answers in its memory."
    ),
}
_COLUMNS = (
    *("what answers", "a second", "of ours", "beside"),
    *("p50 ms", "p95 ms", "p99 ms", "processor ms each", "source"),
)
_NAMES = {"classify": "Classification", "embed": "Embeddings"}


def render_page(comparison: Comparison, *, picture: str) -> str:
    """Return the page; `picture` is where its picture is."""
    parts = [_HEAD]
    if comparison.is_dry_run:
        parts.append("**A dry run: these figures say nothing.**\n")
    parts.append(f"![Rates of Sluicegate and its peers, by kind of work]({picture})\n")
    for kind in Kind:
        parts += [f"## {kind.title()}\n", f"{_TEXTS[kind]}\n", *_tables(comparison, kind)]
    if comparison.left_out:
        parts += ["## Left out\n", "\n".join(_left_out(comparison)) + "\n"]
    parts += [
        "## Sources\n",
        "\n".join(_sources(comparison)) + "\n",
    ]
    return "\n".join(parts)


def _tables(comparison: Comparison, kind: Kind) -> Iterator[str]:
    works = {figure.work: 0 for figure in comparison.figures if figure.work.kind is kind}
    if not works:
        yield "Not measured yet.\n"
    for work in sorted(works, key=lambda work: (work.task, work.precision != "fp32")):
        if kind is Kind.MISSES:
            yield f"### {_NAMES[work.task]}, {work.precision}\n"
        yield "\n".join(_table(comparison, work)) + "\n"


def _table(comparison: Comparison, work: Work) -> Iterator[str]:
    yield f"| {' | '.join(_COLUMNS)} |"
    yield "|---" * len(_COLUMNS) + "|"
    for figure in comparison.at(work):
        yield _row(figure, comparison.marks().get(figure.source, ""))


def _row(figure: Figure, mark: str) -> str:
    times = (_number(value) for value in (figure.p50, figure.p95, figure.p99, figure.busy))
    what = f"{figure.what} {mark}".rstrip()
    return (
        f"| {what} | {figure.rate:,.0f} | {figure.of_ours:.3g} | {figure.beside} "
        f"| {' | '.join(times)} | {figure.source} |"
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _left_out(comparison: Comparison) -> Iterator[str]:
    yield "| work | server | why |"
    yield "|---|---|---|"
    for entry in comparison.left_out:
        work = entry.work
        reason = entry.reason.replace("|", "/")
        yield f"| {work.kind}, {work.task.value}, {work.precision} | {entry.what} | {reason} |"


def _sources(comparison: Comparison) -> Iterator[str]:
    for name, source in comparison.sources.items():
        machine = source.machine
        mark = comparison.marks().get(name, "")
        note = f" {mark} {source.note}." if mark else ""
        versions = "; ".join(f"{what} {version}" for what, version in source.versions.items())
        yield (
            f"- **{name}**: {source.text}; {machine.cpu}, {machine.cores} cores, "
            f"{machine.memory_gib:g} GiB, {machine.interpreter}, {machine.date}, "
            f"{machine.commit}.{note}" + (f" Versions: {versions}." if versions else "")
        )
