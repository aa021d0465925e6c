"""Serves the same bytes to every request, as a baseline: the HTTP server of gateway and backends.

`python -m loadtests.bare_server` prints its port. Then it answers each request with 330 bytes.

`python -m loadtests.bare_server GRAPH TOKENIZER` runs the text in `input` of each request first,
one text at a time on each core. Nothing can serve this graph with less around it.
"""

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import uvloop

from loadtests.bare_sessions import BareSessions
from loadtests.generator import Target
from loadtests.machine import pin
from sluicegate.wire.cores import usable_cores
from sluicegate.wire.http.connection import Connection, ServerState
from sluicegate.wire.http.messages import STATUS_LINE
from sluicegate.wire.http.refusals import Refusal
from sluicegate.wire.http.server import HttpServer
from sluicegate.wire.http.timeouts import ConnectionTimeouts
from sluicegate.wire.http.writing import WriteCoalescer

BARE = "a bare server, which does nothing"


class BareServer(NamedTuple):
    """A server that answers every request with the same bytes."""

    target: Target
    pid: int


@contextlib.contextmanager
def bare_server(*, core: int | None) -> Iterator[BareServer]:
    """Run the server as a process, pinned to `core`."""
    with _running([], core) as server:
        yield server


@contextlib.contextmanager
def bare_model(graph: Path, tokenizer: Path) -> Iterator[BareServer]:
    """Run a server of a graph as a process."""
    with _running([str(graph), str(tokenizer)]) as server:
        yield server


@contextlib.contextmanager
def _running(arguments: Sequence[str], core: int | None = None) -> Iterator[BareServer]:
    command = [sys.executable, "-m", "loadtests.bare_server", *arguments]
    root = Path(__file__).parents[1]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None  # noqa: S101 - for mypy
            port = int(child.stdout.readline())
            if core is not None:
                pin([child.pid], core)
            yield BareServer(Target(host="127.0.0.1", port=port, path="/"), child.pid)
        finally:
            child.terminate()


class _Side:
    """Has nothing beside the application."""

    answers_half_closed = True

    def __init__(self) -> None:
        self.coalescer = WriteCoalescer()

    def front(self, connection: Connection) -> None:
        """Return nothing."""

    def refusal(self, refusal: Refusal, default_lines: bytes) -> bytes:
        return STATUS_LINE[refusal.status] + default_lines + b"content-length: 0\r\n\r\n"


async def _serve(work: Callable[[bytes], Awaitable[None]]) -> None:
    body = b"x" * 330
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        await work((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    server = HttpServer(ServerState(app, _Side(), ConnectionTimeouts()))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        await server.listen(listener)
        print(listener.getsockname()[1], flush=True)
        await server.watch()


async def _nothing(_: bytes) -> None:
    return


def _modelling(graph: Path, tokenizer: Path) -> Callable[[bytes], Awaitable[None]]:
    sessions = BareSessions(graph, tokenizer, rows=1)
    threads = ThreadPoolExecutor(usable_cores())

    async def work(body: bytes) -> None:
        (batch,) = sessions.batches([msgspec.json.decode(body)["input"]])
        await asyncio.get_running_loop().run_in_executor(threads, sessions.run_batch, batch)

    return work


if __name__ == "__main__":
    uvloop.run(_serve(_modelling(*map(Path, sys.argv[1:])) if sys.argv[1:] else _nothing))
