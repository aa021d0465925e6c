"""Tests the peers' comparison: what a run replaces, what page and picture say of each figure."""

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from backends.protocol import Task
from loadtests.__main__ import main
from loadtests.machine import Machine
from loadtests.peers.compare import Plan, draw, outputs_in
from loadtests.peers.comparison import (
    OURS,
    Comparison,
    Figure,
    Kind,
    LeftOut,
    Source,
    Work,
    merge,
    read_comparison,
    write_comparison,
)
from loadtests.peers.misses import figures_of
from loadtests.peers.mixed import fastest
from loadtests.peers.mixed_texts import mixed_texts
from loadtests.peers.page import render_page
from loadtests.peers.picture import quickest
from loadtests.peers.servers import PEERS
from loadtests.peers.table import PeerRow

MISSES = Work(kind=Kind.MISSES)


def source(name: str, note: str = "") -> Source:
    """Return where figures are from."""
    machine = Machine(
        cpu="a processor", cores=2, memory_gib=4, python="3.11", date="2026-11-23", commit=name
    )
    return Source(machine=machine, text="a run", note=note, versions={"LitServe": "1.2"})


def figure(
    peer: str, rate: float, *, run: str, what: str | None = None, work: Work = MISSES
) -> Figure:
    """Return a figure of a run."""
    return Figure(
        work=work,
        peer=peer,
        what=what or peer,
        rate=rate,
        of_ours=rate / 800,
        beside="ours",
        source=run,
    )


def comparison(run: str, *figures: Figure, note: str = "") -> Comparison:
    """Return the figures of a run."""
    return Comparison(sources={run: source(run, note)}, figures=figures)


def test_a_run_replaces_all_of_the_work_it_measured_and_nothing_else() -> None:
    """Figures of other work stay, with their source; a source without figures goes."""
    hits = figure("nginx", 1000, run="hits", work=Work(kind=Kind.HITS))
    old = merge(
        comparison("hits", hits),
        comparison("old", figure(OURS, 800, run="old"), figure("triton", 500, run="old")),
    )

    new = merge(old, comparison("new", figure(OURS, 900, run="new")))

    assert [each.rate for each in new.figures] == [1000, 900]
    assert set(new.sources) == {"hits", "new"}


def test_a_run_of_some_peers_keeps_the_others() -> None:
    """Ours and theirs are new; the others stay as they were, of their own source."""
    old = comparison(
        "old", *(figure(peer, 500, run="old") for peer in (OURS, "triton", "litserve"))
    )
    measured = comparison("new", figure(OURS, 900, run="new"), figure("litserve", 400, run="new"))

    new = merge(old, measured, only=["litserve"])

    assert [(each.peer, each.source) for each in new.figures] == [
        ("triton", "old"),
        (OURS, "new"),
        ("litserve", "new"),
    ]
    assert set(new.sources) == {"old", "new"}


def test_a_peer_that_cannot_run_any_more_loses_its_figure() -> None:
    """It is named instead, with the reason; once it runs it is not named any more."""
    old = comparison("old", figure(OURS, 800, run="old"), figure("triton", 500, run="old"))
    lost = LeftOut(work=MISSES, peer="triton", what="Triton", reason="not installed")
    without = msgspec.structs.replace(
        comparison("new", figure(OURS, 900, run="new")), left_out=(lost,)
    )

    merged = merge(old, without)

    assert [each.peer for each in merged.figures] == [OURS]
    assert "| misses, classify, fp32 | Triton | not installed |" in render_page(
        merged, picture="p.svg"
    )
    assert not merge(merged, old).left_out


def test_figures_of_a_table_are_parts_of_its_first_row() -> None:
    """The first two rows are ours, and a row without a rate is no figure."""
    table = [
        PeerRow(what="backend", rate=800.0),
        PeerRow(what="gateway", rate=600.0),
        PeerRow(what="LitServe: no batching", rate=200.0),
        PeerRow(what="BentoML: no batching", failure="not installed"),
    ]

    found = list(figures_of(MISSES, table, "run"))

    assert [(each.peer, each.of_ours) for each in found] == [
        (OURS, 1.0),
        (OURS, 0.75),
        ("litserve", 0.25),
    ]


def test_the_picture_has_each_peer_in_its_quickest_way() -> None:
    """What stands behind the colon is the way."""
    figures = [
        figure("litserve", rate, run="run", what=f"LitServe: {way}")
        for rate, way in ((200, "slow"), (300, "quick"))
    ]

    assert [each.rate for each in quickest(figures)] == [300]


def test_page_and_picture_name_figures_sources_and_what_is_missing(tmp_path: Path) -> None:
    """Both mark what was not measured like the rest, and say of a dry run that it is one."""
    outputs = outputs_in(tmp_path)
    ours, theirs = figure(OURS, 800, run="run"), figure("LitServe: no batching", 200, run="run")
    drawn = msgspec.structs.replace(
        comparison("run", ours, theirs, note="beside other work"), is_dry_run=True
    )
    write_comparison(drawn, outputs.results)

    draw(outputs)

    page, picture = outputs.page.read_text(), outputs.picture.read_text()
    assert read_comparison(outputs.results) == drawn
    assert "| LitServe: no batching † | 200 | 0.25 |" in page
    assert "† beside other work." in page
    assert "Versions: LitServe 1.2." in page
    assert page.count("Not measured yet.") == 2
    assert "dry run" in page
    assert "LitServe †" in picture
    assert "not measured yet: hits, mixed" in picture
    assert "A DRY RUN" in picture
    assert "prefers-color-scheme: dark" in picture


def test_nothing_is_drawn_where_nothing_is_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says which file has no figures."""
    outputs = outputs_in(tmp_path)

    draw(outputs)

    assert str(outputs.results) in capsys.readouterr().out
    assert not outputs.page.exists()


def test_half_of_mixed_texts_repeat_earlier_ones() -> None:
    """The texts of a seed are always the same, and the first is repeated most."""
    texts = mixed_texts(2000, seed=3)

    repeats = len(texts) - len(set(texts))

    assert texts == mixed_texts(2000, seed=3)
    assert 900 < repeats < 1100
    assert max(set(texts), key=texts.count) in texts[:5]


def test_the_peer_behind_the_cache_is_the_fastest_installed_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its way is that of the figure; without any figure it is the first peer in its first way."""
    monkeypatch.setattr(
        "loadtests.peers.mixed.is_installed", lambda peer: peer.name in {"litserve", "bentoml"}
    )
    peers = list(PEERS.values())
    misses = [
        figure(peer, rate, run="run", what=f"{PEERS[peer].label}: {PEERS[peer].ways[way].label}")
        for peer, way, rate in (("triton", 0, 500), ("litserve", 1, 300), ("bentoml", 0, 200))
    ]

    assert fastest(misses, peers) == (PEERS["litserve"], PEERS["litserve"].ways[1])
    assert fastest([], peers) == (PEERS["litserve"], PEERS["litserve"].ways[0])
    assert fastest(misses, [PEERS["triton"]]) is None


def test_a_plan_of_some_peers_leaves_out_work_in_which_they_take_no_part() -> None:
    """LitServe has no hits, and nginx no misses."""
    assert not Plan(only=("litserve",)).peers(Kind.HITS)
    assert not Plan(only=("nginx",)).peers(Kind.MISSES)
    assert Plan(only=("nginx", "litserve")).peers(Kind.MIXED) == ("nginx", "litserve")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--only", "vllm"], "'nginx'"), (["--kinds", "hit"], "'hits'")],
    ids=["peer", "kind"],
)
def test_unknown_names_are_refused_with_those_there_are(arguments: list[str], said: str) -> None:
    """Nothing is measured."""
    result = CliRunner().invoke(main, ["peers", *arguments])

    assert result.exit_code == 2
    assert said in result.output


def test_work_of_other_tasks_has_tables_of_its_own() -> None:
    """A table names task and precision."""
    work = Work(kind=Kind.MISSES, task=Task.EMBED, precision="bf16")

    page = render_page(comparison("run", figure(OURS, 1, run="run", work=work)), picture="p")

    assert "### Embeddings, bf16" in page
    assert "### Classification" not in page
