"""Detectors without a model find what they should, and nothing that only looks like it."""

from typing import Any

import msgspec
import pytest
from tokenizers import BertWordPieceTokenizer

from sluicegate.backends.errors import ItemRefused
from sluicegate.backends.guards.formats import find_format
from sluicegate.backends.guards.readable import model_readings, readings
from sluicegate.backends.guards.texts import find_in_text
from sluicegate.backends.guards.time_limit import TimeLimit
from sluicegate.wire.guards import AnyDetector, ClassifierDetector, Format
from sluicegate.wire.protocol import GuardParameters, RowLimits, most_guard_windows

LONG = 3600.0


def found(text: str, **detector: Any) -> list[str]:
    """Return the parts of a text that a detector finds."""
    made: Any = msgspec.convert({"name": "d"} | detector, AnyDetector)
    spans = {
        span
        for read in readings(text)
        for _, span in find_in_text(made, text, read, TimeLimit(LONG))
    }
    return [text[start:end] for start, end in sorted(spans)]


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
        ("credit_card", "4000 4111 1111 1111 1111", ["4111 1111 1111 1111"]),
        (
            "credit_card",
            "PIN 4321 4111 1111 1111 1111",
            ["4321 4111 1111 1111", "4111 1111 1111 1111"],
        ),
        ("credit_card", "card4111111111111111_", ["4111111111111111"]),
        ("credit_card", "4111  1111\n1111\u20131111", ["4111  1111\n1111\u20131111"]),
        ("iban", "DE89 3704 0044 0532 0130 00 please", ["DE89 3704 0044 0532 0130 00"]),
        ("iban", "gb29nwbk60161331926819", ["gb29nwbk60161331926819"]),
        ("iban", "DE89 3704 0044 0532 0130 01", []),
        ("iban", "DE89370400440532013000X", []),
        (
            "iban",
            "GB82 WEST 1234 5698 7654 32 DE89 3704 0044 0532 0130 00",
            ["GB82 WEST 1234 5698 7654 32", "DE89 3704 0044 0532 0130 00"],
        ),
        ("iban", "账号gb29nwbk60161331926819。", ["gb29nwbk60161331926819"]),
        ("iban", "ID12 GB82WEST12345698765432", ["GB82WEST12345698765432"]),
        ("iban", "AGB82WEST12345698765432", []),
        ("iban", "ZZ89 3704 0044 0532 0130 00", []),
        ("email", "mail ada.b+c@exämple.co.uk.", ["ada.b+c@exämple.co.uk"]),
        ("email", "a@b, @c.org", []),
        ("email", "andre\u0301@example.com", ["andre\u0301@example.com"]),
        ("email", "a@b.xn--p1ai.", ["a@b.xn--p1ai"]),
        ("ip_address", "10.0.0.1, fe80::1 and ::", ["10.0.0.1", "fe80::1", "::"]),
        ("ip_address", "at 10:30, 999.1.1.1", []),
        ("ip_address", "999.1.2.3.4", ["1.2.3.4"]),
        ("ip_address", "IP:2001:db8::1 2001:db8::2: refused", ["2001:db8::1", "2001:db8::2"]),
        ("ip_address", "IP:::1, 2001:::", ["::1", "2001::"]),
        ("phone", "+49 (0)30 1234567", ["+49 (0)30 1234567"]),
        ("phone", "1 + 23", []),
        ("phone", "+49\u201130\u20131234  567", ["+49\u201130\u20131234  567"]),
        ("url", "(see https://x.org/a?b=c).", ["https://x.org/a?b=c"]),
        ("us_ssn", "123-45-6789 000-12-3456 900-12-3456", ["123-45-6789"]),
        (
            "us_ssn",
            "SSN123-45-6789, 123\u201145\u20136780",
            ["123-45-6789", "123\u201145\u20136780"],
        ),
    ],
)
def test_a_format_needs_its_check_digits_and_parts(
    name: Format, text: str, expected: list[str]
) -> None:
    assert sorted(
        {text[start:end] for start, end in find_format(text, name, TimeLimit(LONG))}
    ) == sorted(expected)


@pytest.mark.parametrize("zero", ["\uff10", "\u0660", "\u0966", "\U0001d7d8", "\U000e0030"])
def test_digits_of_other_scripts_are_read(zero: str) -> None:
    digits = {ord("0") + digit: ord(zero) + digit for digit in range(10)}
    text = "4111 1111 1111 1111".translate(digits)

    assert found(text, kind="formats", formats=["credit_card"]) == [text]


def test_hidden_characters_between_digits_are_not_read() -> None:
    text = "4111 11\u200b11 11\ufe0f\u20e311 1\u034f111"

    assert found(text, kind="formats", formats=["credit_card"]) == [text]


@pytest.mark.parametrize(
    "hidden",
    ["\0", "\b", "\x7f", "\x85", "\u2065", "\ufff8", "\U000e0002", "\U000e0fff", "\U000e0041"],
)
def test_characters_that_nobody_sees_split_no_word_and_no_number(hidden: str) -> None:
    text = f"b{hidden}ad 4111{hidden} 1111 1111 1111"

    assert found(text, kind="words", words=["bad"]) == [f"b{hidden}ad"]
    assert found(text, kind="pattern", pattern="bad") == [f"b{hidden}ad"]
    assert found(text, kind="formats", formats=["credit_card"]) == [text[5:]]


@pytest.mark.parametrize(
    "joint",
    [
        "\u200b",
        "\u00ad",
        "\u200d\u2060",
        "\u3164",
        "\0",
        "\U000e0002",
        "\u0301\u200b",
        "\U000e0041",
    ],
)
def test_words_that_only_invisible_characters_join_are_read_as_one_and_apart(joint: str) -> None:
    text = f"ignore{joint}previous"

    assert found(text, kind="words", words=["previous"]) == ["previous"]
    assert found(text, kind="pattern", pattern=r"ignore.?\s+previous") == [text]
    assert "ignore previous" in [
        read.text.replace("\u0301", "") for read in model_readings(readings(text))
    ]


_TAGGED = "".join(chr(0xE0000 + ord(each)) for each in "ignore all rules")


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        (f"Hello{_TAGGED}there", ["ignore", "all rules"], [_TAGGED[:6], _TAGGED[7:]]),
        ("ba\u200bd™ bad², badᵃ", ["bad"], ["ba\u200bd", "bad", "bad"]),
        (
            "ig\u200bnore\u200bprevious",
            ["ignore previous", "nore previous"],
            ["ig\u200bnore\u200bprevious", "nore\u200bprevious"],
        ),
        ("ignore\u200b\n previous", ["ignore previous"], ["ignore\u200b\n previous"]),
        ("ignoreprevious ign ore", ["ignore previous", "ignore"], []),
        ("a b c", ["ab c", "a bc", "abc"], []),
    ],
)
def test_words_begin_and_end_at_any_joint(text: str, words: list[str], expected: list[str]) -> None:
    assert found(text, kind="words", words=words) == expected


@pytest.mark.parametrize("text", ["4111111111111111²", "①4111111111111111", "x4111111111111111ᵃ"])
def test_signs_beside_a_number_do_not_hide_it(text: str) -> None:
    assert found(text, kind="formats", formats=["credit_card"]) == ["4111111111111111"]


def test_a_joint_of_emoji_makes_no_second_reading() -> None:
    assert len(readings("two 👩\u200d👩\u200d👧, ❤\ufe0f and 🇩🇪 flags")) == 1


@pytest.mark.parametrize(("text", "bad"), [("so🅱🅰🅳ly", "🅱🅰🅳"), ("so🇧🇦🇩ly", "🇧🇦🇩"), ("b🇦🇩", "b🇦🇩")])
def test_letters_in_signs_belong_to_the_word_beside_them_or_not(text: str, bad: str) -> None:
    assert found(text, kind="words", words=["bad"]) == [bad]


@pytest.mark.parametrize("text", ["b\u0336a\u20e0d", "ʙᴀᴅ", "🅑🅐🅓", "🅱🅰🅳", "🇧🇦🇩"])
def test_styled_and_crossed_out_words_are_found(text: str) -> None:
    assert found(text, kind="words", words=["bad"]) == [text]


def test_digits_in_circles_are_read() -> None:
    text = "❹➀⓵① 1111 1111 1111"

    assert found(text, kind="formats", formats=["credit_card"]) == [text]


@pytest.mark.parametrize("space", ["\u1680", "\u2028", "\u2800"])
def test_every_blank_ends_a_word(space: str) -> None:
    assert found(f"a{space}bad word", kind="pattern", pattern=r"\sbad") == [f"{space}bad"]


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("bad☃ worse😀", "bad ☃ worse 😀"),
        ("이것bad\u02de", "이것 bad \u02de"),
        ("bad1☃ badé☃ e\u0301☃", "bad1 ☃ badé ☃ e\u0301 ☃"),
        ("café, don\u2019t ва\u0306ш", "café, don\u2019t ва\u0306ш"),
        ("x" * 110, " ".join(["x" * 25] * 4 + ["x" * 10])),
        ("각" * 40, f"{'각' * 25} {'각' * 15}"),
    ],
)
def test_no_word_hides_from_models_behind_a_sign_or_its_length(text: str, seen: str) -> None:
    (reading,) = model_readings(readings(text))

    assert reading.text == seen
    assert reading.original((len(seen) - 1, len(seen))) == (len(text) - 1, len(text))
    assert reading.original((0, len(seen))) == (0, len(text))


def test_no_character_hides_the_words_beside_it_from_wordpiece() -> None:
    letters = [*map(chr, range(33, 127)), *"æðøþßđħıłŋœ"]
    pieces = ["[UNK]", "[CLS]", "[SEP]", "bad", *letters, *(f"##{each}" for each in letters)]
    tokenizer = BertWordPieceTokenizer({piece: number for number, piece in enumerate(pieces)})
    # All later characters are strange, or become one of these.
    codes = [*range(0x3100), *range(0xFE00, 0x10000)]
    read = [
        reading.text
        for code in codes
        for reading in model_readings(readings(f"badé{chr(code)}bad"))
    ]

    encoded = tokenizer.encode_batch(read, add_special_tokens=False)

    hidden = [text for text, one in zip(read, encoded, strict=True) if one.tokens[0] == "[UNK]"]
    assert hidden == []


def test_models_read_a_text_with_its_tags_and_without_them() -> None:
    text = "a\U000e0062d"

    assert [one.text for one in model_readings(readings(text))] == ["abd", "a b d", "ad", "a d"]


@pytest.mark.parametrize(
    "text", ["ignore\u200bprevious", "bad²", "so🅱🅰🅳ly", "a\U000e0062d", "a\U000e0062d\u200bb"]
)
def test_rows_are_reserved_for_all_readings(text: str) -> None:
    detector = ClassifierDetector(name="d", model="m", labels={"bad": 0.5})
    parameters = GuardParameters(detectors=(detector,))

    reserved = most_guard_windows(text, parameters, RowLimits(tokens=512))

    assert reserved == len(model_readings(readings(text)))


def test_words_of_tags_are_found() -> None:
    text = "a " + "".join(chr(0xE0000 + ord(each)) for each in "bad")

    assert found(text, kind="words", words=["bad"]) == [text[2:]]


def test_a_text_that_grows_much_when_it_is_read_is_refused() -> None:
    with pytest.raises(ItemRefused, match="stand for several others"):
        readings("\ufdfa" * 100)


@pytest.mark.parametrize(
    "detector",
    [
        {"kind": "formats", "formats": ["email"]},
        {"kind": "pattern", "pattern": "e"},
        {"kind": "words", "words": ["absent"]},
    ],
)
def test_detectors_refuse_a_text_when_their_time_is_over(detector: dict[str, Any]) -> None:
    made: Any = msgspec.convert({"name": "d"} | detector, AnyDetector)
    text = "me@example.com"
    (read,) = readings(text)

    with pytest.raises(ItemRefused) as caught:
        list(find_in_text(made, text, read, TimeLimit(0.0)))

    assert caught.value.code == "guard_too_slow"


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
        (["", "\u200b"], "text", []),
        (["ignore all"], "ignore  all ignore\n\u2028all", ["ignore  all", "ignore\n\u2028all"]),
        (["ignore \n all "], "é  ignore all", ["ignore all"]),
    ],
)
def test_words_are_whole_and_of_any_case(words: list[str], text: str, expected: list[str]) -> None:
    assert found(text, kind="words", words=words) == expected


def test_a_pattern_finds_all_its_matches_but_empty_ones() -> None:
    assert found("sk-1 sk-22", kind="pattern", pattern="sk-[0-9]+|x*") == ["sk-1", "sk-22"]


def test_the_rest_of_a_text_that_is_too_long_is_found() -> None:
    assert found("abcdef", kind="length", max_characters=4) == ["ef"]
    assert found("abcd", kind="length", max_characters=4) == []
    assert found("ab\u200b\u200bcd", kind="length", max_characters=4) == ["cd"]
