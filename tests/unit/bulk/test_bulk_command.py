"""`sluicegate bulk`: rows in, answers out, each distinct item once, and the same after a kill."""

import csv
import errno
import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from loadtests.faults.bulk_jobs import digest
from sluicegate.backends.bulk.runner import BulkRunner
from sluicegate.backends.executors.simulated import SimulatedExecutor
from sluicegate.backends.settings import process_environment
from sluicegate.bulk.cli import main
from sluicegate.bulk.files import OutputFolder, find_inputs
from sluicegate.bulk.items import open_runner
from sluicegate.bulk.options import BulkOptions, Manifest
from sluicegate.bulk.output import ERRORS, JOB, MANIFEST, WORK
from sluicegate.bulk.reading import count_rows
from testing.waiting import wait_until
from tests.parity.checkpoints import Checkpoint
from tests.parity.served import without_device_graphs, write_models

_TEXTS = ["a fine film", "dull", "", "a fine film", "long and dull", "a fine film"]
Bulk = Callable[..., Result]


@pytest.fixture(scope="module")
def runner(light_models: Path) -> Iterator[BulkRunner]:
    with BulkRunner(
        light_models, model="minilm", task="embed", provider="paced", paced_base=0, paced_token=0
    ) as shared:
        yield shared


@pytest.fixture
def bulk(light_models: Path, runner: BulkRunner, monkeypatch: pytest.MonkeyPatch) -> Bulk:
    """The command, without loading the model anew for each."""

    def opened(
        options: BulkOptions, settings: dict[str, Any]
    ) -> AbstractContextManager[BulkRunner]:
        if options.task is runner.task:
            return nullcontext(runner)
        return open_runner(options, settings)

    def run(*arguments: object) -> Result:
        options = ["--models", light_models, "--provider", "paced", "--model", "minilm"]
        task = [] if "--task" in arguments else ["--task", "embed"]
        words = [str(each) for each in (*options, *task, *arguments)]
        return CliRunner().invoke(main, words)

    monkeypatch.setattr("sluicegate.bulk.cli.open_runner", opened)
    # The level of the whole process, which runs other tests, too.
    monkeypatch.setattr("sluicegate.bulk.cli.configure_logging", lambda: None)
    return run


def _write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    return path


def _read(folder: Path) -> list[dict[str, Any]]:
    files = sorted(folder.glob("part-*"))
    return [msgspec.json.decode(line) for file in files for line in file.read_bytes().splitlines()]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return _write(tmp_path / "in.jsonl", [{"text": t, "n": i} for i, t in enumerate(_TEXTS)])


def test_rows_keep_their_order_and_bad_ones_end_nothing(
    bulk: Bulk, tmp_path: Path, source: Path
) -> None:
    with source.open("ab") as file:
        file.write(b'{"text": 5}\n{no json\n{"n": 8}\n{"text": "last", "n": 9}')

    result = bulk("--keep", "n", "--part-rows", 4, source, tmp_path / "out")

    assert result.exit_code == 0, result.output
    rows = _read(tmp_path / "out")
    assert [(row["row"], row["n"]) for row in rows] == [
        (0, 0),
        (1, 1),
        (3, 3),
        (4, 4),
        (5, 5),
        (9, 9),
    ]
    assert rows[0]["embedding"] == rows[2]["embedding"] != rows[1]["embedding"]
    lines = (tmp_path / "out" / ERRORS).read_bytes().splitlines()
    errors = [msgspec.json.decode(line) for line in lines]
    assert [(error["row"], error["code"]) for error in errors] == [
        *((2, "empty_input"), (6, "bad_item"), (7, "bad_row"), (8, "bad_row"))
    ]
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        *(MANIFEST, ERRORS, JOB),
        *(f"part-00000-0000{part}.jsonl" for part in range(3)),
    }


def test_the_manifest_says_what_a_job_used(bulk: Bulk, tmp_path: Path, source: Path) -> None:
    result = bulk(source, tmp_path / "out")

    assert result.exit_code == 0, result.output
    manifest = msgspec.json.decode((tmp_path / "out" / MANIFEST).read_bytes(), type=Manifest)
    assert manifest.usage is not None
    used = (manifest.rows, manifest.failed_rows, manifest.usage.computed, manifest.usage.rows)
    assert used == (6, 1, 3, 3)
    assert manifest.usage.tokens > 3


def test_equal_items_are_computed_once(
    bulk: Bulk, tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[int] = []
    run = SimulatedExecutor.run

    def count(self: SimulatedExecutor, batch: Any) -> Any:
        computed.append(len(batch.ids))
        return run(self, batch)

    monkeypatch.setattr(SimulatedExecutor, "run", count)

    bulk("--part-rows", 2, source, source, tmp_path / "out")

    assert sum(computed) == len(set(_TEXTS)) - 1


def test_csv_and_packed_files_are_read_and_several_have_their_names_in_the_output(
    bulk: Bulk, tmp_path: Path
) -> None:
    with (tmp_path / "a.csv").open("w") as file:
        writer = csv.writer(file)
        writer.writerows([["key", "body"], ["k1", "first,\nof two lines"], ["k2", "second"]])
    with gzip.open(tmp_path / "b.jsonl.gz", "wb") as packed:
        packed.write(b'{"key": "k3", "body": "third"}\n')

    result = bulk(
        *("--column", "body", "--keep", "key"),
        *(tmp_path / "*.csv", tmp_path / "b.jsonl.gz", tmp_path / "out"),
    )

    assert result.exit_code == 0, result.output
    found = [(Path(row["file"]).name, row["row"], row["key"]) for row in _read(tmp_path / "out")]
    assert found == [("a.csv", 0, "k1"), ("a.csv", 1, "k2"), ("b.jsonl.gz", 0, "k3")]


def test_unusual_files_are_read_as_they_are(bulk: Bulk, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(
        b'\xef\xbb\xbfkey,text\r1,short\r\r2,bad \xff\r3,"' + b"line\n" * 40_000 + b'"'
    )
    deep = b"[" * 300 + b"]" * 300
    (tmp_path / "b.jsonl").write_bytes(
        b'\xef\xbb\xbf{"text": "x", "key": 123456789012345678901234567890}\n\n'
        b'  \n{"text": "", "key": ' + deep + b'}\n{"text": "y", "key": ' + deep + b"}"
    )
    _write(tmp_path / "c.jsonl", [{}, {"text": "z", "key": 4}])
    files = [tmp_path / "a.csv", tmp_path / "b.jsonl", tmp_path / "c.jsonl"]

    result = bulk("--id", "key", "--format", "jsonl", *files, tmp_path / "out")

    assert result.exit_code == 0, result.output
    keys = ["1", "3", 123456789012345678901234567890, msgspec.json.decode(deep), 4]
    parts = sorted((tmp_path / "out").glob("part-*"))
    lines = [json.loads(line) for part in parts for line in part.read_bytes().splitlines()]
    assert [line["key"] for line in lines] == keys
    errors = (tmp_path / "out" / ERRORS).read_bytes().splitlines()
    assert [json.loads(line)["code"] for line in errors] == ["bad_row", "empty_input", "bad_row"]
    assert [count_rows(file) for file in find_inputs(list(map(str, files)))] == [3, 3, 2]


@pytest.mark.parametrize("cut", [12, 40])
def test_a_file_that_is_cut_is_named(bulk: Bulk, tmp_path: Path, cut: int) -> None:
    packed = gzip.compress(b'{"text": "a"}\n' + os.urandom(400).hex().encode())
    (tmp_path / "a.jsonl.gz").write_bytes(packed[:-cut])

    result = bulk(tmp_path / "a.jsonl.gz", tmp_path / "out")

    assert result.exit_code == 1
    assert "a.jsonl.gz`: " in result.output
    assert len(result.output.splitlines()) == 1


def test_large_rows_are_run_by_few(
    bulk: Bulk, tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[int] = []
    run = BulkRunner.run

    def count(self: BulkRunner, items: list[str]) -> Any:
        runs.append(len(items))
        return run(self, items)

    monkeypatch.setattr("sluicegate.bulk.run._MOST_CHARACTERS", 12)
    monkeypatch.setattr(BulkRunner, "run", count)

    result = bulk(source, tmp_path / "out")

    assert result.exit_code == 0, result.output
    assert (sorted(runs), len(_read(tmp_path / "out"))) == ([2, 2], 5)


def test_columns_of_parquet_files_have_one_type(bulk: Bulk, tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    for name, values in {"a": [None], "b": ["told"]}.items():
        table = arrow.table({"text": ["x"], "tag": values})
        parquet.write_table(table, tmp_path / f"{name}.parquet")

    result = bulk("--keep", "tag", tmp_path / "*.parquet", tmp_path / "out")

    assert result.exit_code == 0, result.output
    assert parquet.read_table(tmp_path / "out").column("tag").to_pylist() == [None, "told"]


def test_parquet_has_types_and_keeps_those_of_columns(bulk: Bulk, tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {"text": _TEXTS, "n": arrow.array(range(6), arrow.int16())}
    parquet.write_table(arrow.table(columns), tmp_path / "in.parquet", row_group_size=4)

    result = bulk("--id", "n", "--part-rows", 3, tmp_path / "in.parquet", tmp_path / "out")

    assert result.exit_code == 0, result.output
    table = parquet.read_table(tmp_path / "out")
    assert table.schema.field("n").type == arrow.int16()
    assert table.schema.field("embedding").type == arrow.list_(arrow.float32())
    assert table.column("n").to_pylist() == [0, 1, 3, 4, 5]


def test_a_killed_job_goes_on_and_its_output_is_that_of_an_undisturbed_one(
    bulk: Bulk, light_models: Path, tmp_path: Path
) -> None:
    texts = [f"text {'very ' * (n % 9)}{n % 300}" if n % 50 else "" for n in range(500)]
    source = _write(tmp_path / "in.jsonl", [{"text": text} for text in texts])
    options = ["--part-rows", "100", str(source)]
    assert bulk(*options, tmp_path / "whole").exit_code == 0

    killed = subprocess.Popen(
        [
            *(
                sys.executable,
                "-m",
                "sluicegate.bulk",
                "--models",
                str(light_models),
                "--provider",
                "paced",
            ),
            *("--threads", "1", "--model", "minilm", "--task", "embed"),
            *(*options, str(tmp_path / "killed")),
        ],
        env={**process_environment(), "SLUICEGATE_BACKEND_PACED_BASE": "0.05"},
        stderr=subprocess.DEVNULL,
    )
    wait_until((tmp_path / "killed" / "part-00000-00001.jsonl").exists)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    assert bulk(*options, tmp_path / "killed").exit_code == 0

    assert digest(tmp_path / "killed") == digest(tmp_path / "whole")
    assert len(_read(tmp_path / "killed")) == 490


def test_a_job_goes_on_only_with_what_it_was_begun_with(
    bulk: Bulk, tmp_path: Path, source: Path
) -> None:
    out = tmp_path / "out"
    assert bulk("--max-errors", 0, source, out).exit_code == 1
    assert b"empty_input" in (out / ERRORS).read_bytes()

    other = bulk("--parameters", '{"dimensions": 4}', source, out)
    _write(source, [{"text": "another"}])
    os.utime(source, (1, 1))
    changed = bulk(source, out)

    assert other.exit_code == changed.exit_code == 1
    assert '`parameters` was {"normalize":true,"dimensions":null} and is' in other.output
    assert "has changed" in changed.output
    assert (out / WORK).is_dir()


def test_what_is_kept_elsewhere_is_removed_and_nothing_beside_it(
    bulk: Bulk, tmp_path: Path, source: Path
) -> None:
    mine = _write(tmp_path / "mine" / "notes.jsonl", [])

    result = bulk("--work", mine.parent, source, tmp_path / "out")

    assert result.exit_code == 0, result.output
    assert list(mine.parent.iterdir()) == [mine]
    assert not (tmp_path / "out" / WORK).exists()


def test_work_is_on_another_file_system_than_the_output(
    bulk: Bulk, tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename, elsewhere = Path.rename, tmp_path / "elsewhere"

    def across(self: Path, target: Path) -> Path:
        if self.is_relative_to(elsewhere) != target.is_relative_to(elsewhere):
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", across)

    assert bulk("--work", elsewhere, source, tmp_path / "out").exit_code == 0


def test_a_kill_at_the_very_end_loses_no_failed_row(
    bulk: Bulk, tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = OutputFolder.remove

    def die(self: OutputFolder, name: str) -> None:
        remove(self, name)
        raise KeyboardInterrupt

    options = ("--part-rows", 1, "--column", "n", source, tmp_path / "out")
    with monkeypatch.context() as patched:
        patched.setattr(OutputFolder, "remove", die)
        assert bulk(*options).exit_code == 130

    again = bulk(*options)

    assert "is complete: 6 rows, 6 of them failed" in again.output
    assert len((tmp_path / "out" / ERRORS).read_bytes().splitlines()) == 6
    left = {file.name for file in (tmp_path / "out").iterdir()}
    assert {name for name in left if name.startswith("_")} == {MANIFEST, ERRORS, JOB}


def test_a_job_goes_on_only_where_its_answers_are(bulk: Bulk, tmp_path: Path, source: Path) -> None:
    options = ("--part-rows", 1, source, tmp_path / "out")
    assert bulk("--max-errors", 0, *options).exit_code == 1

    elsewhere = bulk("--work", tmp_path / "other", *options)

    assert "--work" in elsewhere.output
    assert bulk(*options).exit_code == 0


def test_a_job_that_is_done_is_not_run_again(bulk: Bulk, tmp_path: Path, source: Path) -> None:
    bulk(source, tmp_path / "out")

    again = bulk(source, tmp_path / "out")

    assert again.exit_code == 0
    assert "is complete: 6 rows, 1 of them failed" in again.output


def test_a_dry_run_says_what_all_would_take_and_writes_nothing(
    bulk: Bulk, tmp_path: Path, source: Path
) -> None:
    result = bulk("--dry-run", "--price", 2, source, tmp_path / "out")

    assert result.exit_code == 0, result.output
    found = dict(line.split(maxsplit=1) for line in result.stdout.splitlines())
    assert found["rows"] == "6"
    assert found["distinct"] == "66.7% of 6 sampled rows"
    assert found["cost"] == "about 0.00"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.jsonl", "out"], "`absent.jsonl`"),
        (["{source}", "{source}"], "is a file; name a folder"),
        (["{source}", "{folder}"], "is not empty"),
        (["--parameters", '{"dimensions": 0}', "{source}", "out"], "Expected `int` >= 1"),
        (["--parameters", '{"outputs": []}', "{source}", "out"], "`outputs`"),
        (["--parameters", '{"input_type": "query"}', "{source}", "out"], "`prompt_name` marks"),
        (["--parameters", '{"pool_factor": 2}', "{source}", "out"], "`pool_factor` is not a"),
        (["--parameters", '{"return_tokens": true}', "{source}", "out"], "batches have other"),
        (["--parameters", '{"truncate": false}', "{source}", "out"], "use --no-truncate"),
        (["--parameters", '{"top_n": 1}', "{source}", "out"], "`top_n`"),
        (["--parameters", "no.json", "{source}", "out"], "`no.json`"),
        (["--column", "a", "--column", "b", "{source}", "out"], "needs 1 --column"),
        (["s3://key:secret@bucket/in.csv", "out"], "credentials"),
        (["--keep", "embedding", "{source}", "out"], "`embedding`"),
        (["--task", "classify", "{source}", "out"], "no task `classify`; it has `embed`"),
        (["--cache", "redis://localhost:1", "{source}", "out"], "--cache-scope"),
    ],
)
def test_wrong_usage_is_named_in_one_line(
    bulk: Bulk, source: Path, arguments: list[str], message: str
) -> None:
    names = {"{source}": str(source), "{folder}": str(source.parent)}
    result = bulk(*(names.get(each, each) for each in arguments))

    assert result.exit_code in {1, 2}
    assert message in result.output
    assert len(result.output.splitlines()) == 1


def test_questions_are_read_from_their_columns_and_answers_are_typed(
    bulk: Bulk, tmp_path: Path
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    models, context = tmp_path / "models", "A card 😀 was lost."
    with without_device_graphs():
        write_models(models, [Checkpoint(family="bert", purpose="answer")])
    source = _write(tmp_path / "in.jsonl", [{"question": "What?", "context": context}, {"n": 1}])
    given = ("--models", models, "--model", "bert-answer", "--task", "answer", "--provider", "cpu")

    for form in ("jsonl", "parquet"):
        result = bulk(*given, "--format", form, source, tmp_path / form)
        assert result.exit_code == 0, result.output

    (found,) = _read(tmp_path / "jsonl")
    (best,) = found["answers"]
    assert best["answer"] == context[best["start"] : best["end"]]
    (row,) = parquet.read_table(tmp_path / "parquet").to_pylist()
    assert (row["answers"], row["no_answer_score"]) == ([best], found["no_answer_score"])
