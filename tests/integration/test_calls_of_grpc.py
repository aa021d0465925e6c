"""A whole worker answers calls of gRPC with what it does for every request: Redis, events, keys."""

from pathlib import Path

import pytest
from grpc import StatusCode

from testing.ports import free_port
from testing.raw_http import KEY
from testing.stub_backend import StubBackend
from testing.valkey import Valkey
from tests.support.rpc import RpcClient, message, packed
from tests.support.worker import running_worker

pytestmark = pytest.mark.anyio
_TENSOR = {"name": "INPUT", "datatype": "BYTES", "shape": [1, 1]}


def request(text: str) -> object:
    return message(
        "ModelInferRequest",
        model_name="stub",
        inputs=[_TENSOR],
        raw_input_contents=[packed(f'"{text}"')],
    )


async def test_a_call_that_is_repeated_under_its_key_is_answered_once(
    tmp_path: Path, valkey_server: Valkey
) -> None:
    valkey_server.flush()
    port = free_port()
    own = (("idempotency-key", "one"),)
    async with (
        StubBackend(backend_id="eu-1", region="eu") as stub,
        running_worker(tmp_path, valkey_server.url, [stub], own={"grpc_port": port}),
        RpcClient(port, key=KEY) as client,
    ):
        first, again = [
            await client.ask("ModelInfer", request("a"), metadata=own) for _ in range(2)
        ]
        other = await client.ask("ModelInfer", request("b"), metadata=own)
        server = await client.ask("ServerMetadata")
        computed = len(stub.calls)

    assert (first.code, again.code) == (StatusCode.OK, StatusCode.OK)
    assert first.message == again.message
    assert again.trailing["idempotency-replayed"] == "true"
    assert again.trailing["x-request-id"] == first.trailing["x-request-id"]
    assert other.code is StatusCode.INVALID_ARGUMENT
    assert computed == 1
    assert server.message.name == "sluicegate"
