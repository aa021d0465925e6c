"""Only servers that do the same work are compared with Sluicegate, and none is left out."""

from pathlib import Path

import msgspec
import pytest

from backends.protocol import Task
from loadtests.machine import Machine
from loadtests.peers.command import draw, taking_part
from loadtests.peers.comparison import (
    OURS,
    Comparison,
    Figure,
    Kind,
    LeftOut,
    Run,
    Source,
    Subject,
    Work,
    figures_of,
    merge,
    write_comparison,
)
from loadtests.peers.measure import AnswersDiffer, check_answers, fastest
from loadtests.peers.page import render_page
from loadtests.peers.servers import PEERS, PeerFailed, running

MISSES = Work(kind=Kind.MISSES)


def figure(peer: str, rate: float, *, run: str, what: str = "", work: Work = MISSES) -> Figure:
    return Figure(
        work=work,
        peer=peer,
        what=what or peer,
        rate=rate,
        of_ours=rate / 800,
        beside="ours",
        source=run,
    )


def comparison(run: str, *figures: Figure) -> Comparison:
    machine = Machine(
        cpu="a processor", cores=2, memory_gib=4, python="3.11", date="2026-11-23", commit=run
    )
    source = Source(machine=machine, text="a run", versions={"LitServe": "1.2"})
    return Comparison(sources={run: source}, figures=figures)


def test_equal_answers_pass() -> None:
    check_answers([[0.2, 0.8]], [[0.2005, 0.7995]], MISSES)
    check_answers([[0.5, 0.4999]], [[0.4999, 0.5]], Work(kind=Kind.MISSES, task=Task.EMBED))


@pytest.mark.parametrize(
    "theirs",
    [
        [[0.25, 0.75]],
        [[0.5001, 0.4999]],
        [],
        [[0.4999, 0.5001], [0.1, 0.9]],
        [[0.4999, 0.5001, 0]],
        [[float("nan"), 0.5001]],
    ],
    ids=["scores", "label", "none", "too many", "too long", "no number"],
)
def test_other_answers_are_refused(theirs: list[list[float]]) -> None:
    with pytest.raises(AnswersDiffer):
        check_answers([[0.4999, 0.5001]], theirs, MISSES)


def test_the_median_run_counts_relative_to_the_server_beside_it() -> None:
    runs = {
        Subject(peer=OURS, what="backend", beside="backend"): [Run(rate=400, p50=1)],
        Subject(peer="litserve", what="LitServe: slow", beside="backend"): [
            Run(rate=rate, p50=1) for rate in (300, 100, 200)
        ],
    }

    found = figures_of(MISSES, runs, "run")

    assert [(each.rate, each.of_ours) for each in found] == [(400, 1.0), (200, 0.5)]


def test_a_run_replaces_the_work_it_measured_and_nothing_else() -> None:
    hits = figure("nginx", 1000, run="hits", work=Work(kind=Kind.HITS))
    old = merge(
        comparison("hits", hits),
        comparison("old", figure(OURS, 800, run="old"), figure("triton", 500, run="old")),
    )

    new = merge(old, comparison("new", figure(OURS, 900, run="new")))

    assert [each.rate for each in new.figures] == [1000, 900]
    assert set(new.sources) == {"hits", "new"}


def test_a_run_of_some_peers_keeps_the_others() -> None:
    old = comparison("old", *(figure(peer, 500, run="old") for peer in (OURS, "triton", "bentoml")))
    measured = comparison("new", figure(OURS, 900, run="new"), figure("bentoml", 400, run="new"))

    new = merge(old, measured, only=["bentoml"])

    assert [(each.peer, each.source) for each in new.figures] == [
        ("triton", "old"),
        (OURS, "new"),
        ("bentoml", "new"),
    ]


def test_a_peer_that_cannot_run_is_named_instead_of_its_figure() -> None:
    old = comparison("old", figure(OURS, 800, run="old"), figure("triton", 500, run="old"))
    lost = LeftOut(work=MISSES, peer="triton", what="Triton", reason="not installed")
    without = msgspec.structs.replace(
        comparison("new", figure(OURS, 900, run="new")), left_out=(lost,)
    )

    merged = merge(old, without)

    assert [each.peer for each in merged.figures] == [OURS]
    assert "| Triton | not installed |" in render_page(merged, picture="p.svg")
    assert not merge(merged, old).left_out


def test_page_and_picture_show_each_server_in_its_quickest_way(tmp_path: Path) -> None:
    results, page, picture = (tmp_path / name for name in ("p.json", "p.md", "p.svg"))
    ways = [figure("litserve", rate, run="run", what=f"LitServe: {rate}") for rate in (200, 300)]
    write_comparison(comparison("run", figure(OURS, 800, run="run"), *ways), results)

    draw(results, page, picture)

    assert "| LitServe: 300 | 300 | 0.375 |" in page.read_text()
    assert "LitServe: 200" not in page.read_text()
    assert "not measured yet: hits, mixed" in picture.read_text()


def test_the_peer_behind_the_cache_is_the_fastest_installed_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "loadtests.peers.measure.is_installed", lambda peer: peer.name in {"litserve", "bentoml"}
    )
    misses = [
        figure(peer, rate, run="run", what=f"{PEERS[peer].label}: {PEERS[peer].ways[way].label}")
        for peer, way, rate in (("triton", 0, 500), ("litserve", 1, 300), ("bentoml", 0, 200))
    ]

    assert fastest(misses, PEERS.values()) == (PEERS["litserve"], PEERS["litserve"].ways[1])
    assert fastest([], PEERS.values()) == (PEERS["litserve"], PEERS["litserve"].ways[0])
    assert fastest(misses, [PEERS["triton"]]) is None


def test_some_peers_leave_out_work_in_which_they_take_no_part() -> None:
    assert not taking_part(Kind.HITS, ("litserve",))
    assert not taking_part(Kind.MISSES, ("nginx",))
    assert taking_part(Kind.MIXED, ("nginx", "litserve")) == ("nginx", "litserve")


@pytest.mark.parametrize("is_installed", [True, False])
def test_a_server_that_ends_at_once_or_is_missing_says_why(
    is_installed: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    command = ("/bin/sh", "-c", "echo a library is missing; exit 3")
    if is_installed:
        (tmp_path / ".installed").touch()
    broken = msgspec.structs.replace(PEERS["triton"], command=command, environment=str(tmp_path))
    said = "status 3: a library is missing" if is_installed else "not installed: `make"

    with pytest.raises(PeerFailed, match=said):
        running(broken, broken.ways[0], tmp_path, Task.EMBED).__enter__()
