"""Defines what a backend and an algorithm host say to each other: frames of msgpack.

A backend starts the host with a `HostSpec`. The host says with a first `StartReply` that it runs,
and with a second one that the code was imported, or why not. Each `RunRequest` ends with one
`RunReply`, also one that was cancelled. In between the host asks models by `ModelRequest`s; all
texts of a question are one message, and outputs travel as raw bytes.
"""

from typing import Any, Literal

import msgspec


class HostSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Tells a host what to run, and the descriptors of its socket and its step marks."""

    code: str
    folder: str
    memory_bytes: int
    socket: int
    marks: int
    parent: int


class RunRequest(msgspec.Struct, frozen=True, kw_only=True, tag="run"):
    """Gives an item to the host, which marks its steps in `slot`."""

    number: int
    slot: int
    item: msgspec.Raw
    parameters: msgspec.Raw


class CancelRequest(msgspec.Struct, frozen=True, kw_only=True, tag="cancel"):
    """Cancels an item; nobody waits for it any more."""

    number: int


class ModelReply(msgspec.Struct, frozen=True, kw_only=True, tag="reply"):
    """Answers a question by rows, by a JSON `result`, or by the class of an `error`."""

    question: int
    shape: tuple[int, ...] = ()
    rows: bytes = b""
    result: bytes = b""
    error: str = ""
    code: str = ""
    detail: str = ""
    retry_after: float | None = None


class StartReply(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """Says how far the start of a host got; a `problem` ended it."""

    is_loaded: bool = False
    problem: str = ""


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True, tag="ask"):
    """Asks a model on behalf of an item: with `texts` for raw outputs, else for its answer."""

    number: int
    question: int
    model: str
    texts: list[Any] | None = None
    item: Any = None
    task: str | None = None
    parameters: dict[str, Any] = {}


class WithdrawRequest(msgspec.Struct, frozen=True, kw_only=True, tag="withdraw"):
    """Withdraws a question: the algorithm waits for it no more."""

    number: int
    question: int


class RunReply(msgspec.Struct, frozen=True, kw_only=True, tag="end"):
    """Says how an item ended.

    `passed_on` is the error of a model, of this `code`. `trace` names kinds and places of errors.
    """

    number: int
    end: Literal["done", "refused", "passed_on", "failed"]
    result: bytes = b""
    code: str = ""
    detail: str = ""
    trace: str = ""


ToHost = RunRequest | CancelRequest | ModelReply
FromHost = StartReply | ModelRequest | WithdrawRequest | RunReply
