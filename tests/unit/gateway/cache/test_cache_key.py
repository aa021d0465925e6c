"""Cache keys: equal requests meet, and nothing else ever does."""

from collections.abc import Sequence
from typing import Any, TypedDict

import pytest
from hypothesis import given, strategies as st

from backends.protocol import Task
from gateway.cache import key as module
from gateway.cache.key import CacheKey, KeyMaker

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


def test_equal_requests_have_equal_keys_in_any_process() -> None:
    assert KeyMaker(secret=SECRET).keys(**request()) == KeyMaker(secret=SECRET).keys(**request())


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

    (key,) = maker.keys(**request())
    (other,) = maker.keys(**request(**changes))

    assert key.address != other.address
    assert key.tag != other.tag


def test_every_field_of_a_request_is_among_those_mutated() -> None:
    mutated = {name for changes in MUTATIONS for name in changes}

    assert mutated == set(request())


def test_a_new_key_version_makes_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = KeyMaker(secret=SECRET).keys(**request())

    monkeypatch.setattr(module, "KEY_VERSION", module.KEY_VERSION + 1)

    assert KeyMaker(secret=SECRET).keys(**request()) != before


@given(
    st.lists(st.text(max_size=3), min_size=4, max_size=4),
    st.lists(st.text(max_size=3), min_size=4, max_size=4),
)
def test_moving_text_between_fields_makes_another_key(a: list[str], b: list[str]) -> None:
    maker = KeyMaker(secret=SECRET)
    names = ("scope", "model", "revision", "algorithm")

    first = maker.keys(**request(**dict(zip(names, a, strict=True))))
    second = maker.keys(**request(**dict(zip(names, b, strict=True))))

    assert (first == second) == (a == b)


def test_the_border_between_parameters_and_item_is_part_of_the_key() -> None:
    maker = KeyMaker(secret=SECRET)

    first = maker.keys(**request(parameters=b"ab", items=[b"c"]))
    second = maker.keys(**request(parameters=b"a", items=[b"bc"]))

    assert first[0].address != second[0].address


def test_items_of_one_request_have_the_keys_they_have_alone() -> None:
    maker = KeyMaker(secret=SECRET)
    items = [b"one", b"two", b"one", b"x" * 100_000]

    together = maker.keys(**request(items=items))
    alone = [maker.keys(**request(items=[item]))[0] for item in items]

    assert together == alone
    assert together[0] == together[2]
    assert len(set(together)) == 3


def test_tags_need_the_secret_and_addresses_do_not() -> None:
    (key,) = KeyMaker(secret=SECRET).keys(**request())
    (other,) = KeyMaker(secret=b"another").keys(**request())

    assert key.address == other.address
    assert key.tag != other.tag


def test_parameters_too_long_to_remember_make_the_same_key_each_time() -> None:
    maker = KeyMaker(secret=SECRET)
    long = request(parameters=b"q" * 5_000)

    assert maker.keys(**long) == maker.keys(**long)


def test_what_is_remembered_is_bounded() -> None:
    maker = KeyMaker(secret=SECRET)

    for number in range(3_000):
        maker.keys(**request(parameters=b"%d" % number))

    assert len(maker._prefixes) <= 1024


def test_a_key_is_16_bytes_of_address_and_16_of_tag() -> None:
    (key,) = KeyMaker(secret=SECRET).keys(**request())

    assert isinstance(key, CacheKey)
    assert (len(key.address), len(key.tag)) == (16, 16)
