"""Detectors without a model find what they should, and nothing that only looks like it."""

from typing import Any

import msgspec
import pytest

from sluicegate.backends.guards.formats import find_format
from sluicegate.backends.guards.readable import readable
from sluicegate.backends.guards.texts import find_in_text
from sluicegate.wire.guards import AnyDetector, Format


def found(text: str, **detector: Any) -> list[str]:
    """Return the parts of a text that a detector finds."""
    made: Any = msgspec.convert({"name": "d"} | detector, AnyDetector)
    return [text[start:end] for _, (start, end) in find_in_text(made, readable(text))]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("credit_card", "4111 1111 1111 1111", ["4111 1111 1111 1111"]),
        ("credit_card", "x 4111111111111111 12.", ["4111111111111111"]),
        ("credit_card", "12 5500-0000-0000-0004", ["5500-0000-0000-0004"]),
        ("credit_card", "378282246310005", ["378282246310005"]),
        ("credit_card", "2223003122003222", ["2223003122003222"]),
        ("credit_card", "4111 1111 1111 1112", []),
        ("credit_card", "0000 0000 0000 0000", []),
        ("credit_card", "94111111111111111", []),
        ("iban", "DE89 3704 0044 0532 0130 00 please", ["DE89 3704 0044 0532 0130 00"]),
        ("iban", "gb29nwbk60161331926819", ["gb29nwbk60161331926819"]),
        ("iban", "DE89 3704 0044 0532 0130 01", []),
        ("iban", "DE89370400440532013000X", []),
        ("iban", "ZZ89 3704 0044 0532 0130 00", []),
        ("email", "mail ada.b+c@exämple.co.uk.", ["ada.b+c@exämple.co.uk"]),
        ("email", "a@b, @c.org", []),
        ("ip_address", "10.0.0.1, fe80::1 and ::", ["10.0.0.1", "fe80::1", "::"]),
        ("ip_address", "at 10:30, 999.1.1.1", []),
        ("phone", "+49 (0)30 1234567", ["+49 (0)30 1234567"]),
        ("phone", "1 + 23", []),
        ("url", "(see https://x.org/a?b=c).", ["https://x.org/a?b=c"]),
        ("us_ssn", "123-45-6789 000-12-3456 900-12-3456", ["123-45-6789"]),
    ],
)
def test_a_format_needs_its_check_digits_and_parts(
    name: Format, text: str, expected: list[str]
) -> None:
    assert sorted({text[start:end] for start, end in find_format(text, name)}) == sorted(expected)


@pytest.mark.parametrize("zero", ["\uff10", "\u0660", "\u0966", "\U0001d7d8", "\U000e0030"])
def test_digits_of_other_scripts_are_read(zero: str) -> None:
    digits = {ord("0") + digit: ord(zero) + digit for digit in range(10)}
    text = "4111 1111 1111 1111".translate(digits)

    assert found(text, kind="formats", formats=["credit_card"]) == [text]


def test_hidden_characters_between_digits_are_not_read() -> None:
    text = "4111 11\u200b11 11\ufe0f11 1\u034f111"

    assert found(text, kind="formats", formats=["credit_card"]) == [text]


@pytest.mark.parametrize(
    ("words", "text", "expected"),
    [
        (["art"], "cart art ART. artful", ["art", "ART"]),
        (["Straße"], "STRASSE", ["STRASSE"]),
        (["café"], "un cafe\u0301!", ["cafe\u0301"]),
        (["bad word"], "a bad word", ["bad word"]),
        (["炸弹"], "这是炸弹吗", ["炸弹"]),
        (["שלום"], "אמר שלום לכולם", ["שלום"]),
        (["a"], "a a-a", ["a", "a", "a"]),
        ([""], "text", []),
    ],
)
def test_words_are_whole_and_of_any_case(words: list[str], text: str, expected: list[str]) -> None:
    assert found(text, kind="words", words=words) == expected


def test_a_pattern_finds_all_its_matches_but_empty_ones() -> None:
    assert found("sk-1 sk-22", kind="pattern", pattern="sk-[0-9]+|x*") == ["sk-1", "sk-22"]


def test_the_rest_of_a_text_that_is_too_long_is_found() -> None:
    assert found("abcdef", kind="length", max_characters=4) == ["ef"]
    assert found("abcd", kind="length", max_characters=4) == []
