"""Bodies in which nothing is written as null, that begin with a byte-order mark, or misspell."""

from typing import Any, Literal

import msgspec
import pytest

from sluicegate.gateway.http.body_decoding import BodyDecoder, UnknownField


class Inner(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    text: str
    weight: float = 1.0


class Outer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: str
    input: str | list[str | Inner] = "none"
    shape: tuple[int, ...] = (1,)
    by_name: dict[str, Inner] = {}
    free: list[Any] = []
    more: dict[str, Any] = {}
    kind: Literal["a", "b"] = "a"
    most: int | None = None


decode = BodyDecoder(Outer)


@pytest.mark.parametrize("name", [n for n in Outer.__struct_fields__ if n != "model"])
def test_a_null_stands_for_a_field_that_is_left_out(name: str) -> None:
    assert decode(b'{"model":"m","%b":null}' % name.encode()) == Outer(model="m")


def test_nulls_are_found_in_lists_and_mappings_of_objects() -> None:
    found = decode(
        b'{"model":"m","input":["x",{"text":"a","weight":null}],"kind":null,'
        b'"by_name":{"k":{"weight":null,"text":"b"}}}'
    )

    assert found == Outer(model="m", input=["x", Inner(text="a")], by_name={"k": Inner(text="b")})


def test_a_null_in_a_free_value_stays() -> None:
    found = decode(b'{"model":"m","free":[null,{"a":null}],"more":{"b":null},"kind":null}')

    assert found.free == [None, {"a": None}]
    assert found.more == {"b": None}


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b'{"model":null}', "`$.model`"),
        (b'{"model":null,"kind":null}', "`$.model`"),
        (b'{"model":"m","input":[null],"kind":null}', "`$.input[0]`"),
        (b'{"model":"m","input":[{"text":null}]}', "`$.input[0].text`"),
        (b'{"kind":null}', "`model`"),
        (b"null", "got `null`"),
        (b"[null]", "got `array`"),
    ],
)
def test_a_null_that_means_nothing_is_named(body: bytes, named: str) -> None:
    with pytest.raises(msgspec.ValidationError) as refused:
        decode(body)

    assert named in str(refused.value)


def test_a_byte_order_mark_is_passed_over() -> None:
    mark = b"\xef\xbb\xbf"

    assert decode(mark + b'{"model":"m"}') == Outer(model="m")
    assert decode(mark + b'{"model":"m","kind":null}') == Outer(model="m")
    with pytest.raises(msgspec.DecodeError, match="malformed"):
        decode(mark * 2 + b'{"model":"m"}')


@pytest.mark.parametrize(
    ("body", "known"),
    [
        (b'{"modle":"m"}', "model"),
        (b'{"model":"m","input":[{"txet":"a"}]}', "text"),
        (b'{"model":"m","by_name":{"k":{"wieght":2}}}', "weight"),
        (b'{"model":"m","knd":null}', "kind"),
        (b'{"model":"m","input":[{"model":"a"}]}', None),
        (b'{"model":"m","%b":1}' % (b"model" * 1000), None),
    ],
)
def test_a_misspelt_field_comes_with_the_one_that_was_meant(body: bytes, known: str | None) -> None:
    with pytest.raises(UnknownField) as refused:
        decode(body)

    assert refused.value.known == known
