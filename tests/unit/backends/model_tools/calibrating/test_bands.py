"""A cascade's band is chosen with one half of the texts, and tested with the other half."""

import numpy as np
import pytest

from sluicegate.backends.model_tools.calibrating.bands import (
    Judged,
    choose,
    exact_interval,
    find_bands,
    trials_needed,
)

RATE = 0.02


def judged(seed: int, *, texts: int = 1500, middle: float = 0.7) -> Judged:
    """Return texts that differ the more often, the nearer their score is to `middle`."""
    random = np.random.default_rng(seed)
    scores = random.random(texts)
    return Judged(
        scores=scores,
        differs=random.random(texts) < np.exp(-20 * np.abs(scores - middle)) / 2,
        middle=middle,
    )


@pytest.mark.parametrize(
    ("count", "total", "least", "most"),
    [
        (0, 100, 0.0, 0.03621669),
        (10, 100, 0.04900469, 0.1762226),
        (100, 100, 0.96378331, 1.0),
        (20, 2000, 0.00611866, 0.01540213),
        (20_000, 200_000, 0.09868852, 0.10132309),
        (0, 0, 0.0, 1.0),
    ],
)
def test_an_interval_is_that_of_clopper_and_pearson(
    count: int, total: int, least: float, most: float
) -> None:
    """The expected values are those of scipy.stats.beta.ppf."""
    assert exact_interval(count, total) == pytest.approx((least, most), abs=1e-6)


@pytest.mark.parametrize("rate", [0.001, 0.01, 0.1])
def test_the_texts_needed_are_just_enough(rate: float) -> None:
    needed = trials_needed(rate)

    assert exact_interval(0, needed)[1] <= rate < exact_interval(0, needed - 1)[1]


@pytest.mark.parametrize("middle", [0.0, 0.3, 0.7])
def test_bands_get_narrower_and_hold_the_middle(middle: float) -> None:
    texts = judged(0, middle=middle)

    bands = find_bands(texts)

    points = [texts.point(band) for band in bands]
    assert all(low <= middle <= high for low, high in bands)
    assert points == sorted(points, key=lambda point: (-point.asked, point.differing))
    assert (points[0].differing, points[-1].asked) == (0, 0.0)


def test_a_band_is_the_cheapest_one_with_its_disagreements() -> None:
    texts = judged(1, texts=60)
    cuts = np.round(np.linspace(0, 1, 201), 6)
    every = [texts.point((low, high)) for low in cuts for high in cuts if low <= 0.7 <= high]

    for point in map(texts.point, find_bands(texts)[3:]):
        fewer = [other for other in every if other.differing <= point.differing]
        assert point.asked <= min(other.asked for other in fewer) + 1e-9


def test_a_chosen_band_rarely_disagrees_more_often_than_it_may() -> None:
    everything = judged(10_000, texts=200_000)
    chosen = []
    for seed in range(40):
        first, second = judged(seed).halves()
        point = choose(second, find_bands(first), RATE)
        assert point is not None
        assert point.interval[1] <= RATE
        chosen.append(everything.point(point.band).disagreement)

    assert sum(share > RATE for share in chosen) <= 2
    assert np.mean(chosen) > RATE / 4


def test_a_band_that_misses_rare_findings_is_chosen_only_without_a_bound_on_them() -> None:
    scores = np.random.default_rng(0).uniform(0, 0.8, 3000)
    blind = Judged(scores=scores, differs=np.arange(3000) < 15, middle=0.9)

    unbounded = choose(blind, [(0.9, 0.9)], RATE)

    assert unbounded is not None
    assert (unbounded.missed, unbounded.reached) == (15, 15)
    assert choose(blind, [(0.9, 0.9)], RATE, missed=0.5) is None


def test_a_chosen_band_also_keeps_the_missed_share() -> None:
    first, second = judged(0, texts=5000).halves()

    point = choose(second, find_bands(first), 0.2, missed=RATE)

    assert point is not None
    assert exact_interval(point.missed, point.reached)[1] <= RATE
    assert point.asked < 1


def test_no_band_is_chosen_if_the_surest_texts_differ() -> None:
    texts = judged(0)
    texts = Judged(scores=texts.scores, differs=~texts.differs, middle=0.7)

    assert choose(texts, [(0.1, 0.9)], RATE) is None
