"""Messages as sentences of a page."""

import pytest

from gateway.console.prose import prose


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
