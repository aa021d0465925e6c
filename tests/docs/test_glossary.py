"""docs/glossary.md explains every word once."""

from collections import Counter

from tests.docs.tables import page, rows

PAGE = page("docs/glossary.md")


def words(cell: str) -> list[str]:
    return [word.strip().strip("`").lower() for word in cell.split(",") if word.strip()]


TABLES = [row for row in rows(PAGE) if row[0] not in {"word", "noun"}]
TERMS = [word for row in TABLES for word in words(row[0])]
FORBIDDEN = {word for row in TABLES for word in words(row[2] if len(row) > 2 else "")}


def test_no_word_is_explained_twice() -> None:
    assert [word for word, times in Counter(TERMS).items() if times > 1] == []


def test_no_two_words_are_explained_alike() -> None:
    meanings = Counter(row[1].lower() for row in TABLES)

    assert [meaning for meaning, times in meanings.items() if times > 1] == []


def test_a_word_that_is_not_said_is_not_explained() -> None:
    assert FORBIDDEN & set(TERMS) == set()
