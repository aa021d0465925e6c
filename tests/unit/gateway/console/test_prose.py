"""Messages as sentences of a page, and values as JSON."""

import pytest

from sluicegate.gateway.console.prose import compact, prose


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("enter a key, or create one", "Enter a key, or create one."),
        ("There is no such page.", "There is no such page."),
        ("`key`: say what it is for", "<code>key</code>: say what it is for."),
        ("mood: weights are missing", "mood: weights are missing."),
        ("", ""),
    ],
)
def test_a_message_is_shown_as_a_sentence(message: str, shown: str) -> None:
    assert prose(message) == shown


def test_a_message_brings_no_markup() -> None:
    assert prose("No tenant `<b>`") == "No tenant <code>&lt;b&gt;</code>."


def test_a_value_is_shown_as_json_and_a_text_as_it_is() -> None:
    assert compact({"revisions": {"1": 1}, "preload": []}) == '{"revisions":{"1":1},"preload":[]}'
    assert (compact("acme"), compact(3), compact(True)) == ("acme", "3", "true")
