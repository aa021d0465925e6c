"""Spans exclude each other as in GLiNER's greedy search."""

import random

import pytest

from sluicegate.backends.algorithms.labelled_spans import WordSpan, choose_spans


def greedy(spans: list[WordSpan], *, flat: bool, multi_label: bool) -> list[WordSpan]:
    """Compare every span with every chosen one, as the literature does."""
    chosen: list[WordSpan] = []
    for span in sorted(spans, key=lambda each: -each.score):
        words = set(range(span.first, span.last + 1))
        for other in chosen:
            others = set(range(other.first, other.last + 1))
            if words == others:
                if not multi_label:
                    break
            elif words & others and (flat or not (words <= others or others <= words)):
                break
        else:
            chosen.append(span)
    return sorted(chosen, key=lambda each: each.first)


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("multi_label", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_the_chosen_spans_are_those_of_a_comparison_of_all(
    seed: int, *, flat: bool, multi_label: bool
) -> None:
    drawn = random.Random(seed)
    spans = []
    for _ in range(200):
        first = drawn.randrange(40)
        last = first + drawn.randrange(6)
        spans.append(WordSpan(first, last, drawn.randrange(3), drawn.random()))

    chosen = choose_spans(spans, flat=flat, multi_label=multi_label)

    assert chosen == greedy(spans, flat=flat, multi_label=multi_label)


def test_of_equal_scores_the_first_span_is_chosen() -> None:
    spans = [WordSpan(2, 4, 0, 0.9), WordSpan(3, 3, 0, 0.9), WordSpan(0, 1, 1, 0.8)]

    assert choose_spans(spans, flat=True, multi_label=False) == [spans[2], spans[0]]
