"""Defines the messages between a backend and an algorithm host: msgpack frames on a socket.

The backend starts the host with a `HostSpec`. The host sends one `StartReply` before it imports the
code, and a second one after the import has succeeded or failed. The host answers each `RunRequest`
with one `RunReply`, even after a `CancelRequest`. While an item runs, the host calls models with
`ModelRequest`. One `ModelRequest` carries all texts of a call.
"""

from typing import Any, Literal

import msgspec


class HostSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Tells an algorithm host its code, its limits and the file descriptors that it inherits.

    The host talks to the backend over `socket`. `marks` is shared memory in which the host records
    which item it runs.
    """

    code: str
    folder: str
    memory_bytes: int
    socket: int
    marks: int
    parent: int


class RunRequest(msgspec.Struct, frozen=True, kw_only=True, tag="run"):
    """Tells the host to run an item.

    The host records the running time of the item in slot `slot` of the shared memory.
    """

    number: int
    slot: int
    item: msgspec.Raw
    parameters: msgspec.Raw


class CancelRequest(msgspec.Struct, frozen=True, kw_only=True, tag="cancel"):
    """Tells the host to cancel an item that no caller waits for."""

    number: int


class ModelReply(msgspec.Struct, frozen=True, kw_only=True, tag="reply"):
    """Answers a `ModelRequest` with `rows`, a JSON `result`, or the class name of an `error`."""

    call: int
    shape: tuple[int, ...] = ()
    rows: bytes = b""
    result: bytes = b""
    error: str = ""
    code: str = ""
    detail: str = ""
    retry_after: float | None = None


class StartReply(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """Reports progress of a host's start; `problem` says why the start failed."""

    is_loaded: bool = False
    problem: str = ""


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True, tag="ask"):
    """Asks a model for the raw outputs of `texts`, or for the result of `item`.

    `number` is the number of the `RunRequest` whose algorithm needs the reply.
    """

    number: int
    call: int
    model: str
    texts: list[Any] | None = None
    item: Any = None
    task: str | None = None
    parameters: dict[str, Any] = {}


class CancelModelRequest(msgspec.Struct, frozen=True, kw_only=True, tag="cancel_ask"):
    """Cancels a `ModelRequest` that the algorithm no longer waits for."""

    number: int
    call: int


class RunReply(msgspec.Struct, frozen=True, kw_only=True, tag="end"):
    """Reports how an item ended.

    If `end` is `passed_on`, a model failed with the error `code`. `trace` has the types and source
    lines of errors, but not their messages.
    """

    number: int
    end: Literal["done", "refused", "passed_on", "failed"]
    result: bytes = b""
    code: str = ""
    detail: str = ""
    trace: str = ""


ToHost = RunRequest | CancelRequest | ModelReply
FromHost = StartReply | ModelRequest | CancelModelRequest | RunReply
