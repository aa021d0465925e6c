"""Steps read a body ahead at a cost that grows with its length alone, and within its bounds."""

import asyncio
from typing import Any

import pytest
from typing_extensions import override

from sluicegate.gateway.api.http import ClientDisconnected, Headers
from sluicegate.gateway.api.incoming_request import IncomingBodies, IncomingBody, IncomingRequest
from sluicegate.gateway.auth.key_ring import KeyRing
from sluicegate.gateway.auth.keys import hash_key
from sluicegate.gateway.config.document import Document
from sluicegate.gateway.errors import PayloadTooLarge, RequestTimeout
from sluicegate.gateway.http.byte_budget import LARGE
from sluicegate.gateway.runtime.runtime import compile_runtime
from sluicegate.gateway.types import KeyId, Principal, TenantId
from testing.raw_http import KEY

pytestmark = pytest.mark.anyio
CHUNKS = 200
RUNTIME = compile_runtime(Document(), 1)
LIMIT = RUNTIME.document.request.max_body_bytes


class Chunk(bytes):
    """A chunk that counts how often its length is asked for."""

    asked = 0

    @override
    def __len__(self) -> int:
        Chunk.asked += 1
        return super().__len__()


class Chunks:
    """Gives chunks as a server does; the body may have no end."""

    def __init__(self, *chunks: bytes, is_endless: bool = False) -> None:
        self._left = list(chunks)
        self._is_endless = is_endless

    async def __call__(self) -> Any:
        if not self._left:
            return {"type": "http.disconnect"}
        body = self._left.pop(0)
        return {
            "type": "http.request",
            "body": body,
            "more_body": bool(self._left) or self._is_endless,
        }


def request(*headers: tuple[bytes, bytes]) -> IncomingRequest:
    caller = Principal(tenant=TenantId("acme"), key=KeyId("key_1"))
    fields: Headers = [(b"authorization", b"Bearer " + KEY.encode()), *headers]
    keys = KeyRing({hash_key(KEY): caller})
    return IncomingRequest("POST", "/v1/classify", fields, keys=keys)


async def test_a_chunk_is_looked_at_once_however_many_follow() -> None:
    body = IncomingBody(IncomingBodies(), Chunks(*[Chunk(b"x")] * CHUNKS))

    await body.read_ahead(request(), RUNTIME)

    assert (body.is_whole, body.content) == (True, b"x" * CHUNKS)
    assert Chunk.asked <= 2 * CHUNKS


@pytest.mark.parametrize("declared", [b"", b"%d" % (LIMIT + 1)])
async def test_of_a_long_body_no_more_is_read_ahead_than_is_needed(declared: bytes) -> None:
    asked = request(*([(b"content-length", declared)] if declared else []))
    body = IncomingBody(IncomingBodies(), Chunks(b"a" * LIMIT, b"bb", b"c", is_endless=True))

    await body.read_ahead(asked, RUNTIME)

    assert not body.is_whole
    assert len(body.content) == (0 if declared else LIMIT + 2)


async def test_who_answers_gets_what_was_read_ahead_and_then_the_rest() -> None:
    body = IncomingBody(IncomingBodies(), Chunks(b"a" * LIMIT, b"bb", b"c"))
    await body.read_ahead(request(), RUNTIME)

    first, second = await body.receive(), await body.receive()

    assert (first["type"], second["type"]) == ("http.request", "http.request")
    assert (first.get("body"), first.get("more_body")) == (b"a" * LIMIT + b"bb", True)
    assert (second.get("body"), second.get("more_body")) == (b"c", False)


async def test_a_body_that_was_replaced_is_read_in_its_place() -> None:
    body = IncomingBody(IncomingBodies(), Chunks(b"packed"))
    asked = request()
    await body.read_ahead(asked, RUNTIME)

    body.replace(b"unpacked")

    assert await body.read(asked, RUNTIME, deadline=0.0) == b"unpacked"


@pytest.mark.parametrize("is_ahead", [True, False])
async def test_a_body_beyond_the_bound_is_refused(*, is_ahead: bool) -> None:
    asked = request()
    body = IncomingBody(IncomingBodies(), Chunks(b"a" * LIMIT, b"b"))
    if is_ahead:
        await body.read_ahead(asked, RUNTIME)

    with pytest.raises(PayloadTooLarge):
        await body.read(asked, RUNTIME, deadline=1e9)


@pytest.mark.parametrize("parts", [(), (b"01",), (b"01", b"23")])
async def test_a_caller_who_leaves_has_sent_no_body(parts: tuple[bytes, ...]) -> None:
    body = IncomingBody(IncomingBodies(), Chunks(*parts, is_endless=True))

    with pytest.raises(ClientDisconnected):
        await body.read(request(), RUNTIME, deadline=1e9)


async def test_a_body_that_is_there_is_read_whatever_the_time() -> None:
    body = IncomingBody(IncomingBodies(), Chunks(b"a ", b"body", b""))

    assert await body.read(request(), RUNTIME, deadline=0.0) == b"a body"


async def test_a_body_that_does_not_arrive_is_late() -> None:
    async def never() -> Any:
        return await asyncio.Future()

    body = IncomingBody(IncomingBodies(), never)

    with pytest.raises(RequestTimeout, match="did not arrive"):
        await body.read(request(), RUNTIME, asyncio.get_running_loop().time() + 0.01)


async def test_a_large_body_holds_memory_until_it_is_released() -> None:
    bodies = IncomingBodies()
    body = IncomingBody(bodies, Chunks(bytes(LARGE), b"x", b""))
    await body.read(request(), RUNTIME, deadline=1e9)

    held = bodies.budget.used_bytes
    body.release()

    assert (held, bodies.budget.used_bytes) == (LARGE + 1, 0)
