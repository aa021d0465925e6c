"""A misspelt name is told the known one, and a long one costs nothing."""

import pytest

from sluicegate.gateway.config.spelling import closest


@pytest.mark.parametrize(
    ("name", "meant"),
    [("sentimnt", "sentiment"), ("minilm2", "minilm"), ("zzz", None), ("", None)],
)
def test_the_most_similar_name_is_found(name: str, meant: str | None) -> None:
    assert closest(name, ["sentiment", "minilm", "topics"]) == meant


def test_long_names_are_compared_with_none() -> None:
    assert closest("sentiment" * 100_000, ["sentiment"]) is None
    assert closest("sentimnt", ["sentiment" * 100_000, "sentiment"]) == "sentiment"
