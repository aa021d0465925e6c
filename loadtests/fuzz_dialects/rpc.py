"""Sends the fuzzer's requests of tensors over gRPC, several tenants on one connection."""

import random
import struct
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any  # Any: messages, whose classes are made at run time

import grpc

from gateway.rpc.messages import MessageTable
from loadtests.fuzz_dialects.routes import TENSOR_ROUTES, Asked, DialectRoute
from loadtests.fuzz_dialects.traffic import DialectTraffic, SentRequest, question
from loadtests.fuzz_http.callers import Caller

METHOD = "/inference.GRPCInferenceService/ModelInfer"
_CALLS_AT_ONCE = 4
_PATIENCE = 60.0
MESSAGES = MessageTable()
_BUSY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)


def fuzz_rpc(
    dialects: DialectTraffic,
    addresses: Sequence[str],
    callers: list[Caller],
    calls: int,
) -> list[str]:
    """Send `calls` calls to the listeners at `addresses`; return the findings."""
    numbers, findings = count(), list[str]()

    def run(channel: grpc.Channel) -> None:
        for number in numbers:
            if number >= calls or findings:
                return
            chance = random.Random(f"{callers[0].key}/rpc/{number}")
            findings.extend(_call(dialects, channel, chance, callers, f"rpc-{number}"))

    channels = [grpc.insecure_channel(address) for address in addresses]
    with ThreadPoolExecutor(_CALLS_AT_ONCE * len(channels)) as pool:
        for running in [pool.submit(run, each) for each in channels * _CALLS_AT_ONCE]:
            running.result()
    for channel in channels:
        channel.close()
    return findings


def _call(
    dialects: DialectTraffic,
    channel: grpc.Channel,
    chance: random.Random,
    callers: list[Caller],
    unique: str,
) -> Iterator[str]:
    caller = chance.choice(callers)
    route, asked = question(chance, caller, unique, TENSOR_ROUTES)
    sent = SentRequest(caller=caller, route=route, asked=asked, client_id=unique, key="")
    ask = channel.unary_unary(
        METHOD,
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=MESSAGES["ModelInferResponse"].FromString,
    )
    metadata = (("authorization", f"Bearer {caller.key}"), ("x-request-id", unique))
    call = ask.future(tensor_message(route, asked, unique), metadata=metadata, timeout=_PATIENCE)
    if chance.random() < 0.1:
        threading.Event().wait(chance.choice([0.0, 0.002, 0.02]))
        call.cancel()
        return
    error = call.exception()
    if error is None:
        answer = call.result()
        dialects.calls += 1
        if answer.id != unique:
            yield f"{route.name} over gRPC: the id {answer.id} in place of {unique}"
        trailing = {name.encode(): str(value).encode() for name, value in call.trailing_metadata()}
        wrong = dialects.wrong_ids(sent, trailing) or dialects.wrong_payload(sent, _payload(answer))
        if wrong:
            yield f"{route.name} of {caller.tenant} over gRPC: {wrong}"
    elif call.code() not in _BUSY:
        yield f"{route.name} of {caller.tenant} over gRPC: {error}"


def tensor_message(route: DialectRoute, asked: Asked, unique: str) -> Any:
    """Return the message of gRPC that asks a route of tensors."""
    body = route.body(asked)
    return MESSAGES["ModelInferRequest"](
        model_name=asked.model,
        id=unique,
        parameters={name: {"int64_param": value} for name, value in body["parameters"].items()},
        inputs=[
            {
                "name": one["name"],
                "datatype": one["datatype"],
                "shape": one["shape"],
                "contents": {"bytes_contents": [text.encode() for text in one["data"]]},
            }
            for one in body["inputs"]
        ],
    )


def _payload(message: Any) -> dict[str, Any]:
    """Return an answer as it is written over HTTP."""
    pairs = zip(message.outputs, message.raw_output_contents, strict=True)
    return {
        "model_name": message.model_name,
        "outputs": [
            {"name": one.name, "shape": list(one.shape), "data": _data(one.datatype, raw)}
            for one, raw in pairs
        ],
    }


def _data(datatype: str, raw: bytes) -> list[Any]:
    if datatype == "FP32":
        return list(struct.unpack(f"<{len(raw) // 4}f", raw))
    return list(_texts(raw))


def _texts(raw: bytes) -> Iterator[str]:
    """Yield texts that are stored behind their lengths."""
    at = 0
    while at < len(raw):
        (size,) = struct.unpack_from("<I", raw, at)
        yield raw[at + 4 : at + 4 + size].decode()
        at += 4 + size
