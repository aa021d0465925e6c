"""Cache keys: equal requests meet, and nothing else ever does."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from sluicegate.gateway.cache import key as module
from sluicegate.gateway.cache.key import CacheKey, KeyMaker, KeyParts
from sluicegate.wire.protocol import Task, Variant
from tests.support.caching import KEY_PARTS

MAKER = KeyMaker(secret=b"a secret of some length")
ITEM = b"a gorgeous, witty, seductive movie"


def made(
    *, maker: KeyMaker = MAKER, items: Sequence[bytes] = (ITEM,), **parts: Any
) -> list[CacheKey]:
    """Return the keys of items of a request; `parts` may name fields of the variant, too."""
    facts = {name: parts.pop(name) for name in Variant._fields if name in parts}
    changed = msgspec.structs.replace(KEY_PARTS, variant=KEY_PARTS.variant._replace(**facts))
    changed = msgspec.structs.replace(changed, **parts)
    return maker.prefix(changed).keys(items)


def other(value: Any) -> Any:
    """Return another value of the same type."""
    if isinstance(value, Task):
        return Task.EMBED
    return value + (b"x" if isinstance(value, bytes) else "x" if isinstance(value, str) else 1)


def test_results_that_were_stored_earlier_keep_their_keys() -> None:
    (key,) = made()

    assert key.address.hex() == "73322271b6b8cf403a27eba472c658a0"
    assert key.tag.hex() == "8ff2afe5f8aceba4b6d8f96333b76f79"


OTHERS: list[dict[str, Any]] = [
    *(
        {name: other(getattr(KEY_PARTS, name))}
        for name in KeyParts.__struct_fields__
        if name != "variant"
    ),
    *({name: other(getattr(KEY_PARTS.variant, name))} for name in Variant._fields),
    {"scope": "shared"},
    {"parameters": b""},
    *({"items": [item]} for item in (ITEM + b" ", ITEM.upper(), b"")),
]


@pytest.mark.parametrize("changes", OTHERS)
def test_any_other_part_makes_another_address_and_another_tag(changes: dict[str, Any]) -> None:
    (key,), (changed,) = made(), made(**changes)

    assert key.address != changed.address
    assert key.tag != changed.tag


class WiderParts(KeyParts, frozen=True, kw_only=True):
    """Parts to which two were added."""

    added_text: str
    added_number: int


def test_an_added_part_is_in_the_key_unless_it_is_empty() -> None:
    def wider(**added: Any) -> CacheKey:
        (key,) = MAKER.prefix(WiderParts(**msgspec.structs.asdict(KEY_PARTS), **added)).keys([ITEM])
        return key

    found = [wider(added_text=text, added_number=number) for text in ("", "1") for number in (0, 1)]

    assert [found[0]] == made()
    assert len(set(found)) == len(found)


def test_a_new_key_version_makes_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = made()

    monkeypatch.setattr(module, "KEY_VERSION", module.KEY_VERSION + 1)

    assert made() != before


# Few characters: texts that differ only in where a field ends are frequent.
FIELDS = st.lists(st.text(alphabet="a\0é", max_size=3), min_size=4, max_size=4)


@given(FIELDS, FIELDS)
def test_moving_text_between_fields_makes_another_key(a: list[str], b: list[str]) -> None:
    names = ("scope", "model", "revision", "algorithm")
    changes: list[dict[str, Any]] = [dict(zip(names, texts, strict=True)) for texts in (a, b)]

    first, second = (made(**each) for each in changes)

    assert (first == second) == (a == b)


def test_the_border_between_parameters_and_item_is_part_of_the_key() -> None:
    first = made(parameters=b"ab", items=[b"c"])
    second = made(parameters=b"a", items=[b"bc"])

    assert first[0].address != second[0].address


def test_items_of_one_request_have_the_keys_they_have_alone() -> None:
    items = [b"one", b"two", b"one", b"x" * 100_000]

    together = made(items=items)
    alone = [made(items=[item])[0] for item in items]

    assert together == alone
    assert together[0] == together[2]
    assert len(set(together)) == 3


def test_tags_need_the_secret_and_addresses_do_not() -> None:
    (key,) = made()
    (foreign,) = made(maker=KeyMaker(secret=b"another"))

    assert key.address == foreign.address
    assert key.tag != foreign.tag


def test_a_key_is_16_bytes_of_address_and_16_of_tag() -> None:
    (key,) = made()

    assert isinstance(key, CacheKey)
    assert (len(key.address), len(key.tag)) == (16, 16)
