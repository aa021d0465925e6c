"""Calls a gRPC listener with a real client, and messages of our own definition."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, NamedTuple, Self

import grpc
import grpc.aio

from sluicegate.gateway.http.draining import Draining
from sluicegate.gateway.http.edge import ListenerEdge
from sluicegate.gateway.rpc.infer_route import SERVICE, rpc_dialect
from sluicegate.gateway.rpc.listener import rpc_listener
from sluicegate.gateway.rpc.messages import MessageTable
from sluicegate.gateway.settings import Settings
from testing.ports import free_port
from tests.support.api import KEY, Api
from tests.support.dialects import serve_models

_TYPES = MessageTable()


class RpcReply(NamedTuple):
    """Holds how a call ended: a message, or what went wrong; and the trailing metadata."""

    message: Any
    code: grpc.StatusCode
    details: str
    trailing: Mapping[str, str]


class RpcClient:
    """A client with a key, on a connection of its own."""

    def __init__(self, port: int, *, key: str = KEY, ca: bytes = b"") -> None:
        # Else channels to one address share a connection.
        own = [("grpc.use_local_subchannel_pool", 1)]
        address = f"127.0.0.1:{port}"
        if ca:
            trusting = grpc.ssl_channel_credentials(ca)
            self.channel = grpc.aio.secure_channel(address, trusting, options=own)
        else:
            self.channel = grpc.aio.insecure_channel(address, options=own)
        self._metadata = (("authorization", f"Bearer {key}"),) if key else ()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.channel.close()

    def begin(
        self,
        method: str,
        request: Any = None,
        *,
        timeout: float | None = None,
        metadata: Iterable[tuple[str, str]] = (),
        compression: grpc.Compression | None = None,
    ) -> Any:
        """Return a call under way; without a `request` an empty one is sent."""
        response = _TYPES[f"{method}Response"]
        stub = self.channel.unary_unary(
            f"{SERVICE}{method}",
            request_serializer=lambda sent: sent if isinstance(sent, bytes) else serialized(sent),
            response_deserializer=response.FromString,
        )
        sent = _TYPES[f"{method}Request"]() if request is None else request
        return stub(
            sent,
            timeout=timeout,
            metadata=(*self._metadata, *metadata),
            compression=compression,
        )

    async def ask(self, method: str, request: Any = None, **options: Any) -> RpcReply:
        """Return how a call ended."""
        call = self.begin(method, request, **options)
        try:
            message = await call
        except grpc.aio.AioRpcError:
            message = None
        trailing = dict(await call.trailing_metadata())
        return RpcReply(message, await call.code(), str(await call.details()), trailing)

    def stream(self, *, metadata: Iterable[tuple[str, str]] = ()) -> Any:
        """Return a stream of requests and answers."""
        stub = self.channel.stream_stream(
            f"{SERVICE}ModelStreamInfer",
            request_serializer=serialized,
            response_deserializer=_TYPES["ModelStreamInferResponse"].FromString,
        )
        return stub(metadata=(*self._metadata, *metadata))


def message(kind: str, /, **fields: Any) -> Any:
    """Return a message."""
    return _TYPES[kind](**fields)


def serialized(sent: Any) -> bytes:
    """Return the bytes of a message."""
    return bytes(sent.SerializeToString())


def packed(*texts: str) -> bytes:
    """Return texts as `raw_input_contents` has them."""
    encoded = [text.encode() for text in texts]
    return b"".join([struct.pack("<I", len(each)) + each for each in encoded])


def infer(model: str, *texts: str, raw: bool = True, **fields: Any) -> Any:
    """Return a `ModelInferRequest` about texts."""
    tensor: dict[str, Any] = {"name": "TEXT", "datatype": "BYTES", "shape": [len(texts), 1]}
    if raw:
        fields.setdefault("raw_input_contents", [packed(*texts)])
    else:
        tensor["contents"] = {"bytes_contents": [text.encode() for text in texts]}
    return message("ModelInferRequest", model_name=model, inputs=[tensor], **fields)


def floats(answer: Any, index: int = 0) -> list[float]:
    """Return the numbers of an output."""
    raw = answer.raw_output_contents[index]
    return list(struct.unpack(f"<{len(raw) // 4}f", raw))


class RpcApi(Api):
    """The API over small fakes, with the routes of gRPC."""

    dialects = (*Api.dialects, rpc_dialect())


class RunningRpc:
    """A listener over an `Api`."""

    def __init__(self, port: int, api: Api, stop: asyncio.Event, draining: Draining) -> None:
        self.port = port
        self.api = api
        self.stop = stop
        self.draining = draining

    def client(self, **options: Any) -> RpcClient:
        """Return a client, to be entered."""
        return RpcClient(self.port, **options)


@contextlib.asynccontextmanager
async def running_rpc(
    edge: ListenerEdge | None = None, **settings: Any
) -> AsyncIterator[RunningRpc]:
    """Run a listener in this process."""
    port, stop, draining = free_port(), asyncio.Event(), Draining()
    api = serve_models(RpcApi())
    listener = rpc_listener(
        api.routed(),
        Settings(**{"grpc_port": port, "drain": 2.0} | settings),
        steps=api.steps,
        bodies=api.bodies,
        keys=api.keys,
        max_message_bytes=api.document().request.max_body_bytes,
        draining=draining,
        stop=stop,
        edge=edge,
        unsent=api.unsent,
    )
    async with listener:
        try:
            yield RunningRpc(port, api, stop, draining)
        finally:
            stop.set()
