"""A document that leaves a configured model without any backend is refused."""

import pytest

from sluicegate.gateway.config.load import explain
from sluicegate.gateway.errors import ConfigurationError
from tests.support.config_texts import load_text


def text(models: str, *pools: str) -> str:
    listed = ", ".join(f"{{name: p{n}{pool}}}" for n, pool in enumerate(pools))
    return f"regions: [{{name: eu, pools: [{listed}]}}]\nmodels: {{{models}}}\n"


def test_a_configured_model_that_no_pool_is_assigned_is_refused() -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_text(text("mood: {}, lost: {}", ", models: [mood]", ", models: [x-*]"), name="g.yaml")

    assert explain(caught.value).startswith("g.yaml:2: models.lost: no backend would serve `lost`")


@pytest.mark.parametrize("pattern", ["Mood", "mood@1", "", "-", "a b", "a" * 65])
def test_what_no_model_can_match_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_text(text("", f", models: ['{pattern}']"), name="g.yaml")

    said = explain(caught.value)
    assert f"regions[0].pools[0].models[0]: `{pattern}`" in said


@pytest.mark.parametrize(
    ("models", "pools"),
    [
        ("mood: {}", []),
        ("mood: {}", [""]),
        ("mood: {}", ["", ", models: [other]"]),
        ("mood: {}", [", models: [other]", ", models: ['mo*']"]),
        ("mood: {enabled: false}", [", models: [other]"]),
        ("mood: {planned: true}", [", models: [other]"]),
    ],
)
def test_a_model_may_have_its_backend_anywhere_or_need_none(models: str, pools: list[str]) -> None:
    assert load_text(text(models, *pools)).models
