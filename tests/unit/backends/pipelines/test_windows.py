"""Windows over a text: none too long, nothing left out, each token from its best window."""

import itertools

import numpy as np
import pytest
from hypothesis import given, strategies as st

from sluicegate.backends.pipelines.windows import count_windows, join_windows, window_spans


@given(
    tokens=st.integers(1, 500),
    size=st.integers(2, 64),
    share=st.floats(0.0, 0.5),
)
def test_windows_cover_every_token_and_share_what_was_asked(
    tokens: int, size: int, share: float
) -> None:
    overlap = int(size * share)

    spans = window_spans(tokens, size, overlap)

    assert spans[0][0] == 0
    assert spans[-1][1] == tokens
    assert all(0 < end - start <= size for start, end in spans)
    for (_, before), (after, _) in itertools.pairwise(spans):
        assert before - after == overlap


@given(tokens=st.integers(1, 300), size=st.integers(4, 64))
def test_each_token_comes_once_from_a_window_that_holds_it(tokens: int, size: int) -> None:
    spans = window_spans(tokens, size, size // 4)
    rows = [
        np.array([[token, window] for token in range(start, end)], dtype=np.float32)
        for window, (start, end) in enumerate(spans)
    ]

    joined = join_windows(spans, rows)

    assert joined[:, 0].tolist() == list(range(tokens))
    assert (np.diff(joined[:, 1]) >= 0).all()


@pytest.mark.parametrize(("token", "window"), [(7, 0), (8, 1)])
def test_two_windows_meet_in_the_middle_of_what_they_share(token: int, window: int) -> None:
    spans = [(0, 10), (6, 14)]
    rows = [np.zeros((10, 1), dtype=np.float32), np.ones((8, 1), dtype=np.float32)]

    assert join_windows(spans, rows)[token, 0] == window


@pytest.mark.parametrize("tokens", [0, 1, 7, 8, 9, 20, 101])
@pytest.mark.parametrize("overlap", [0, 3, 7, 20])
def test_windows_are_counted_without_making_them(tokens: int, overlap: int) -> None:
    assert count_windows(tokens, 8, overlap) == len(window_spans(tokens, 8, overlap))
