"""Only servers that do the same work are compared with Sluicegate, and none is left out."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from backends.protocol import Task
from loadtests.generator import Target
from loadtests.measured import bare_server
from loadtests.peers.measure import (
    DRY_RUN,
    AnswersDiffer,
    Server,
    Work,
    check_answers,
    compare,
    mixed_texts,
)
from loadtests.peers.picture import draw
from loadtests.peers.servers import PEERS, PeerFailed, running

WORK = Work(served=Path("served"), exported=Path("exported"))


def test_equal_answers_pass() -> None:
    check_answers([[0.2, 0.8]], [[0.2005, 0.7995]], WORK)
    embed = msgspec.structs.replace(WORK, task=Task.EMBED)
    check_answers([[0.5, 0.4999]], [[0.4999, 0.5]], embed)


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
        check_answers([[0.4999, 0.5001]], theirs, WORK)


def test_a_server_that_fails_or_differs_is_named_and_has_no_row(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @contextmanager
    def serve(*values: float) -> Iterator[Server]:
        if not values:
            raise PeerFailed("it ended with status 3")
        with bare_server(core=None) as bare:
            target: Target = bare.target
            yield Server(
                target=target,
                body=str.encode,
                values=lambda _: list(values),
                pids=(bare.pid,),
            )

    servers = {
        "ours": lambda: serve(0.2, 0.8),
        "equal": lambda: serve(0.2, 0.8),
        "other": lambda: serve(0.8, 0.2),
        "broken": serve,
    }

    rows = compare(WORK, servers, msgspec.structs.replace(DRY_RUN, count=10, rounds=2))

    assert [row.what for row in rows] == ["ours", "equal"]
    assert rows[0].ratio == 1
    assert all(row.statuses == {200: 10} and row.costs for row in rows)
    said = capsys.readouterr().out
    assert "left out: other: answers differ by 0.6000 at 0" in said
    assert "left out: broken: it ended with status 3" in said


def test_half_of_the_mixed_texts_are_new() -> None:
    texts = mixed_texts(2000, seed=1)

    assert len(texts) == 2000
    assert len(set(texts)) == pytest.approx(1000, rel=0.1)


def test_the_picture_shows_each_server_in_its_quickest_way(tmp_path: Path) -> None:
    row = '{"what": "%s", "rate": %d, "ratio": %g}'
    rows = [
        row % each
        for each in (
            ("Sluicegate, its backend", 800, 1),
            ("LitServe: slow", 211, 0.26),
            ("LitServe: quick", 322, 0.4),
        )
    ]
    machine = (
        '{"cpu": "a processor", "cores": 2, "memory_gib": 4, "python": "3.11",'
        ' "date": "2026-11-23", "commit": "abc"}'
    )
    kept = f'{{"machine": {machine}, "rows": [{", ".join(rows)}]}}'
    (tmp_path / "2026-11-23-peers-misses-classify-fp32.json").write_text(kept)

    draw(tmp_path, tmp_path / "peers.svg")

    picture = (tmp_path / "peers.svg").read_text()
    assert "322 (0.4)" in picture
    assert "211" not in picture
    assert "a processor, 2 cores" in picture


@pytest.mark.parametrize("is_installed", [True, False])
def test_a_server_that_ends_at_once_or_is_missing_says_why(
    is_installed: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    command = ("/bin/sh", "-c", "echo a library is missing; exit 3")
    if is_installed:
        (tmp_path / ".installed").touch()
        (tmp_path / "bin").mkdir()
    broken = msgspec.structs.replace(PEERS["triton"], command=command, environment=str(tmp_path))
    said = "status 3: a library is missing" if is_installed else "not installed: `make"

    with pytest.raises(PeerFailed, match=said):
        running(broken, broken.ways[0], tmp_path, Task.EMBED).__enter__()
