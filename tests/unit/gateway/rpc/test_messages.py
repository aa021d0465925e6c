"""Messages are those of the published protocol, in a pool of their own, and bounded."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pool
from typing_extensions import override

from sluicegate.gateway import rpc
from sluicegate.gateway.errors import InvalidRequest, PayloadTooLarge
from sluicegate.gateway.rpc.infer_route import rpc_dialect
from sluicegate.gateway.rpc.messages import MessageTable, check_fields, decode_message
from sluicegate.gateway.rpc.metadata_methods import METADATA_METHODS
from tests.support.rpc import infer, message, serialized

_PROTO = Path(str(rpc.__path__[0]), "inference.proto").read_text()
_FIELD = re.compile(r"^ +(?:repeated )?([\w.]+|map<\w+, \w+>) (\w+) = (\d+);$", re.MULTILINE)


def fields(descriptor: Any) -> Iterator[tuple[str, int]]:
    """Yield names and numbers of all fields of a message, and of those within."""
    for field in descriptor.fields:
        yield field.name, field.number
    for inner in descriptor.nested_types:
        if not inner.GetOptions().map_entry:
            yield from fields(inner)


def test_what_is_compiled_is_what_is_defined() -> None:
    types = MessageTable()
    names = re.findall(r"^message (\w+)", _PROTO, re.MULTILINE)

    compiled = sorted(one for name in names for one in fields(types[name].DESCRIPTOR))

    assert compiled == sorted((name, int(number)) for _, name, number in _FIELD.findall(_PROTO))
    methods = re.findall(r"rpc (\w+)\(", _PROTO)
    assert set(methods) == {*METADATA_METHODS, "ModelInfer", "ModelStreamInfer"}


def test_numbers_are_those_of_the_published_protocol() -> None:
    """Those that requests and answers of inference need; clients were compared with the rest."""
    types = MessageTable()

    assert dict(fields(types["InferParameter"].DESCRIPTOR))["uint64_param"] == 5
    assert dict(fields(types["InferTensorContents"].DESCRIPTOR))["bytes_contents"] == 8
    assert types["ModelInferRequest"].DESCRIPTOR.fields_by_name["raw_input_contents"].number == 7
    assert types["ModelInferResponse"].DESCRIPTOR.fields_by_name["raw_output_contents"].number == 6
    assert types["ModelConfig"].DESCRIPTOR.fields_by_name["response_cache"].number == 24


def test_the_default_pool_is_left_to_clients_of_the_protocol() -> None:
    MessageTable()

    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("inference.ModelInferRequest")


def test_what_is_no_message_is_refused() -> None:
    kind = MessageTable()["ModelInferRequest"]

    with pytest.raises(InvalidRequest, match="no `ModelInferRequest`"):
        decode_message(kind, b"\xff")


def test_fields_of_a_request_are_counted_before_it_is_decoded() -> None:
    request = infer("m", *"abcdefgh", raw=False)
    request.parameters["x"].bool_param = True
    raw = serialized(request)

    check_fields(raw, most=len(raw) - 1)
    with pytest.raises(PayloadTooLarge, match="more than 15 fields"):
        check_fields(raw, most=15)


@pytest.mark.parametrize(
    "raw",
    [
        b"\x2a\x00" * 100,
        b"\x32\x00" * 100,
        b"\x3a\x00" * 100,
        b"\x22\x00" * 100,
        b"\x2a\x7f" + b"\x1a\x7d" + b"\x01" * 125,
        b"\x2a\x7e\x2a\x7c" + b"\x42\x00" * 62,
        b"\x08\x01" * 100,
        b"\x0b" * 200,
    ],
    ids=["inputs", "outputs", "raws", "parameters", "shape", "elements", "numbers", "groups"],
)
def test_small_fields_in_great_number_are_refused(raw: bytes) -> None:
    with pytest.raises(PayloadTooLarge):
        check_fields(raw, most=60)


@pytest.mark.parametrize("end", [2, 3, 10, 40])
def test_a_message_that_ends_early_is_left_to_the_decoder(end: int) -> None:
    raw = serialized(message("ModelInferRequest", id="x" * 300))

    check_fields(raw[:end], most=1)


class CountedBytes(bytes):
    """Counts how many of its bytes were read one by one."""

    reads = 0

    @override
    def __getitem__(self, at: Any) -> Any:
        self.reads += 1
        return super().__getitem__(at)


def test_a_number_that_has_no_end_is_left_to_the_decoder() -> None:
    raw = CountedBytes(b"\xff" * 10_000)

    check_fields(raw, most=1)

    assert raw.reads == 10
    with pytest.raises(InvalidRequest, match="no `ModelInferRequest`"):
        decode_message(MessageTable()["ModelInferRequest"], bytes(raw))


def test_lines_of_batches_ask_no_route_whose_bodies_are_messages() -> None:
    routes = rpc_dialect().routes

    assert [route.takes_json for route in routes] == [False]
