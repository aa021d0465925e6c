"""Each module of `training` runs as its documentation says, on a handful of texts."""

import csv
import runpy
import sys
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from testing.model_repository import DIMENSIONS, write_encoder

CONFIGURATION = Path(__file__).parents[2] / "config/models.yaml"
Run = Callable[..., str]
WORDS = ["good", "film", "card", "money", "paris", "bad"]
SENTENCES = "".join(
    [f"paris B-{kind}\ncard I-{kind}\nis O\ngood O\n\n" for kind in ("PER", "LOC", "ORG", "MISC")]
)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A repository with encoders of toy size by the names of the demo's."""
    for name in ("minilm", "minilm-l0"):
        write_encoder(tmp_path / "models", name, real=True)
    return tmp_path / "models"


def texts(count: int) -> list[str]:
    """Return texts of which none is part of another."""
    words = list(islice(cycle(WORDS), count + 3))
    return [f"{number} {' '.join(words[number : number + 3])} {number}" for number in range(count)]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a module as `python -m` does, in this process, and return what it prints."""

    def run_module(module: str, *options: object) -> str:
        monkeypatch.setattr(sys, "argv", [module, *map(str, options)])
        code = None
        try:
            runpy.run_module(f"training.{module}", run_name="__main__")
        except SystemExit as end:
            code = end.code
        assert not code
        return capsys.readouterr().out

    return run_module


def head(path: Path) -> list[tuple[int, ...]]:
    """Return the shapes of a head's layers."""
    with np.load(path) as saved:
        return [saved[f"w{index}"].shape for index in range(len(saved.files) // 2)]


def write_intents(path: Path, count: int) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "category"])
        writer.writerows(zip(texts(count), cycle(["card", "money", "other"]), strict=False))
    return path


def test_intents_are_trained(models: Path, tmp_path: Path, run: Run) -> None:
    output = tmp_path / "intents.npz"

    said = run(
        "banking_intents",
        *("--train", write_intents(tmp_path / "train.csv", 30)),
        *("--test", write_intents(tmp_path / "test.csv", 6)),
        *("--models", models, "--output", output),
    )

    assert said.startswith("trained on 24, tested on 6: accuracy ")
    assert head(output) == [(DIMENSIONS, 3)]


def test_both_heads_of_sentiment_are_trained(models: Path, tmp_path: Path, run: Run) -> None:
    data, large, small = (tmp_path / name for name in ("sst2.parquet", "large.npz", "small.npz"))
    rows = {"idx": range(96), "sentence": texts(96), "label": list(islice(cycle([0, 1]), 96))}
    pq.write_table(pa.table({name: list(values) for name, values in rows.items()}), data)

    first = run("sentiment", "--train", data, "--models", models, "--output", large)
    second = run(
        "sentiment_small",
        *("--train", data, "--models", models, "--large", large, "--output", small),
        *("--unseen", tmp_path / "unseen.csv"),
    )

    assert first.startswith("trained on 93, tested on 3: accuracy ")
    assert second.startswith("trained on 93, tested on 3: accuracy ")
    assert (tmp_path / "unseen.csv").read_text().splitlines()[0] == "text,label"
    assert head(large) == head(small) == [(DIMENSIONS, 2)]


@pytest.mark.filterwarnings("ignore:Got `batch_size` less than 1")  # there are few texts
def test_entities_are_trained(models: Path, tmp_path: Path, run: Run) -> None:
    files = []
    for name in ("wikigold", "train", "test"):
        files.append(tmp_path / f"{name}.conll")
        files[-1].write_text(SENTENCES * 5)
    wikigold, train, test = files
    output = tmp_path / "entities.npz"

    said = run(
        "entities_demo",
        *("--wikigold", wikigold, "--wnut-train", train, "--wnut-test", test),
        *("--models", models, "--output", output),
    )

    assert said.count("F1 ") == 2
    assert head(output) == [(DIMENSIONS, 128), (128, 9)]


def test_the_evaluation_says_what_it_needs(run: Run) -> None:
    assert "--banking" in run("evaluate", "--help")


def test_the_guard_s_detectors_are_evaluated(demo_models: Path, tmp_path: Path, run: Run) -> None:
    data, entities = tmp_path / "sst2.parquet", tmp_path / "entities.conll"
    rows = {"idx": [7, 39], "sentence": ["a bad film", "a good film"], "label": [0, 1]}
    pq.write_table(pa.table(rows), data)
    entities.write_text(SENTENCES)

    said = run(
        "evaluate_guard",
        *("--models", demo_models, "--config", CONFIGURATION, "--sst2", data),
        *("--wikigold", entities, "--wnut-test", entities),
        *("--banking", write_intents(tmp_path / "test.csv", 3)),
    )

    assert "anger, SST-2, 0.5: precision 100.0%, recall 100.0% of 1" in said
    assert "people, WNUT 2017, 0.9: " in said
    assert "contacts, IBAN, right: 3 of 3" in said
    assert "contacts, IBAN, with a wrong digit: 0 of 3" in said
