"""What a repository holds, and what a broken model takes with it."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from sluicegate.backends.errors import StartProblem
from sluicegate.backends.repository.catalogue import read_catalogue
from testing.model_repository import (
    write_encoder,
    write_head,
    write_model,
    write_repository,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_repository(tmp_path / "models")


def test_models_come_after_those_they_build_on(root: Path) -> None:
    names = list(read_catalogue(root).models)

    assert set(names) == {"tiny", "mood", "intents", "names", "topics", "reviewer"}
    assert names.index("tiny") < names.index("mood") < names.index("reviewer")


def test_a_revision_is_twelve_hex_digits_and_the_same_wherever_the_files_lie(
    root: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(root, tmp_path / "copy")

    ours, theirs = read_catalogue(root).models, read_catalogue(copy).models

    assert {n: m.revision for n, m in ours.items()} == {n: m.revision for n, m in theirs.items()}
    assert all(len(m.revision) == 12 and int(m.revision, 16) >= 0 for m in ours.values())


def test_a_changed_file_changes_the_revision_of_all_that_build_on_it(root: Path) -> None:
    before = read_catalogue(root).models
    (root / "tiny" / "1" / "model.onnx").write_bytes(b"another graph")

    after = read_catalogue(root).models

    assert all(before[name].revision != after[name].revision for name in before)


def test_a_changed_head_leaves_its_neighbours_alone(root: Path) -> None:
    before = read_catalogue(root).models
    write_head(root, "mood", ["negative", "positive", "mixed"])

    after = read_catalogue(root).models

    changed = {name for name in before if before[name].revision != after[name].revision}
    assert changed == {"mood", "reviewer"}


def test_a_renamed_file_changes_the_revision(root: Path) -> None:
    before = read_catalogue(root).models["tiny"].revision
    (root / "tiny" / "1" / "notes").write_text("x")
    middle = read_catalogue(root).models["tiny"].revision
    (root / "tiny" / "1" / "notes").rename(root / "tiny" / "1" / "other")

    assert len({before, middle, read_catalogue(root).models["tiny"].revision}) == 3


def test_hidden_files_are_no_part_of_a_model(root: Path) -> None:
    before = read_catalogue(root).models["tiny"].revision
    (root / "tiny" / "1" / ".DS_Store").write_text("x")
    (root / ".lock").write_text("")

    assert read_catalogue(root).models["tiny"].revision == before


def test_the_revision_folder_with_the_highest_number_is_served(root: Path) -> None:
    write_encoder(root, description="newer").rename(root / "tiny" / "10")
    write_encoder(root, description="older").rename(root / "tiny" / "9")

    assert read_catalogue(root).models["tiny"].manifest.description == "newer"


def test_a_broken_model_takes_only_those_that_build_on_it(root: Path) -> None:
    (root / "mood" / "1" / "head.npz").unlink()

    catalogue = read_catalogue(root)

    assert set(catalogue.models) == {"tiny", "intents", "names", "topics"}
    assert "head.npz: the file is missing" in catalogue.problems["mood"]
    assert catalogue.problems["reviewer"] == "it builds on `mood`, which is broken"


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    write_head(tmp_path, "mood", ["a", "b"], encoder="bert")

    problems = read_catalogue(tmp_path).problems

    assert problems == {"mood": "it builds on `bert`, which is not in the repository"}


def test_models_that_build_on_each_other_are_refused(tmp_path: Path) -> None:
    for name, other in (("one", "two"), ("two", "one")):
        manifest = {"kind": "algorithm", "algorithm": "x", "uses": [other], "tasks": ["infer"]}
        write_model(tmp_path, name, manifest)

    problems = read_catalogue(tmp_path).problems

    assert problems == {
        "one": "it builds on itself: one -> two -> one",
        "two": "it builds on `one`, which is broken",
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": 1}, "unknown field `colour`"),
        ({"max_tokens": "many"}, r"\$\.max_tokens"),
        ({"max_tokens": 0}, r"\$\.max_tokens"),
        ({"kind": "magic"}, "magic"),
        ({"graph": "../../etc/passwd"}, r"\$\.graph"),
        ({"graph": "missing.onnx"}, r"missing\.onnx: the file is missing"),
        ({"outputs": {}}, "`outputs`"),
        ({"outputs": {"tokens": "t"}}, "`tasks` need an output `pooled`"),
        ({"tasks": ["classify"]}, "`tasks`"),
    ],
)
def test_a_wrong_field_is_named_with_its_file(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    write_encoder(tmp_path, **change)

    problem = read_catalogue(tmp_path).problems["tiny"]

    assert str(tmp_path / "tiny" / "1") in problem
    assert re.search(message, problem)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "embed"}, "`task` of a head"),
        ({"output": "tokens"}, "`output` must be `pooled`"),
        ({"labels": ["a", "a"]}, "`labels`"),
        ({"labels": []}, "$.labels"),
    ],
)
def test_a_wrong_head_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    write_encoder(tmp_path)
    write_head(tmp_path, "mood", ["a", "b"])
    write_head(tmp_path, "mood", **({"labels": ["a", "b"]} | change))  # type: ignore[arg-type]

    assert message in read_catalogue(tmp_path).problems["mood"]


def test_a_file_that_is_no_yaml_is_one_line(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path)
    (folder / "model.yaml").write_text("kind: [encoder\n  graph: }")

    problem = read_catalogue(tmp_path).problems["tiny"]

    assert "cannot be read as YAML" in problem
    assert "\n" not in problem


def test_a_folder_without_a_revision_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    assert "no revision folder" in read_catalogue(tmp_path).problems["empty"]


def test_a_repository_that_is_not_there_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(StartProblem, match="does not exist"):
        read_catalogue(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["Mood", "mood@2", "two words"])
def test_a_folder_that_no_call_could_name_is_a_problem_of_its_own(root: Path, name: str) -> None:
    shutil.copytree(root / "mood", root / name)

    catalogue = read_catalogue(root)

    assert set(catalogue.problems) == {name}
    assert "not a valid model name" in catalogue.problems[name]
