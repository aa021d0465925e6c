"""Golden sets are lines of text, or CSV files that name their columns."""

from pathlib import Path

import pytest

from sluicegate.backends.errors import StartProblem
from sluicegate.backends.qualification.golden_texts import GoldenSet, read_golden


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
        ("texts.csv", "words,label\na,b\n", "column `text`.*words, label"),
        ("texts.csv", "text\n", "no texts"),
        ("texts.txt", "\n", "no texts"),
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


def test_a_csv_holds_pairs(tmp_path: Path) -> None:
    path = tmp_path / "texts.csv"
    path.write_text("query,document\na,one\na,two\nb,three\n", encoding="utf-8")

    golden = read_golden(path).suited_to("order", reads_pairs=True)

    # A query with one document has no order.
    assert golden.texts == [("a", "one"), ("a", "two")]
    assert golden.groups == [0, 0]


def test_searches_are_made_of_plain_texts() -> None:
    texts = [f"text {number}" for number in range(10)]

    golden = GoldenSet(texts=list(texts)).suited_to("order", reads_pairs=True)
    pairs = GoldenSet(texts=list(texts)).suited_to("labels", reads_pairs=True)

    assert golden.groups == [query for query in range(10) for _ in range(4)]
    assert golden.texts[:4] == [("text 0", f"text {number}") for number in range(1, 5)]
    assert [text[0] for text in pairs.texts] == texts


def test_a_model_of_single_texts_reads_both_of_a_pair() -> None:
    golden = GoldenSet(texts=[("a", "b"), ("a", "c")], labels=["x", "y"])

    assert golden.suited_to("vectors", reads_pairs=False).texts == ["a", "b", "c"]


def test_a_third_of_the_texts_calibrates_and_none_of_them_judges() -> None:
    whole = GoldenSet(texts=list("abcdef"), labels=list("uvwxyz"))

    calibrate, judging = whole.split()

    assert (calibrate.texts, calibrate.labels) == (["a", "d"], ["u", "x"])
    assert (judging.texts, judging.labels) == (["b", "c", "e", "f"], ["v", "w", "y", "z"])
