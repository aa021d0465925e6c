"""`models calibrate` as an operator calls it: on labelled and other texts, with real graphs."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner, Result

from sluicegate.backends.cli import main
from testing.model_repository import WORDS, write_encoder, write_head, write_model, write_repository

LABELS = ["negative", "positive"]
CASCADE: dict[str, Any] = {
    "kind": "algorithm",
    "algorithm": "cascade",
    "tasks": ["classify"],
    "options": {"threshold": 1},
}


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Return models of which `like` answers as `mood` does, and `unlike` never does."""
    root = write_repository(tmp_path / "models", real=True)
    write_head(root, "like", LABELS)
    write_head(root, "unlike", LABELS[::-1])
    for small in ("like", "unlike"):
        write_cascade(root, small, "mood")
    return root


def write_long(root: Path, below: str) -> None:
    manifest: dict[str, Any] = {"kind": "algorithm", "algorithm": "long-document"}
    manifest |= {"uses": [below], "tasks": ["classify"], "options": {"overlap": 4}}
    write_model(root, "long", manifest)


def write_cascade(root: Path, small: str, large: str) -> None:
    write_model(root, f"{small}-cascade", {**CASCADE, "uses": [small, large]})


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    random = np.random.default_rng(1)
    lines = dict.fromkeys(" ".join(random.choice(WORDS, 6)) for _ in range(60))
    rows = [f"{line},{LABELS[number % 2]}" for number, line in enumerate(lines)]
    path = tmp_path / "texts.csv"
    path.write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    return path


def calibrate(models: Path, name: str, texts: Path, *options: object) -> Result:
    arguments = ["--models", str(models), "--threads", "1", "--texts", str(texts)]
    return CliRunner().invoke(main, ["models", "calibrate", name, *arguments, *map(str, options)])


def options_of(result: Result) -> Any:
    """Return the options at the end of the output."""
    assert result.exit_code == 0, result.output
    return yaml.safe_load(result.output.split("model.yaml of the cascade:\n")[1])["options"]


def test_a_cascade_of_equal_models_never_needs_the_large_one(models: Path, texts: Path) -> None:
    result = calibrate(models, "like-cascade", texts, "--disagreement", 0.2)

    assert options_of(result) == {"threshold": 0.0}
    assert "the large model is asked for  0.0% of texts" in result.output
    assert "accuracy " in result.output


@pytest.mark.parametrize("function", ["softmax", "sigmoid"])
def test_both_models_decide_by_the_large_model_s_function(
    models: Path, texts: Path, function: str
) -> None:
    write_head(models, "several", LABELS, function="sigmoid")
    write_head(models, "base", LABELS, function=function)
    write_long(models, "base")
    write_cascade(models, "several", "long")

    result = calibrate(models, "several-cascade", texts, "--disagreement", 0.2)

    assert options_of(result) == {"threshold": 0.0}
    assert "disagreement                  0.00%" in result.output


def test_a_guard_s_threshold_gets_a_band_that_a_recipe_can_have(models: Path, texts: Path) -> None:
    label = ("--label", "negative", "--score", 0.6)
    result = calibrate(models, "like-cascade", texts, "--disagreement", 0.2, *label)

    options = options_of(result)
    path = models / "like-cascade" / "1" / "model.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"options": options}))

    assert options == {"unsure": {"negative": [0.6, 0.6]}}
    assert "it misses                     0 of " in result.output
    assert " findings of the large model (0.00% to " in result.output
    assert CliRunner().invoke(main, ["models", "check", "--models", str(models)]).exit_code == 0


def test_a_text_that_a_model_would_truncate_is_refused_by_its_number(
    models: Path, texts: Path
) -> None:
    write_encoder(models, real=True, truncate=True)
    long = " ".join(WORDS * 4)
    texts.write_text(f"{texts.read_text()}\n{long},positive\n")

    result = calibrate(models, "like-cascade", texts, "--disagreement", 0.2)

    assert result.exit_code == 2
    assert "text 61 is too long for a model to read whole; cut long texts" in result.output


def test_a_guard_s_text_of_several_windows_is_refused(models: Path, texts: Path) -> None:
    write_encoder(models, real=True, truncate=True)
    write_long(models, "mood")
    write_model(models, "like-cascade", {**CASCADE, "uses": ["long", "long"]})
    texts.write_text(f"{texts.read_text()}\n{' '.join(WORDS * 4)},positive\n")
    goal = ("--disagreement", 0.2)

    by_window = calibrate(models, "like-cascade", texts, *goal, "--label", "negative")
    combined = calibrate(models, "like-cascade", texts, *goal)

    assert "text 61 is too long" in by_window.output
    assert combined.exit_code == 0, combined.output


def test_a_share_too_small_to_be_shown_is_refused(models: Path, texts: Path) -> None:
    result = calibrate(models, "like-cascade", texts, "--disagreement", 1e-310)

    assert result.exit_code == 2
    assert "0.0001<=x<1" in result.output


def test_the_curve_says_what_each_band_costs(models: Path, texts: Path, tmp_path: Path) -> None:
    curve = tmp_path / "curve.csv"

    calibrate(models, "like-cascade", texts, "--disagreement", 0.2, "--curve", curve)

    with curve.open(newline="") as file:
        first, *_, last = csv.DictReader(file)
    assert float(first["asked"]) > float(last["asked"]) == 0
    assert float(first["seconds"]) > float(last["seconds"]) > 0


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("like-cascade", (), "a disagreement of at most 1.00% needs 736"),
        (
            "unlike-cascade",
            ("--disagreement", 0.2),
            "no text can be left to the small model, which disagrees on 100.0%",
        ),
        ("mood", ("--disagreement", 0.2), "another algorithm than `cascade`"),
        ("like-cascade", ("--disagreement", 0.2, "--label", "sad"), "no label `sad`"),
        (
            "like-cascade",
            ("--disagreement", 0.2, "--label", "negative", "--missed", 0.01),
            "a missed share of at most 1.00% needs 368",
        ),
        ("like-cascade", ("--missed", 0.1), "give `--label` too"),
        ("absent", ("--disagreement", 0.2), "`absent` cannot be served"),
        ("like-cascade", ("--disagreement", 0.2, "--curve", "/absent/c.csv"), "cannot write"),
    ],
)
def test_what_cannot_be_calibrated_is_told_in_one_line(
    models: Path, texts: Path, name: str, given: tuple[object, ...], said: str
) -> None:
    result = calibrate(models, name, texts, *given)

    assert result.exit_code == 2
    assert said in result.output
    assert len(result.output.splitlines()) == 1
