"""`models tune` as an operator calls it: a setting that is read, a variant that is served."""

import logging
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner, Result

from sluicegate.backends.cli import main
from sluicegate.backends.model_tools.tuning.reports import NO_PLOT
from sluicegate.backends.qualification import tuned
from sluicegate.backends.qualification.tuned import RECORD, TunedBatching, read_tuned, write_tuned
from sluicegate.backends.repository.catalogue import read_catalogue
from sluicegate.wire.protocol import Done, Task
from testing.model_repository import DIMENSIONS, WORDS, write_repository
from tests.parity.checkpoints import Checkpoint, Purpose
from tests.parity.served import write_models
from tests.support.backend_calls import running_backend

LABELS = ("negative", "positive")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return write_repository(tmp_path / "models", real=True)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return write_texts(tmp_path / "texts.txt", seed=1)


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    return write_texts(tmp_path / "golden.csv", seed=2)


def write_texts(path: Path, *, seed: int) -> Path:
    random = np.random.default_rng(seed)
    lines = [" ".join(random.choice(WORDS, random.integers(2, 9))) for _ in range(60)]
    if path.suffix == ".csv":
        lines = ["text,label", *(f"{line},{LABELS[n % 2]}" for n, line in enumerate(lines))]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def tune(models: Path, name: str, *options: object) -> Result:
    arguments = ["models", "tune", name, "--models", str(models), "--threads", "1"]
    return CliRunner().invoke(main, [*arguments, *map(str, options)])


def make_int8(models: Path, texts: Path, golden: Path, *options: object) -> Result:
    given = ("--precision", "int8", "--calibrate", texts, "--judge", golden)
    # A graph of toy size is no faster in eight bits.
    return tune(models, "mood", *given, "--min-speedup", 0, *options)


def test_a_sweep_prints_a_table_draws_a_plot_and_keeps_the_setting(
    models: Path, tmp_path: Path
) -> None:
    plot = tmp_path / "plot.svg"

    result = tune(models, "mood", "--seconds", 0.01, "--plot", plot)

    assert result.exit_code == 0, result.output
    assert "clients  rows/s" in result.output
    assert plot.exists() or NO_PLOT in result.output
    record = msgspec.json.decode((models / "tiny" / "1" / RECORD).read_bytes())
    assert set(record["measured"]) == {"rows", "threads"}
    assert "cores" in record["machine"]["devices"][0]
    assert record["machine"]["runtimes"][0].startswith("onnxruntime")
    assert record["machine"]["date"]


def test_a_dry_run_keeps_nothing(models: Path, texts: Path, golden: Path, tmp_path: Path) -> None:
    before = read_catalogue(models)

    tune(models, "tiny", "--seconds", 0.01, "--plot", tmp_path / "plot.svg", "--dry-run")
    make_int8(models, texts, golden, "--max-flips", 100, "--max-loss", 100, "--dry-run")

    assert not (models / "tiny" / "1" / RECORD).exists()
    assert read_catalogue(models) == before


@pytest.mark.anyio
async def test_the_setting_is_what_a_backend_runs_with(models: Path) -> None:
    model = read_catalogue(models).models["tiny"]
    provider = "CPUExecutionProvider"
    found = TunedBatching(rows=2, threads=1)
    assert write_tuned(model.folder, found, digest=model.digest, provider=provider)

    async with running_backend(models, row_cache_bytes=0) as backend:
        await backend.ask("tiny", Task.EMBED, ["good film", "bad film", "the card", "the text"])
        statistics = backend.batchers[0].statistics()
        worker_threads = backend.batchers[0].worker_threads
    async with running_backend(models, threads=2) as backend:
        told = backend.batchers[0].worker_threads

    assert (statistics.rows, statistics.batches) == (4, 2)
    assert (worker_threads, told) == (1, 2)


@pytest.mark.anyio
async def test_an_accepted_variant_becomes_the_newest_revision(
    models: Path, texts: Path, golden: Path
) -> None:
    """The judged head runs in int8; the encoder's other heads stay as they were."""
    before = read_catalogue(models).models

    result = make_int8(models, texts, golden, "--max-flips", 100, "--max-loss", 100)

    assert result.exit_code == 0, result.output
    after = read_catalogue(models).models
    assert after["intents"].digest == before["intents"].digest
    assert after["mood"].digest != before["mood"].digest
    certificate = (after["tiny-int8-mood"].folder / "precision.json").read_bytes()
    assert msgspec.json.decode(certificate)["invariance"]["mates"] == 0.0
    async with running_backend(models) as backend:
        infos = {info.name: info.profile for info in backend.engine.state().models}
        (outcome,) = await backend.ask("mood", Task.CLASSIFY, ["good film"], profile="int8")
    assert infos["mood"] == infos["tiny-int8-mood"] == "int8"
    assert infos["intents"] == infos["tiny"] == "fp32"
    assert infos["reviewer"] == "fp32+int8"
    assert isinstance(outcome, Done)


def test_a_variant_that_fails_the_gate_is_refused_with_the_numbers(
    models: Path, texts: Path, golden: Path
) -> None:
    before = read_catalogue(models)

    result = make_int8(models, texts, golden, "--min-speedup", 1000)

    assert result.exit_code == 1
    assert "of labels flip" in result.output
    assert "at least 1000 is required" in result.output
    assert read_catalogue(models) == before


def test_a_variant_is_made_once(models: Path, texts: Path, golden: Path) -> None:
    make_int8(models, texts, golden, "--max-flips", 100, "--max-loss", 100)

    result = make_int8(models, texts, golden)

    assert result.exit_code == 2
    assert "`mood` runs in `int8` already" in result.output


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "`nothing` cannot be tuned: it is not in the repository"),
        (
            "reviewer",
            "tune the models it builds on: `mood`, `topics`, `intents`",
        ),
    ],
)
def test_what_cannot_be_tuned_is_told_in_one_line(models: Path, name: str, message: str) -> None:
    result = tune(models, name)

    assert result.exit_code == 2
    assert message in result.output
    assert len(result.output.splitlines()) == 1


@pytest.mark.anyio
async def test_a_head_of_tokens_gets_an_encoder_of_its_own(
    models: Path, texts: Path, golden: Path
) -> None:
    given = ("--precision", "int8", "--calibrate", texts, "--judge", golden, "--min-speedup", 0)

    result = tune(models, "names", *given, "--max-flips", 100)

    assert result.exit_code == 0, result.output
    assert "of a text's tokens flip" in result.output
    async with running_backend(models) as backend:
        infos = {info.name: info.profile for info in backend.engine.state().models}
        answer = await backend.answer("names", Task.ENTITIES, "paris is good", profile="int8")
    assert infos["names"] == infos["tiny-int8-names"] == "int8"
    assert infos["mood"] == "fp32"
    assert "entities" in answer


@pytest.mark.anyio
async def test_an_encoder_that_has_heads_stays_and_its_variant_has_a_name_of_its_own(
    models: Path, texts: Path, golden: Path
) -> None:
    before = read_catalogue(models).models
    given = ("--precision", "int8", "--calibrate", texts, "--judge", golden, "--min-speedup", 0)

    result = tune(models, "tiny", *given, "--max-flips", 100, "--min-cosine", -1)

    assert result.exit_code == 0, result.output
    assert "cosine to fp32" in result.output
    after = read_catalogue(models).models
    assert {name: after[name].digest for name in before} == {
        name: model.digest for name, model in before.items()
    }
    async with running_backend(models) as backend:
        answer = await backend.answer("tiny-int8", Task.EMBED, "good film", profile="int8")
    assert len(answer["embedding"]) == DIMENSIONS


@pytest.mark.parametrize("purpose", ["text", "tokens", "cross"])
def test_imports_of_every_kind_are_measured(tmp_path: Path, purpose: Purpose) -> None:
    checkpoint = Checkpoint(family="bert", purpose=purpose)
    models = write_models(tmp_path / "models", [checkpoint])

    result = tune(models, checkpoint.name, "--seconds", 0.01, "--plot", tmp_path / "plot.svg")

    assert result.exit_code == 0, result.output
    assert "best: " in result.output
    assert (models / checkpoint.name / "1" / RECORD).exists()


def test_a_setting_of_another_device_is_not_used(
    models: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = read_catalogue(models).models["tiny"]
    where = {"digest": model.digest, "provider": "CPUExecutionProvider"}
    assert write_tuned(model.folder, TunedBatching(rows=2, threads=1), **where)
    assert read_tuned(model.folder, **where) is not None

    monkeypatch.setattr(tuned, "usable_cores", lambda: 96)
    with caplog.at_level(logging.INFO):
        found = read_tuned(model.folder, **where)

    assert found is None
    assert "of another device" in caplog.text


def test_a_variant_needs_texts(models: Path, golden: Path) -> None:
    without = tune(models, "mood", "--precision", "int8", "--judge", golden)

    assert "needs `--judge`" in tune(models, "mood", "--precision", "int8").output
    assert "needs `--calibrate`" in without.output


def test_texts_that_the_model_would_refuse_judge_nothing(
    models: Path, texts: Path, tmp_path: Path
) -> None:
    golden = tmp_path / "long.txt"
    golden.write_text(f"{'good film ' * 40}\ngood film\nbad film", encoding="utf-8")

    some = make_int8(models, texts, golden)
    golden.write_text("good film " * 40, encoding="utf-8")
    none = make_int8(models, texts, golden)

    assert "with 2 texts" in some.output
    assert none.exit_code == 2
    assert "too few texts that `mood` can read" in none.output


def test_bf16_is_for_openvino(models: Path, golden: Path) -> None:
    result = tune(models, "mood", "--precision", "bf16", "--judge", golden)

    assert result.exit_code == 2
    assert "SLUICEGATE_BACKEND_PROVIDER=openvino" in result.output


def test_an_algorithm_has_no_variant(models: Path, texts: Path, golden: Path) -> None:
    result = tune(models, "reviewer", "--precision", "fp16", "--judge", golden)

    assert result.exit_code == 2
    assert "`mood`, `topics`, `intents`" in result.output


def test_a_few_texts_show_nothing(models: Path, texts: Path, golden: Path) -> None:
    """None of sixty labels flips, and still four per cent of all might."""
    result = make_int8(models, texts, golden, "--max-loss", 100)

    assert result.exit_code == 1
    assert "4.31%; use 268 or more texts" in result.output


def test_labels_the_model_does_not_know_are_named(
    models: Path, texts: Path, tmp_path: Path
) -> None:
    golden = tmp_path / "other.csv"
    golden.write_text("text,label\ngood film,great\n", encoding="utf-8")

    result = make_int8(models, texts, golden)

    assert result.exit_code == 2
    assert "`mood` has no label `great`" in result.output


def test_a_variant_leaves_what_its_owner_wrote(models: Path, texts: Path, golden: Path) -> None:
    """A draft of the owner's stays, and a model that has the variant's name is not added to."""
    draft = models / "mood" / ".draft" / "model.yaml"
    draft.parent.mkdir()
    draft.write_text("mine")
    taken = models / "tiny-int8-mood" / "1" / "model.yaml"
    taken.parent.mkdir(parents=True)
    taken.write_text((models / "mood" / "1" / "model.yaml").read_text())

    result = make_int8(models, texts, golden, "--max-flips", 100, "--max-loss", 100)

    assert result.exit_code == 2, result.output
    assert "`tiny-int8-mood`" in result.output
    assert draft.read_text() == "mine"
    assert [path.name for path in taken.parents[1].iterdir()] == ["1"]
    assert not (models / "mood" / "2").exists()
