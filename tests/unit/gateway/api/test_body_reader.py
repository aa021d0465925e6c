"""Bodies that cannot be read, and bodies that are small as text and large as values."""

import contextlib
import gzip
import json
import time
import tracemalloc
from collections.abc import Callable

import pytest

from sluicegate.gateway.api.body_reader import BodyReader
from sluicegate.gateway.api.decode_errors import explain_decode_error
from sluicegate.gateway.api.json_bounds import check_json_size
from sluicegate.gateway.api.native_routes import ROUTE_OF
from sluicegate.gateway.api.request_state import RequestState
from sluicegate.gateway.config.document import Document
from sluicegate.gateway.errors import GatewayError, InvalidRequest, PayloadTooLarge
from sluicegate.gateway.runtime.runtime import compile_runtime
from sluicegate.gateway.types import RequestId
from sluicegate.wire.protocol import Task
from tests.support.inference_scene import Models

pytestmark = pytest.mark.anyio
_SIZE = 8 * 1024 * 1024
_MAX_VALUES = Document().request.max_values


def exchange(task: Task) -> RequestState:
    runtime = compile_runtime(Document(), 1)
    state = RequestState(RequestId("req_1"), route=ROUTE_OF[task], runtime=runtime, started=0.0)
    state.parameters = ("m",) * len(state.route.names)
    return state


def refusal(task: Task, raw: bytes) -> str:
    with pytest.raises(InvalidRequest) as refused:
        BodyReader(Models()).read(exchange(task), raw)
    return refused.value.detail


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        (rb'{"model":"m","input":"\ud800"}', "`input` has half of a surrogate pair"),
        (rb'{"model":"m","input":["a","\ud800b"]}', "`input[1]` has half of a surrogate pair"),
        (rb'{"model":"m","input":["a","b\udc00"]}', "`input[1]` has half of a surrogate pair"),
        (rb'{"model":"m","input":["a",["b","\ud83d\ud83d"]]}', "`input[1][1]` has half"),
        (rb'{"model":"\ud800","input":"a"}', "`model` has half of a surrogate pair"),
        (rb'{"model":"m","input":"a","\ud800":1}', "`the body` has a name that has half"),
        (b'{"model":"m","input":["a","\xff"]}', "`input[1]` has bytes that are not UTF-8"),
        (b'{"model":"m","input":1e400}', "`input` is a number beyond"),
        (b'{"model":"m","input":"a","top_k":1%b}' % (b"0" * 40), "`top_k` is a number beyond"),
        (b'{"model":"m","input":"a","top_k":1%b}' % (b"0" * 5000), "`top_k` is a number beyond"),
        (b'{"model":"m","input":"a","top_k":NaN}', "`top_k` is `NaN`, which JSON does not have"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_field(raw: bytes, named: str) -> None:
    assert named in refusal(Task.CLASSIFY, raw)


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        (b'{"inputs":[1,{"a":{"b":[0,1e999]}}]}', "`inputs[1].a.b[1]` is a number beyond"),
        (b'{"inputs":[18446744073709551616]}', "`inputs[0]` is a number beyond"),
        (b'{"inputs":[-9223372036854775809]}', "`inputs[0]` is a number beyond"),
        (b'{"inputs":[1],"parameters":{"x":-Infinity}}', "`parameters.x` is `-Infinity`"),
        (rb'{"inputs":[1],"parameters":{"x":"\udfff"}}', "`parameters.x` has half"),
        (rb'{"inputs":[{"a":1,"\udfff":2}]}', "`inputs[0]` has a name that has half"),
    ],
)
def test_what_cannot_be_read_is_named_however_deep(raw: bytes, named: str) -> None:
    assert named in refusal(Task.INFER, raw)


@pytest.mark.parametrize("number", [b"18446744073709551615", b"-9223372036854775808", b"1e-400"])
def test_the_largest_numbers_are_taken(number: bytes) -> None:
    reading = BodyReader(Models()).read(exchange(Task.INFER), b'{"inputs":[%b]}' % number)

    assert len(reading.request.items) == 1


def test_a_compressed_body_is_named() -> None:
    body = gzip.compress(b'{"model":"m","input":"a"}')

    assert "`Content-Encoding`" in refusal(Task.CLASSIFY, body)


def test_what_does_not_fit_is_named_by_the_decoder() -> None:
    assert "`$.top_k`" in refusal(Task.CLASSIFY, b'{"model":"m","input":"a","top_k":0}')
    assert "not valid JSON" in refusal(Task.CLASSIFY, b'{"model":"m","input"}')
    assert refusal(Task.CLASSIFY, b" ") == "The body is empty; send JSON."
    assert refusal(Task.CLASSIFY, b'{"model":"m","input":"a","function":"relu"}').endswith(
        "Invalid enum value 'relu' - at `$.function`. GET /docs shows which there are."
    )
    assert refusal(Task.CLASSIFY, b'{"modle":"m","input":"a"}').endswith(
        "Object contains unknown field `modle`. Did you mean `model`?"
    )
    assert "`top_k` is `NaN`" in refusal(
        Task.CLASSIFY, b'\xef\xbb\xbf{"model":"m","input":"a","top_k":NaN}'
    )
    assert explain_decode_error(b" " * 300_000 + rb'"\ud800"') is None


def values(count: int) -> list[bytes]:
    """Return bodies of exactly so many values each, the outermost among them."""
    return [
        b"[" + b",".join([b"1"] * (count - 1)) + b"]",
        b"[" + b",".join([b"[]"] * (count - 1)) + b"]",
        b"[" + b",".join([b'"a,[{"'] * (count - 1)) + b"]",
        b"[" + b",".join([rb'"\\\"],["'] * (count - 1)) + b"]",
        b"{" + b",".join([b'"\\",":"{"'] * (count - 1)) + b"}",
        b"[" * (count - 1) + b"1" + b"]" * (count - 1),
    ]


@pytest.mark.parametrize("number", range(6))
def test_values_are_counted_and_not_what_texts_say(number: int) -> None:
    check_json_size(values(1000)[number], max_values=1000)

    with pytest.raises(PayloadTooLarge, match="more than 1000 JSON values"):
        check_json_size(values(1002)[number], max_values=1000)


@pytest.mark.parametrize("offset", range(16))
def test_values_are_counted_wherever_a_body_is_divided(offset: int) -> None:
    raw = b'["' + b"x" * (128 * 1024 - offset) + rb'\\\"\\","a,\"[{' + b'",1]'

    check_json_size(raw, max_values=4)

    with pytest.raises(PayloadTooLarge, match="more than 3 JSON values"):
        check_json_size(raw, max_values=3)


def test_a_text_may_have_as_many_commas_and_digits_as_it_likes() -> None:
    text = json.dumps({"input": "1,2[{" * 100_000 + "7" * 100_000 + '\\"' * 1000}).encode()

    check_json_size(text, max_values=1000)


@pytest.mark.parametrize("number", [b"5e-324", b"1.7E+308", b"0." + b"123" * 8, b"7" * 20])
def test_many_numbers_that_take_long_are_refused(number: bytes) -> None:
    few = b'{"inputs":["%b",%b]}' % (number * 9000, b",".join([number] * 2000))

    check_json_size(few, max_values=9000)
    with pytest.raises(InvalidRequest, match="round them to 17 digits"):
        check_json_size(few[:-2] + b",%b]}" % number, max_values=9000)


def test_numbers_as_programs_write_them_are_taken_in_any_number() -> None:
    numbers = [-0.12345678901234567, 1.5e-99, 123456789.123, 2**63, 1e22] * 10_000

    check_json_size(json.dumps(numbers).encode(), max_values=60_000)


_HOSTILE: dict[str, Callable[[], bytes]] = {
    "empty lists": lambda: b'{"inputs":[' + b"[]," * (_SIZE // 3) + b"[]]}",
    "as many lists as allowed": lambda: (
        b'{"inputs":[' + b"[]," * (_MAX_VALUES - 4) + b'"' + b"x" * (_SIZE - 300_000) + b'"]}'
    ),
    "names": lambda: b'{"inputs":[{' + b",".join([b'"":1'] * (_SIZE // 5)) + b"}]}",
    "strings": lambda: b'{"inputs":[' + b",".join([b'""'] * (_SIZE // 3)) + b"]}",
    "escaped quotes": lambda: b'{"inputs":["' + b'\\",' * (_SIZE // 3) + b'"]}',
    "escapes": lambda: b'{"inputs":["' + b"\\\\" * (_SIZE // 2) + b'"]}',
    "long numbers": lambda: b'{"inputs":[' + b",".join([b"9" * 4200] * (_SIZE // 4201)) + b"]}",
    "numbers near a half": lambda: (
        b'{"inputs":[' + b",".join([b"9007199254740993." + b"0" * 110 + b"1"] * 60_000) + b"]}"
    ),
    "subnormal numbers": lambda: (
        b'{"inputs":[[' + b",".join([b"2.2250738585072011e-308"] * 60_000) + b"]]}"
    ),
    "lists in an item": lambda: (
        b'{"inputs":[[' + b"[]," * 65_000 + b'[]],"' + b"x" * (_SIZE - 300_000) + b'"]}'
    ),
    "unclosed": lambda: b'{"inputs":[' + b"[" * _SIZE,
}


def time_of(run: Callable[[], object]) -> float:
    """Return the processor time of this thread that `run` takes, refused or not."""
    started = time.thread_time()
    with contextlib.suppress(GatewayError):
        run()
    return time.thread_time() - started


@pytest.mark.parametrize("kind", sorted(_HOSTILE))
def test_a_hostile_body_costs_as_much_as_a_few_looks_at_its_bytes(kind: str) -> None:
    """In units of such looks (8 ms of 8 MiB), so that a slow machine makes no difference."""
    raw = _HOSTILE[kind]()
    reader = BodyReader(Models())

    look = min(time_of(lambda: [raw.count(byte) for byte in (b",", b"[", b"{")]) for _ in range(3))
    readings = (time_of(lambda: reader.read(exchange(Task.INFER), raw)) for _ in range(3))

    assert any(reading < 40 * look for reading in readings)  # without the bounds: 80 to 100


@pytest.mark.parametrize("kind", sorted(_HOSTILE))
def test_a_hostile_body_takes_little_memory(kind: str) -> None:
    raw = _HOSTILE[kind]()

    tracemalloc.start()
    with contextlib.suppress(GatewayError):
        BodyReader(Models()).read(exchange(Task.INFER), raw)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 4 * _SIZE


async def test_a_large_body_is_read_in_a_thread_as_a_small_one_is() -> None:
    raw = b'{"inputs":["' + b"x" * _SIZE + b'",1]}'

    large = await BodyReader(Models()).read_large(exchange(Task.INFER), raw)

    assert large == BodyReader(Models()).read(exchange(Task.INFER), raw)
    with pytest.raises(InvalidRequest, match="not valid JSON"):
        await BodyReader(Models()).read_large(exchange(Task.INFER), raw[:-1])
