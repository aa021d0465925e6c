"""A batch runs to its end, whatever some of its lines do."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from typing_extensions import override

from sluicegate.gateway.batches.answering import LineAnswerer, Reply
from sluicegate.gateway.batches.run import BatchBounds, BatchRun
from sluicegate.gateway.ledger.batch_types import RequestBatch
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.storage.base import Write
from sluicegate.gateway.storage.build import file_object
from sluicegate.gateway.storage.disk import DiskStorage
from tests.support.batches import request_line
from tests.support.ledgers import open_ledger
from tests.unit.gateway.ledger.test_batches import add_batch

pytestmark = pytest.mark.anyio
_JSON = {"content-type": "application/json"}


class Echo:
    """Answers each line with its body."""

    async def ask(
        self, batch: RequestBatch, request_id: str, body: bytes, *, late: int, left: float
    ) -> Reply:
        return Reply(status=200, headers=_JSON, body=body)


class Outage(Echo):
    """Refuses lines with `down` until so many `others` were answered."""

    def __init__(self, others: int) -> None:
        self._others = others

    @override
    async def ask(
        self, batch: RequestBatch, request_id: str, body: bytes, *, late: int, left: float
    ) -> Reply:
        if b"down" not in body:
            self._others -= 1
        elif self._others:
            return Reply(status=503, headers=_JSON, body=b"{}")
        return await super().ask(batch, request_id, body, late=late, left=left)


class BrokenStorage(DiskStorage):
    """Stores no part."""

    @override
    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[Write]:
        if name.startswith("parts/"):
            raise ConnectionAbortedError("the storage has gone")
        with super().writing(name) as write:
            yield write


class RunScene:
    """One batch, whose lines are answered by `runner` in this process."""

    def __init__(self, folder: Path, ledger: Ledger) -> None:
        self._folder = folder
        self.ledger = ledger
        self.storage = DiskStorage(folder / "stored")

    async def run(self, lines: list[bytes], runner: Echo, *, most_bytes: int = 1 << 20) -> BatchRun:
        """Run a batch of these lines, with two of them at a time, to its end."""
        batch = add_batch(self.ledger, "a")
        with self.storage.writing(file_object(batch.input_file)) as write:
            write(b"".join(lines))
        self.ledger.batches.claim("me", seconds=30.0, running=[], most=1)
        run = BatchRun(
            batch,
            holder="me",
            batches=self.ledger.batches,
            storage=self.storage,
            answerer=LineAnswerer(runner=runner, most=2, wall=lambda: batch.created),
            bounds=BatchBounds(
                max_lines=100,
                max_line_bytes=1 << 20,
                max_output_bytes=most_bytes,
                in_flight=2,
                keep_files=99,
            ),
            results_folder=self._folder,
        )
        await run.run()
        return run

    def codes(self, run: BatchRun) -> list[str]:
        """Return the codes in the errors file."""
        assert run.batch.error_file is not None
        content = b"".join(self.storage.read(file_object(run.batch.error_file)))
        return [msgspec.json.decode(line)["error"]["code"] for line in content.splitlines()]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[RunScene]:
    with open_ledger(tmp_path) as ledger:
        yield RunScene(tmp_path, ledger)


async def test_results_of_a_batch_are_bounded(scene: RunScene) -> None:
    lines = [request_line(f"l-{number}", ["x" * 1000]) for number in range(10)]

    run = await scene.run(lines, Echo(), most_bytes=3000)

    assert 3 <= run.batch.completed < 6
    assert set(scene.codes(run)) == {"output_too_large"}
    assert run.batch.completed + run.batch.failed == len(lines)


async def test_a_part_of_long_lines_is_read_some_at_a_time(
    scene: RunScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part is 500 lines, which may be hundreds of megabytes."""
    monkeypatch.setattr("sluicegate.gateway.batches.run._MOST_BYTES", 3000)
    lines = [request_line(f"l-{number}", ["x" * 1000]) for number in range(10)]

    run = await scene.run([*lines, b"\n"], Echo())

    assert (run.batch.completed, len(run.batch.parts)) == (10, 1)
    assert run.batch.output_file is not None
    content = b"".join(scene.storage.read(file_object(run.batch.output_file)))
    ids = [msgspec.json.decode(line)["custom_id"] for line in content.splitlines()]
    assert ids == [f"l-{number}" for number in range(10)]


async def test_lines_that_wait_keep_no_others(scene: RunScene) -> None:
    """Two lines are refused until the others are answered, and two may be asked at a time."""
    texts = ["down"] * 2 + ["up"] * 8
    lines = [request_line(f"l-{number}", [text]) for number, text in enumerate(texts)]

    run = await asyncio.wait_for(scene.run(lines, Outage(others=8)), 20.0)

    assert run.batch.completed == len(lines)
    assert run.batch.output_file is not None
    content = b"".join(scene.storage.read(file_object(run.batch.output_file)))
    ids = [msgspec.json.decode(line)["custom_id"] for line in content.splitlines()]
    assert ids == [f"l-{number}" for number in range(10)]


async def test_a_part_is_noted_only_once_its_results_are_stored(
    scene: RunScene, tmp_path: Path
) -> None:
    scene.storage = BrokenStorage(tmp_path / "stored")

    with pytest.raises(ConnectionAbortedError):
        await scene.run([request_line("l-0", ["up"])], Echo())

    assert scene.ledger.batches.get("acme", "batch_a").parts == ()
