"""Finds known formats in texts: card numbers, IBANs, e-mail and IP addresses and others.

A pattern proposes a span, and a check of its digits or parts decides. The patterns are RE2's, which
take time in proportion to the text.
"""

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import re2

from sluicegate.backends.pipelines.windows import Span
from sluicegate.wire.guards import Format

_SEPARATORS: Final = re.compile(r"[ .()-]")
_IBAN_MODULUS: Final = 97
_END_OF_SENTENCE: Final = ".,;:!?)]}'\""
# By the beginning of a number, the digits that follow (ISO/IEC 7812; the card schemes' own pages).
_CARDS: Final = (
    ("4", (12, 15, 18)),  # Visa
    ("5[1-5]", (14,)),  # Mastercard
    ("2(?:2(?:2[1-9]|[3-9][0-9])|[3-6][0-9]{2}|7[01][0-9]|720)", (12,)),  # Mastercard
    ("3[47]", (13,)),  # American Express
    ("3(?:0[0-5]|[689][0-9])", (11,)),  # Diners Club
    ("6011|64[4-9][0-9]|65[0-9]{2}|35(?:2[89]|[3-8][0-9])", (12,)),  # Discover, JCB
    ("62", (14, 15, 16, 17)),  # UnionPay
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
    """Holds patterns, and what of their match is found: its first so many characters, or nothing.

    Several patterns each find their own spans, so that a longer match hides no shorter one.
    """

    patterns: tuple[str, ...]
    part: Callable[[str], int] = len


def find_format(text: str, name: Format) -> Iterator[Span]:
    """Yield the spans of a text that have a format."""
    patterns, part = _compiled[name]
    for pattern in patterns:
        for match in pattern.finditer(text):
            start, end = match.span()
            if length := part(text[start:end]):
                yield start, start + length


def _card(text: str) -> int:
    """Check the last digit by Luhn's formula (ISO/IEC 7812-1, annex B)."""
    digits = [int(each) for each in _SEPARATORS.sub("", text)]
    total = sum(digits[-1::-2]) + sum(sum(divmod(2 * digit, 10)) for digit in digits[-2::-2])
    return 0 if total % 10 else len(text)


def _iban(text: str) -> int:
    """Check the digits of an IBAN, whose country gives its length; more words may follow it."""
    most, end, plain = _IBAN_LENGTHS.get(text[:2].upper(), 0), 0, ""
    while len(plain) < most and end < len(text):
        plain += _SEPARATORS.sub("", text[end]).upper()
        end += 1
    is_cut = end < len(text) and text[end].isalnum()
    if not most or len(plain) < most or is_cut:
        return 0
    number = "".join(str(int(each, 36)) for each in plain[4:] + plain[:4])
    return end if int(number) % _IBAN_MODULUS == 1 else 0


def _ip_address(text: str) -> int:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return 0
    return len(text)


def _ssn(text: str) -> int:
    area, group, serial = text.split("-")
    is_given = area not in ("000", "666") and area[0] != "9" and group != "00" and serial != "0000"
    return len(text) if is_given else 0


def _url(text: str) -> int:
    return len(text.rstrip(_END_OF_SENTENCE))


def _spaced(beginning: str, digits: int) -> str:
    """Return the pattern of a number whose digits may be separated."""
    return rf"\b(?:{beginning})(?:[ .-]?[0-9]){{{digits}}}\b"


_RULES: Final[Mapping[Format, _Rule]] = MappingProxyType(
    {
        "credit_card": _Rule(
            tuple(_spaced(start, rest) for start, lengths in _CARDS for rest in lengths), _card
        ),
        "email": _Rule((r"[\pL\pN._%+-]+@[\pL\pN-]+(?:\.[\pL\pN-]+)*\.\pL{2,}",)),
        "iban": _Rule((r"(?i)\b[A-Z]{2}[0-9]{2}(?:[ .-]?[A-Z0-9]){11,30}",), _iban),
        "ip_address": _Rule(
            (
                r"\b[0-9]{1,3}(?:\.[0-9]{1,3}){3}\b",
                r"[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*[0-9A-Fa-f:]",
            ),
            _ip_address,
        ),
        "phone": _Rule((r"\+[0-9](?:[ ().-]{0,2}[0-9]){7,14}\b",)),
        "url": _Rule((r"(?i)\b(?:https?://|www\.)[^\s<>\"]+",), _url),
        "us_ssn": _Rule((r"\b[0-9]{3}-[0-9]{2}-[0-9]{4}\b",), _ssn),
    }
)
_compiled = {
    name: (tuple(map(re2.compile, rule.patterns)), rule.part) for name, rule in _RULES.items()
}
