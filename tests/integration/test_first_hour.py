"""`models import` tells an owner what it read, what the model answers, and what to do next."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from sluicegate.backends.cli import main
from sluicegate.backends.errors import StartProblem
from sluicegate.backends.model_tools.tuning.memory import measure_memory
from sluicegate.backends.model_tools.tuning.price import measure_price
from tests.parity.checkpoints import Checkpoint, Purpose, write_checkpoint
from tests.parity.library_fixtures import FIXTURES, OUTPUTS, unpack
from tests.parity.sentence_checkpoints import write_cross_encoder
from tests.support.imports import run_import
from tests.support.reference_library import install_library
from tests.support.small_disk import mounted

SENTENCES = '```python\nsentences = ["A sunny day.", "It is sunny.", "He drove."]\n```\n'
PAIRS = '```python\npairs = [["How many?", "Nobody knows."], ["How many?", "Seven."]]\n```\n'
WIDGET = "---\nwidget: [{text: My name is Wolfgang and I live in Berlin}]\n---\n"
NLI = '---\nwidget: [{text: "The striker scored.", candidate_labels: "sports, business"}]\n---\n'
Write = Callable[[Path], Path]


def bert(purpose: Purpose) -> Write:
    return lambda folder: write_checkpoint(
        Checkpoint(family="bert", purpose=purpose), folder / "source"
    )


def cross_encoder(folder: Path) -> Path:
    return write_cross_encoder(folder / "source")


def packed(name: str, fixtures: Path = FIXTURES) -> Write:
    return lambda folder: unpack(name, folder, fixtures=fixtures)


@pytest.mark.parametrize(
    ("write", "card", "shown"),
    [
        (
            bert("text"),
            NLI,
            [
                "family                 bert (`model_type` in config.json)",
                "weights                fp32 (`dtype` in model.safetensors)",
                "zero-shot sports, business (`widget` in README.md)",
                '"The striker scored.": ',
                "reference              not compared: the reference library needs `transformers`",
                "/v1/classify",
            ],
        ),
        (
            bert("embed"),
            SENTENCES,
            [
                "pooling                mean, then normalize (modules.json)",
                "embed (`sentences` in README.md)",
                'of the first text and "He drove."',
                "not compared: the reference library needs `sentence_transformers`",
                "/v1/embed",
            ],
        ),
        (
            cross_encoder,
            PAIRS,
            ['rerank "How many?" (`pairs` in README.md)', ' "Seven."', "/v1/rerank"],
        ),
        (
            bert("tokens"),
            WIDGET,
            [
                "entities (`widget` in README.md)",
                "windows",
                "in overlapping windows of",
                "/v1/entities",
            ],
        ),
        (
            bert("answer"),
            "",
            [
                "answer (our own input: README.md has no example)",
                "there is no comparison for answer",
            ],
        ),
        (
            packed("qwen3-04"),
            "",
            [
                "family                 qwen3 (`model_type` in config.json)",
                "(`prompts` in config_sentence_transformers.json)",
                "lasttoken",
            ],
        ),
        (
            packed("gliner-00"),
            WIDGET,
            [
                "gliner with a deberta-v2 encoder (`encoder_config` in gliner_config.json)",
                "max_tokens             768 (`max_len` in gliner_config.json)",
                "entities person, place (`widget` in README.md)",
                "the reference library needs `gliner`",
            ],
        ),
        (packed("gliner2-00"), WIDGET, ["there is no comparison for GLiNER2"]),
        (
            packed("model2vec-02"),
            "",
            ["family                 static", "the reference library needs `model2vec`"],
        ),
        (packed("setfit-02"), "", ["family                 setfit on ", "pickle, which is never"]),
        (packed("late-bert", OUTPUTS), "", [" vectors\n", '"outputs": ["multi_vector"]']),
    ],
)
def test_each_kind_is_told_with_its_sources_and_its_answers(
    tmp_path: Path, write: Write, card: str, shown: list[str]
) -> None:
    folder = write(tmp_path)
    (folder / "README.md").write_text(card)

    result = run_import(folder, tmp_path / "m", "--name", "mine")

    assert result.exit_code == 0, result.output
    assert [text for text in shown if text not in result.output] == []
    assert f"sluicegate up --models {tmp_path / 'm'}" in result.output


LABELS = ("contradiction", "neutral", "entailment")
DEMANDED = ["--reference", sys.executable]


def constant(score: str) -> str:
    """Return the code of a library that gives each label the same score."""
    label = f"{{'label': name, 'score': float({score!r})}}"
    return f"return lambda _, **__: [{label} for name in {LABELS}]"


@pytest.mark.parametrize(
    ("body", "options", "shown"),
    [
        ("raise ValueError('an odd head')", [], ["not compared: ", "written to"]),
        ("raise ValueError('an odd head')", DEMANDED, ["not compared: ", "leave out `--refer"]),
        (constant("0.3"), [], ["DIFFERS from transformers on 9 "]),
        (constant("0.3"), DEMANDED, ["without `--reference`, it is"]),
        (constant("nan"), [], ["DIFFERS from transformers: ", "not finite"]),
    ],
)
def test_a_model_with_other_results_than_its_library_is_not_published(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    body: str,
    options: list[str],
    shown: list[str],
) -> None:
    folder = bert("text")(tmp_path)
    # The model refuses the second text, which is too long, so the library does not get it.
    (folder / "README.md").write_text(
        f"---\nwidget: [{{text: A film.}}, {{text: {'long ' * 300}}}]\n---\n"
    )
    install_library(tmp_path / "packages", body, monkeypatch)

    result = run_import(folder, tmp_path / "m", "--name", "mine", *options)

    assert [text for text in shown if text not in result.output] == []
    assert (result.exit_code == 0) == ("written to" in shown)
    assert (tmp_path / "m" / "mine").exists() == ("written to" in shown)


def test_texts_of_a_checkpoint_forge_no_line(tmp_path: Path) -> None:
    folder = bert("text")(tmp_path)
    config = folder / "config.json"
    forged = "\\u001b]0;title\\u0007\\nreference              equal\\u2028\\u202e"
    config.write_text(config.read_text().replace('"neutral"', f'"{forged}"'))

    result = run_import(folder, tmp_path / "m", "--name", "mine")

    assert "\N{REPLACEMENT CHARACTER}]0;title\N{REPLACEMENT CHARACTER}" in result.output
    assert not re.search("^reference +equal|[\x1b\x07\u2028\u202e]", result.output, re.MULTILINE)


@pytest.mark.parametrize("purpose", ["text", "choice"])
def test_a_model_is_priced_on_this_machine(tmp_path: Path, purpose: Purpose) -> None:
    folder = bert(purpose)(tmp_path)
    given = ["models", "import", str(folder), "--models", str(tmp_path / "m"), "--dry-run"]

    result = CliRunner().invoke(main, given)

    assert "rows/s of 16 tokens; " in result.output
    assert "rows/s of 64 tokens (" in result.output
    assert " MiB of host memory" in result.output


def test_a_price_takes_no_longer_than_its_deadline(tmp_path: Path) -> None:
    run_import(bert("text")(tmp_path), tmp_path / "m", "--name", "mine")

    with pytest.raises(StartProblem, match=r"took longer than 0\.01 s"):
        measure_price(tmp_path / "m", "mine", deadline=0.01)


@pytest.mark.parametrize("module", ["msgspec", "numpy", "onnxruntime"])
def test_a_measurement_runs_no_code_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    run_import(bert("text")(tmp_path), tmp_path / "m", "--name", "mine")
    (tmp_path / f"{module}.py").write_text("raise SystemExit('code of a checkpoint')")
    monkeypatch.chdir(tmp_path)

    assert measure_memory(tmp_path / "m/mine/1/model.onnx", max_tokens=8) is not None
    assert measure_price(tmp_path / "m", "mine").rates


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    folder = bert("text")(tmp_path)
    with mounted(tmp_path / "disk", megabytes=1) as disk:
        disk.fill(leave=100_000)
        result = run_import(folder, disk.path)
        left = [path.name for path in disk.path.iterdir()]

    assert result.exit_code == 2
    assert f"cannot write to `{disk.path}`: No space left on device" in result.output
    assert left == ["filler"]


def test_an_empty_folder_and_one_without_a_family_are_told(tmp_path: Path) -> None:
    folder = bert("text")(tmp_path)
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"model_type"', '"was_model_type"'))
    (tmp_path / "empty").mkdir()

    empty = run_import(tmp_path / "empty", tmp_path / "m")
    unnamed = run_import(folder, tmp_path / "m")

    assert "is empty; copy the checkpoint's files into it" in empty.output
    assert "has no `model_type`, which names the model's family" in unnamed.output
