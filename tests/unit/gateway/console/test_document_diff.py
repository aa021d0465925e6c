"""Differences of documents: by meaning, not by how they were written."""

from sluicegate.gateway.config.sources import DocumentSource
from sluicegate.gateway.console.document_diff import Change, difference, normalised

ONE = "models:\n  m: {cache_ttl: 60}  # a comment\ndeadline: {default: 10}\n"
GUARD = "guards: {g: {model: m, detectors: [{name: a, kind: words, words: [x]}]}}\n"
SAME = "deadline:\n  default: 10.0\nmodels:\n  m:\n    cache_ttl: 60.0\n"
OTHER = "models:\n  m: {cache_ttl: 90}\n"


def yaml_of(*texts: str) -> str:
    return normalised([DocumentSource(name=f"{i}.yaml", text=t) for i, t in enumerate(texts)])


def test_documents_that_mean_the_same_have_no_difference() -> None:
    found = difference(yaml_of(ONE), yaml_of(SAME))

    assert (found.lines, found.added, found.removed) == ([], 0, 0)


def test_a_difference_has_the_lines_before_and_after() -> None:
    found = difference(yaml_of(ONE), yaml_of(OTHER))

    changed = {(line.change, line.text.strip()) for line in found.lines}
    assert (Change.REMOVED, "cache_ttl: 60.0") in changed
    assert (Change.ADDED, "cache_ttl: 90.0") in changed
    assert (found.added, found.removed) == (1, 1)


def test_a_document_that_is_not_valid_any_more_is_compared_as_it_is() -> None:
    assert "nonsense" in yaml_of("nonsense: 1\n")


def test_a_document_with_guards_can_be_read_again() -> None:
    shown = yaml_of(GUARD)

    assert "kind: words" in shown
    assert yaml_of(shown) == shown
