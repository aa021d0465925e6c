"""Actors of a Ray cluster: a part is the same whichever runs it; a stage adds columns."""

import importlib.util
import io
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadtests.faults.bulk_jobs import digest
from sluicegate.backends.bulk.runner import BulkRunner
from sluicegate.bulk.errors import BulkStopped
from sluicegate.bulk.files import OutputFolder, find_inputs
from sluicegate.bulk.options import BulkOptions, Manifest, make_manifest
from sluicegate.bulk.output import ERRORS, MANIFEST, WORK, OutputParts
from sluicegate.bulk.progress import ProgressReport
from sluicegate.bulk.ray_import import actor_options, actors_with_room, connect
from sluicegate.bulk.ray_job import PartRunner, RayOptions, RayRun, by_parts
from sluicegate.bulk.ray_stage import ERROR, StageActor
from sluicegate.bulk.usage import BulkUsage
from sluicegate.wire.protocol import Task

pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
_SETTINGS: dict[str, Any] = {"provider": "paced", "paced_base": 0, "paced_token": 0}
_TEXTS = ["a fine film", "dull", "", "a fine film", "long and dull"]


@pytest.fixture
def manifest(light_models: Path, tmp_path: Path) -> Iterator[Manifest]:
    rows = [{"text": _TEXTS[n % 5], "n": n} for n in range(10)]
    source = tmp_path / "in.jsonl"
    source.write_bytes(b"\n".join(map(msgspec.json.encode, rows)))
    options = BulkOptions(
        model="minilm",
        task=Task.EMBED,
        columns=("text",),
        keep=("n",),
        format="jsonl",
        part_rows=4,
    )
    with BulkRunner(light_models, model="minilm", task="embed", **_SETTINGS) as runner:
        yield make_manifest(
            options, find_inputs([str(source)]), runner.info, by_parts(runner.execution)
        )


def _runner(manifest: Manifest, models: Path, out: Path) -> PartRunner:
    settings = {"models": models, **_SETTINGS}
    content = msgspec.json.encode(manifest)
    return PartRunner(manifest=content, location=str(out), settings=settings)


def _rows(folder: Path) -> list[dict[str, Any]]:
    parts = [part.read_bytes() for part in sorted(folder.glob("part-*"))]
    return [msgspec.json.decode(line) for part in parts for line in part.splitlines()]


def test_a_part_is_the_same_whatever_ran_before_and_however_often_it_runs(
    manifest: Manifest, light_models: Path, tmp_path: Path
) -> None:
    def run(out: Path, *parts: int) -> list[int]:
        out.mkdir()
        # Of an attempt that was killed.
        (out / "_errors-00000-00002.jsonl").touch()
        runner = _runner(manifest, light_models, out)
        found = runner({"file": [0] * len(parts), "part": list(parts)})
        (out / WORK).rmdir()
        return list(found["rows"])

    assert run(tmp_path / "one", 0, 1, 2) == [4, 4, 2]
    assert run(tmp_path / "other", 2, 0, 1, 0) == [2, 4, 4, 4]

    names = ["part-00000-00000.jsonl", "part-00000-00001.jsonl", "part-00000-00002.jsonl"]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()
    assert [row["n"] for row in _rows(tmp_path / "one")] == [0, 1, 3, 4, 5, 6, 8, 9]
    errors = sorted(file.name for file in (tmp_path / "one").glob("_errors-*"))
    assert errors == ["_errors-00000-00000.jsonl", "_errors-00000-00001.jsonl"]


def test_the_usage_of_a_job_is_that_of_its_parts_or_unknown(
    manifest: Manifest, light_models: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    _runner(manifest, light_models, out)({"file": [0] * 3, "part": [0, 1, 2]})

    def usage() -> BulkUsage | None:
        folder = OutputFolder(str(out))
        parts = OutputParts(folder, tmp_path, manifest.options, manifest.inputs, {})
        return parts.usage_of_parts()

    whole = usage()
    (out / "_usage-00000-00001.json").unlink()  # as of a version that did not count

    assert whole is not None
    assert (whole.computed, whole.rows) == (7, 7)
    assert usage() is None


def test_a_node_with_another_revision_answers_nothing(
    manifest: Manifest, light_models: Path, tmp_path: Path
) -> None:
    for name in ("revision", "algorithm"):
        other = msgspec.structs.replace(manifest, **{name: "other"})
        with pytest.raises(BulkStopped, match="give all nodes the same model repository"):
            _runner(other, light_models, tmp_path / "out")


def test_a_stage_adds_answers_and_says_why_there_is_none(light_models: Path) -> None:
    options = BulkOptions(model="minilm", task=Task.EMBED, columns=("text",))
    actor = StageActor(options=options, settings={"models": light_models, **_SETTINGS})
    table = pyarrow.table({"id": range(5), "text": [*_TEXTS[:4], None]})

    found = actor(table)

    assert found.column_names == ["id", "text", "embedding", "truncated_from", ERROR]
    vectors = found["embedding"].to_pylist()
    assert [vector is None for vector in vectors] == [False, False, True, False, True]
    assert vectors[0] == vectors[3] != vectors[1]
    reasons = found[ERROR].to_pylist()
    assert [reason and reason.partition(":")[0] for reason in reasons] == [
        *(None, None, "empty_input", None, "bad_row")
    ]
    assert actor(table.slice(2, 1))["embedding"].to_pylist() == [None]
    assert found.schema == actor(table.slice(0, 0)).schema
    with pytest.raises(BulkStopped, match="`embedding`"):
        actor(found)


@pytest.mark.system
@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray", "ignore::ResourceWarning")
def test_a_job_on_a_cluster_is_that_of_its_parts(
    manifest: Manifest, light_models: Path, tmp_path: Path
) -> None:
    pytest.importorskip("ray", reason="`make .venv-ray/.installed` installs Ray")
    folders = {name: tmp_path / name for name in ("cluster", "alone")}
    for folder in folders.values():
        (folder / WORK).mkdir(parents=True)
    _runner(manifest, light_models, folders["alone"])({"file": [0, 0, 0], "part": [0, 1, 2]})
    connect("local")
    with RayRun(
        manifest,
        OutputFolder(str(folders["cluster"])),
        folders["cluster"] / WORK,
        ProgressReport(io.StringIO(), time.monotonic),
    ) as job:
        done = job.run(RayOptions(settings={"models": light_models, **_SETTINGS}), max_errors=None)

    assert (done.rows, done.failed_rows, done.state) == (10, 2, "complete")
    (folders["cluster"] / WORK).rmdir()
    assert _rows(folders["cluster"]) == _rows(folders["alone"])
    assert {ERRORS, MANIFEST} < {file.name for file in folders["cluster"].iterdir()}
    assert digest(folders["cluster"])


@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray", "ignore::ResourceWarning")
def test_a_stage_of_a_pipeline_begins_with_one_actor_and_a_job_with_many() -> None:
    """Actors that take all cores wait for ever for what other stages' tasks read."""
    ray = pytest.importorskip("ray", reason="`make .venv-ray/.installed` installs Ray")
    ray.init("local", num_cpus=3, include_dashboard=False)
    try:
        stage = actor_options(threads=1, gpus=0, actors=0)
        job = actor_options(threads=1, gpus=0, actors=0, initial=8)
    finally:
        ray.shutdown()

    assert stage["compute"].initial_size == 1
    assert job["compute"].initial_size == 3


def test_without_ray_the_command_says_what_to_install() -> None:
    if importlib.util.find_spec("ray") is not None:
        pytest.skip("Ray is installed")
    with pytest.raises(BulkStopped, match="pip install"):
        connect("auto")


def test_as_many_actors_start_as_have_room_on_the_nodes() -> None:
    nodes = [{"CPU": 4.0, "GPU": 1.0}, {"CPU": 3.0, "GPU": 2.0}, {"memory": 1.0}]

    assert actors_with_room(nodes, threads=1) == 7
    assert actors_with_room(nodes, threads=2) == 3
    assert actors_with_room(nodes, threads=1, gpus=0.5) == 5
    assert actors_with_room([], threads=1) == 0
