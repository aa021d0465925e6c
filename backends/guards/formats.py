"""Finds known formats in texts: card numbers, IBANs, e-mail and IP addresses and others.

RE2 finds where a format may be, in time proportional to the text. A function then looks for the
spans that have the format. Spans may overlap, so that no span that only looks right hides another.
"""

import ipaddress
import itertools
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

import re2

from sluicegate.backends.guards.time_limit import TimeLimit
from sluicegate.backends.pipelines.windows import Span
from sluicegate.wire.guards import Format

_DASH: Final = r"[\-\u2010-\u2015\u2212]"
# What may stand between the digits of a number. Nothing of it is given back, so that a long run of
# white space is read once.
_SEPARATOR: Final = rf"\s*+(?:{_DASH}|[.()]){{0,2}}+\s*+"
_RE2_DASH: Final = r"[\-\x{2010}-\x{2015}\x{2212}]"
_RE2_SEPARATORS: Final = rf"(?:[\s\pZ.()]|{_RE2_DASH})*"
_IBAN_MODULUS: Final = 97
_MAX_IP_CHARACTERS: Final = 45
_CARD_DIGITS: Final = range(13, 20)
_FIRST_DIGITS: Final = "23456"
_END_OF_SENTENCE: Final = ".,;:!?)]}'\""
_DIGITS: Final = re.compile("[0-9]+")
# Twice each digit; of a result with two digits, their sum.
_DOUBLED: Final = str.maketrans("0123456789", "0246813579")
# ISO/IEC 7812; the card schemes' own pages.
_CARD: Final = re.compile(
    "4(?:[0-9]{12}|[0-9]{15}|[0-9]{18})"  # Visa
    "|5[1-5][0-9]{14}"  # Mastercard
    "|2(?:2(?:2[1-9]|[3-9][0-9])|[3-6][0-9]{2}|7[01][0-9]|720)[0-9]{12}"  # Mastercard
    "|3[47][0-9]{13}"  # American Express
    "|3(?:0[0-5]|[689][0-9])[0-9]{11}"  # Diners Club
    "|(?:6011|64[4-9][0-9]|65[0-9]{2}|35(?:2[89]|[3-8][0-9]))[0-9]{12}"  # Discover, JCB
    "|62[0-9]{14,17}"  # UnionPay
)
_PHONE: Final = re.compile(rf"\+[0-9](?:{_SEPARATOR}[0-9]){{7,14}}(?![0-9])")
_IBAN_PART: Final = re.compile(rf"{_SEPARATOR}([A-Za-z0-9])")
_ASCII_WORD: Final = re.compile("[A-Za-z0-9]")
_IPV4: Final = re.compile(r"(?<![0-9])(?=([0-9]{1,3}(?:\.[0-9]{1,3}){3})(?![0-9]))")
_SSN: Final = re.compile(
    rf"(?<![0-9])(?!000|666|9)[0-9]{{3}}{_DASH}(?!00)[0-9]{{2}}{_DASH}(?!0000)[0-9]{{4}}(?![0-9])"
)
# The characters of an IBAN by country, from the IBAN registry (ISO 13616).
_IBAN_LENGTHS: Final = {
    country: length
    for length, countries in {
        15: "NO",
        16: "BE",
        18: "DK FI FO GL NL",
        19: "MK SI",
        20: "AT BA EE KZ LT LU XK",
        21: "CH HR LI LV",
        22: "BG BH CR DE GB GE IE ME RS VA",
        23: "AE GI IL IQ OM TL",
        24: "AD CZ ES MD PK RO SA SE SK TN VG",
        25: "LY PT ST",
        26: "IS TR",
        27: "BI DJ FR GR IT MC MR SM",
        28: "AL AZ BY CY DO GT HU LB NI PL SV",
        29: "BR EG PS QA UA",
        30: "JO KW MU",
        31: "MT SC",
        32: "LC",
        33: "RU",
    }.items()
    for country in countries.split()
}


class _Rule(NamedTuple):
    """Holds RE2's pattern of where a format may be, and what yields the format's spans there."""

    pattern: str
    spans: Callable[[str, Span, TimeLimit], Iterator[Span]]


def find_format(text: str, name: Format, limit: TimeLimit) -> Iterator[Span]:
    """Yield the spans of a text that have a format.

    Raises:
        ItemRefused: the time is over.
    """
    for pattern, spans in _compiled[name]:
        for place in limit.each(pattern.finditer(text)):
            yield from spans(text, place.span(), limit)


def _cards(text: str, within: Span, limit: TimeLimit) -> Iterator[Span]:
    groups = [group.span() for group in limit.each(_DIGITS.finditer(text, *within))]
    places = list(itertools.accumulate((end - start for start, end in groups), initial=0))
    digits = "".join(text[start:end] for start, end in groups)
    for (start, _), place in zip(limit.each(groups), places, strict=False):
        if digits[place] in _FIRST_DIGITS:
            least = bisect_left(places, place + _CARD_DIGITS[0])
            for last in range(least, bisect_right(places, place + _CARD_DIGITS[-1])):
                number = digits[place : places[last]]
                if _CARD.fullmatch(number) and _has_check_digit(number):
                    yield start, groups[last - 1][1]


def _has_check_digit(number: str) -> bool:
    """Check the last digit by Luhn's formula (ISO/IEC 7812-1, annex B)."""
    counted = number[-1::-2] + number[-2::-2].translate(_DOUBLED)
    return sum(map(int, counted)) % 10 == 0


def _ibans(text: str, within: Span, _limit: TimeLimit) -> Iterator[Span]:
    """Check the digits of an IBAN, whose country gives its length; more words may follow it."""
    start, end = within
    plain = text[start:end].upper()
    length = _IBAN_LENGTHS.get(plain[:2], 0)
    while len(plain) < length and (part := _IBAN_PART.match(text, end)):
        plain += part[1].upper()
        end = part.end()
    beside = text[start - 1 : start] + text[end : end + 1]
    if len(plain) != length or _ASCII_WORD.search(beside):
        return
    number = "".join(str(int(each, 36)) for each in plain[4:] + plain[:4])
    if int(number) % _IBAN_MODULUS == 1:
        yield start, end


def _dotted_addresses(text: str, within: Span, limit: TimeLimit) -> Iterator[Span]:
    for match in limit.each(_IPV4.finditer(text, *within)):
        if _is_ip_address(match[1]):
            yield match.span(1)


def _colon_addresses(text: str, within: Span, _limit: TimeLimit) -> Iterator[Span]:
    """Yield the address between colons; two colons at an end may be the address's own."""
    start, end = within
    found = text[start:end]
    before, after = len(found) - len(found.lstrip(":")), len(found) - len(found.rstrip(":"))
    for first, last in itertools.product((max(0, before - 2), before), (max(0, after - 2), after)):
        if _is_ip_address(found[first : len(found) - last]):
            yield start + first, end - last
            return


def _is_ip_address(text: str) -> bool:
    if len(text) > _MAX_IP_CHARACTERS:
        return False
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _urls(text: str, within: Span, _limit: TimeLimit) -> Iterator[Span]:
    start, end = within
    yield start, start + len(text[start:end].rstrip(_END_OF_SENTENCE))


def _whole(_text: str, within: Span, _limit: TimeLimit) -> Iterator[Span]:
    yield within


def _matches(pattern: re.Pattern[str], text: str, within: Span, limit: TimeLimit) -> Iterator[Span]:
    for match in limit.each(pattern.finditer(text, *within)):
        yield match.span()


_LETTERS: Final = r"\pL\pM"
_EMAIL: Final = (
    rf"[{_LETTERS}\pN._%+-]+@[{_LETTERS}\pN-]+(?:\.[{_LETTERS}\pN-]+)*"
    rf"\.(?:(?i:xn--[a-z0-9-]+)|[{_LETTERS}]{{2,}})"
)
_RULES: Final[Mapping[Format, tuple[_Rule, ...]]] = MappingProxyType(
    {
        "credit_card": (_Rule(rf"[0-9](?:{_RE2_SEPARATORS}[0-9]){{12,}}", _cards),),
        "email": (_Rule(_EMAIL, _whole),),
        "iban": (_Rule("[A-Za-z]{2}[0-9]{2}", _ibans),),
        "ip_address": (
            _Rule(r"[0-9]+(?:\.[0-9]+){3,}", _dotted_addresses),
            _Rule("[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*[0-9A-Fa-f:]", _colon_addresses),
        ),
        "phone": (_Rule(rf"\+[0-9](?:{_RE2_SEPARATORS}[0-9]){{7,}}", partial(_matches, _PHONE)),),
        "url": (_Rule(r"(?i)\b(?:https?://|www\.)[^\s<>\"]+", _urls),),
        "us_ssn": (_Rule(rf"[0-9]+(?:{_RE2_DASH}[0-9]+){{2,}}", partial(_matches, _SSN)),),
    }
)
_compiled = {
    name: [(re2.compile(rule.pattern), rule.spans) for rule in rules]
    for name, rules in _RULES.items()
}
