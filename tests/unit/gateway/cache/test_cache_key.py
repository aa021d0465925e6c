"""Cache keys: equal requests meet, and nothing else ever does."""

from collections.abc import Sequence
from typing import Any, TypedDict

import pytest
from hypothesis import given, strategies as st

from sluicegate.gateway.cache import key as module
from sluicegate.gateway.cache.key import CacheKey, KeyMaker
from sluicegate.wire.protocol import ModelInfo, Task

SECRET = b"a secret of some length"


class Request(TypedDict):
    scope: str
    epoch: str
    revision: str
    profile: str
    algorithm: str
    algorithm_version: int
    model: str
    task: Task
    parameters: bytes
    items: Sequence[bytes]


def request(**changes: Any) -> Request:
    base: Request = {
        "scope": "tenant:acme",
        "epoch": "0.0",
        "revision": "9f2c51d0a7be",
        "profile": "fp32",
        "algorithm": "classify",
        "algorithm_version": 1,
        "model": "sentiment",
        "task": Task.CLASSIFY,
        "parameters": b"\x82\xa5top_k\x01",
        "items": [b"a gorgeous, witty, seductive movie"],
    }
    return {**base, **changes}  # type: ignore[typeddict-item]  # names are checked by the key maker


def made(maker: KeyMaker, *, items: Sequence[bytes], **shared: Any) -> list[CacheKey]:
    """Return the keys of a request."""
    names = ("revision", "profile", "algorithm", "algorithm_version")
    info = ModelInfo(
        name=shared["model"], tasks=[], max_tokens=0, **{name: shared.pop(name) for name in names}
    )
    return maker.prefix(info=info, **shared).keys(items)


def test_equal_requests_have_equal_keys_in_any_process() -> None:
    assert made(KeyMaker(secret=SECRET), **request()) == made(KeyMaker(secret=SECRET), **request())


MUTATIONS: list[dict[str, Any]] = [
    {"scope": "tenant:globex"},
    {"scope": "shared"},
    {"epoch": "1.0"},
    {"revision": "9f2c51d0a7bf"},
    {"profile": "fp16"},
    {"algorithm": "cascade"},
    {"algorithm_version": 2},
    {"model": "sentiments"},
    {"task": Task.EMBED},
    {"parameters": b"\x82\xa5top_k\x02"},
    {"parameters": b""},
    {"items": [b"a gorgeous, witty, seductive movie "]},
    {"items": [b"A gorgeous, witty, seductive movie"]},
    {"items": [b""]},
]


@pytest.mark.parametrize("changes", MUTATIONS)
def test_any_other_field_makes_another_address_and_another_tag(changes: dict[str, Any]) -> None:
    maker = KeyMaker(secret=SECRET)

    (key,) = made(maker, **request())
    (other,) = made(maker, **request(**changes))

    assert key.address != other.address
    assert key.tag != other.tag


def test_every_field_of_a_request_is_among_those_mutated() -> None:
    mutated = {name for changes in MUTATIONS for name in changes}

    assert mutated == set(request())


def test_a_new_key_version_makes_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = made(KeyMaker(secret=SECRET), **request())

    monkeypatch.setattr(module, "KEY_VERSION", module.KEY_VERSION + 1)

    assert made(KeyMaker(secret=SECRET), **request()) != before


# Few characters: texts that differ only in where a field ends are frequent.
FIELDS = st.lists(st.text(alphabet="a\0é", max_size=3), min_size=4, max_size=4)


@given(FIELDS, FIELDS)
def test_moving_text_between_fields_makes_another_key(a: list[str], b: list[str]) -> None:
    maker = KeyMaker(secret=SECRET)
    names = ("scope", "model", "revision", "algorithm")

    first = made(maker, **request(**dict(zip(names, a, strict=True))))
    second = made(maker, **request(**dict(zip(names, b, strict=True))))

    assert (first == second) == (a == b)


def test_the_border_between_parameters_and_item_is_part_of_the_key() -> None:
    maker = KeyMaker(secret=SECRET)

    first = made(maker, **request(parameters=b"ab", items=[b"c"]))
    second = made(maker, **request(parameters=b"a", items=[b"bc"]))

    assert first[0].address != second[0].address


def test_items_of_one_request_have_the_keys_they_have_alone() -> None:
    maker = KeyMaker(secret=SECRET)
    items = [b"one", b"two", b"one", b"x" * 100_000]

    together = made(maker, **request(items=items))
    alone = [made(maker, **request(items=[item]))[0] for item in items]

    assert together == alone
    assert together[0] == together[2]
    assert len(set(together)) == 3


def test_tags_need_the_secret_and_addresses_do_not() -> None:
    (key,) = made(KeyMaker(secret=SECRET), **request())
    (other,) = made(KeyMaker(secret=b"another"), **request())

    assert key.address == other.address
    assert key.tag != other.tag


def test_a_key_is_16_bytes_of_address_and_16_of_tag() -> None:
    (key,) = made(KeyMaker(secret=SECRET), **request())

    assert isinstance(key, CacheKey)
    assert (len(key.address), len(key.tag)) == (16, 16)
