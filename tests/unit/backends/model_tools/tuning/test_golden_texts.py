"""Golden sets are lines of text, or CSV files that name their columns."""

from pathlib import Path

import pytest

from backends.errors import StartProblem
from backends.model_tools.tuning.texts import read_golden


def test_a_text_file_holds_one_text_a_line(tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("first\n\n  second \n", encoding="utf-8")

    golden = read_golden(path)

    assert golden.texts == ["first", "second"]
    assert golden.labels is None


@pytest.mark.parametrize("label", ["label", "category"])
def test_a_csv_holds_texts_with_labels(tmp_path: Path, label: str) -> None:
    path = tmp_path / "texts.csv"
    path.write_text(f'{label},text\na,"one, two"\nb,three\nc, \n', encoding="utf-8")

    golden = read_golden(path)

    assert golden.texts == ["one, two", "three"]
    assert golden.labels == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("texts.csv", "words,label\na,b\n", "needs a column `text`; it has words, label"),
        ("texts.csv", "text\n", "holds no texts"),
        ("texts.txt", "\n", "holds no texts"),
    ],
)
def test_what_is_no_golden_set_is_refused(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")

    with pytest.raises(StartProblem, match=message):
        read_golden(tmp_path / name)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartProblem, match=r"cannot read .*nothing\.txt"):
        read_golden(tmp_path / "nothing.txt")
