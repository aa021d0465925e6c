"""Renders the comparison as a page of Markdown."""

from collections.abc import Iterator, Sequence

from loadtests.peers.comparison import Comparison, Figure, Kind

_HEAD = """# Peers

How fast is Sluicegate beside other servers on the same machine?
`make bench NAME=peers` measures them, and writes this page, its picture and
`loadtests/results/peers.json`.
[Comparison](comparison.md) says when another product is the better choice.

![Rates of Sluicegate and its peers, by kind of work]({picture})

Each row is the median run of one server in the quickest of its configurations; `peers.json` has
the others.
"Relative" is its rate, divided by the rate of Sluicegate in the same run.
"""
_TEXTS = {
    Kind.HITS: (
        "One text a request, all texts in the cache, the server on one core and everything else on"
        " another. Sluicegate checks keys and limits and writes usage events. The Lua program of"
        " nginx checks a key and a limit. LiteLLM has no classification, so it answers embeddings"
        " of 16 numbers."
    ),
    Kind.MISSES: (
        "No sentence comes twice. MiniLM-L6 runs on all cores. The peers are model servers, as"
        " Sluicegate's backend is. The gateway adds keys, limits, caches and bills; up to 3cb73528"
        " it had two backends, which shared the cores."
    ),
    Kind.MIXED: (
        "Half of the sentences are new, the others repeat earlier ones by Zipf's law. The model"
        " servers run without a cache of their own, so the fastest one is measured alone and"
        " behind nginx with Lua, which keeps whole answers in memory."
    ),
}
_SETUP = """## How they are set up

- All servers run the same encoder, head and texts. The answers of 20 sentences are compared first
  (within 0.001, in bf16 0.02): a server whose answers differ is named and not timed.
- The peers run the graph as a common exporter writes it, Sluicegate its own graph of the same
  weights. LitServe, BentoML and Triton run ONNX Runtime with equal settings and pad to the
  longest text of a batch.
- Triton is the wheel `nvidia-pytriton`, which has the Python backend only. OpenVINO has no server
  among Python packages, so LitServe serves it.
- Infinity runs from its own command line, with ONNX Runtime or torch.
- The packages go into `.venv-peers` (4 GB); x86-64, Python 3.11 and glibc 2.35 are needed. What
  cannot be installed is named and left out.

`ARGS="--kinds hits"` and `ARGS="--only nginx"` measure a part and keep the other figures.
`ARGS=--tune` tries every configuration, `ARGS=--draw-only` writes page and picture again, and
`ARGS=--dry-run` tries everything for a few seconds.
"""
_COLUMNS = (
    *("server", "a second", "relative"),
    *("p50 ms", "p95 ms", "p99 ms", "processor ms each", "source"),
)
_NAMES = {"classify": "Classification", "embed": "Embeddings"}


def render_page(comparison: Comparison, *, picture: str) -> str:
    """Return the page; `picture` is where its picture is."""
    parts = [_HEAD.format(picture=picture)]
    if comparison.is_dry_run:
        parts.append("**A dry run: these figures say nothing.**\n")
    for kind in Kind:
        parts += [f"## {kind.title()}\n", f"{_TEXTS[kind]}\n", *_tables(comparison, kind)]
    if comparison.left_out:
        parts += ["## Left out\n", "\n".join(_left_out(comparison)) + "\n"]
    parts += [_SETUP, "## Sources\n", "\n".join(_sources(comparison)) + "\n"]
    return "\n".join(parts)


def table(figures: Sequence[Figure]) -> Iterator[str]:
    """Yield the lines of a table of figures."""
    yield f"| {' | '.join(_COLUMNS)} |"
    yield "|---" * len(_COLUMNS) + "|"
    for each in figures:
        times = " | ".join(
            "-" if value is None else f"{value:g}"
            for value in (each.p50, each.p95, each.p99, each.busy)
        )
        relative = f"{each.rate:,.0f} | {each.of_ours:.3g}"
        yield f"| {each.what} | {relative} | {times} | {each.source} |"


def _tables(comparison: Comparison, kind: Kind) -> Iterator[str]:
    works = {figure.work for figure in comparison.figures if figure.work.kind is kind}
    if not works:
        yield "Not measured yet.\n"
    for work in sorted(works, key=lambda work: (work.task, work.precision != "fp32")):
        if kind is Kind.MISSES:
            yield f"### {_NAMES[work.task]}, {work.precision}\n"
        figures = comparison.at(work)
        for beside in dict.fromkeys(figure.beside for figure in figures):
            yield "\n".join(table([f for f in figures if f.beside == beside])) + "\n"


def _left_out(comparison: Comparison) -> Iterator[str]:
    yield "| work | server | why |"
    yield "|---|---|---|"
    for entry in comparison.left_out:
        work = entry.work
        reason = entry.reason.replace("|", "/")
        yield f"| {work.kind}, {work.task.value}, {work.precision} | {entry.what} | {reason} |"


def _sources(comparison: Comparison) -> Iterator[str]:
    yield "| source | how | machine |"
    yield "|---|---|---|"
    for name, source in comparison.sources.items():
        machine = source.machine
        where = f"{machine.cpu}, {machine.cores} cores, {machine.memory_gib:g} GiB"
        when = f"{machine.interpreter}, {machine.date}, {machine.commit}"
        yield f"| {name} | {source.text}. | {where}, {when} |"
    versions = {each for source in comparison.sources.values() for each in source.versions.items()}
    if versions:
        yield "\nVersions: " + "; ".join(f"{what} {one}" for what, one in sorted(versions)) + "."
