"""Tests the requests of load tests: seeded, distinct or repeating, with the lengths of texts."""

import msgspec
import numpy as np
import pytest

from loadtests.scenarios.plan import Phase, Plan
from loadtests.scenarios.workload import Mix, make_workload, real_texts, templates

MODELS = {"sentiment": ["classify"], "minilm": ["embed", "rerank"], "nli": ["zero-shot", "choose"]}
PLAN = Plan(phases=(Phase(name="all", rate=100.0, duration=50.0),))


def _mix(zipf: float = 0.0, *, distinct: int = 1000, seed: int = 1) -> Mix:
    return Mix(
        templates=tuple(templates(MODELS)), tenants=3, zipf=zipf, distinct=distinct, seed=seed
    )


def test_the_same_seed_gives_the_same_requests() -> None:
    first, same = (make_workload(_mix(1.0), PLAN, salt=1).requests for _ in range(2))
    other = make_workload(_mix(1.0, seed=2), PLAN, salt=1).requests

    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)


def test_another_run_has_other_texts() -> None:
    first, second = (make_workload(_mix(), PLAN, salt=salt) for salt in (1, 2))

    last = int(first.requests[:, 1].max()) + len(real_texts())
    assert second.first_number > first.first_number + last


def test_without_repeats_no_text_comes_twice() -> None:
    workload = make_workload(_mix(), PLAN, salt=1)

    assert len(np.unique(workload.requests[:, 1])) == PLAN.arrivals
    assert not workload.ideal_hits().any()


def test_with_repeats_few_texts_are_asked_for_often() -> None:
    workload = make_workload(_mix(1.0), PLAN, salt=1)

    _, counts = np.unique(workload.requests[:, 1], return_counts=True)
    share = np.sort(counts)[::-1][:10].sum() / PLAN.arrivals
    assert share == pytest.approx(0.39, abs=0.05)  # of the harmonic numbers H(10) / H(1000)
    assert workload.ideal_hits().mean() > 0.4


def test_a_phase_of_new_texts_repeats_none_of_those_before() -> None:
    cold = Phase(name="cold", rate=100.0, duration=10.0)
    other = Phase(name="other", rate=100.0, duration=10.0, new_texts=True)

    numbers = make_workload(_mix(1.0), Plan(phases=(cold, other)), salt=1).requests[:, 1]

    assert not set(numbers[:1000].tolist()) & set(numbers[1000:].tolist())


def test_numbers_spread_over_all_real_texts() -> None:
    numbers = make_workload(_mix(), PLAN, salt=1).requests[:, 1]

    assert len(set((numbers % len(real_texts())).tolist())) == len(real_texts())


def test_each_task_of_each_model_is_asked_by_its_route() -> None:
    found = {one.name: one for one in templates(MODELS)}

    assert set(found) == {
        "classify sentiment",
        "embed minilm",
        "rerank minilm",
        "zero-shot nli",
        "choose nli",
    }
    rerank = found["rerank minilm"]
    assert rerank.path == "/v1/rerank"
    assert msgspec.json.decode(rerank.body) == {
        "model": "minilm",
        "query": "@text",
        "documents": ["@text"] * 4,
    }


def test_models_can_be_left_out() -> None:
    assert {one.name for one in templates(MODELS, only=("sentiment",))} == {"classify sentiment"}
    assert templates(MODELS, only=("none",)) == []
