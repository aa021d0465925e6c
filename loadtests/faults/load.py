"""Sends an open-loop load from a separate thread, and records every request and its answer."""

import asyncio
import contextlib
import random
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Self

import msgspec

from loadtests.faults.catalogue import LoadSpec
from loadtests.faults.judge import LIMITED, Sent
from loadtests.faults.topology import Oracle, Question, Topology

_PATIENCE = 15.0
"""Seconds that a caller waits; the gateway's own deadline is shorter."""
_HASTY = {"x-request-timeout": "0.3"}
_REMEMBERED = 50
_LEAVES_WITHIN = 0.04
_CONNECTIONS = 256
_Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter, tuple[str, int]]
_Answer = tuple[int, dict[str, str], bytes]
"""Status, headers and body."""
_NO_ANSWER: _Answer = (0, {}, b"")
"""The caller got no answer, or one that is not HTTP."""


class Load:
    """While entered, sends requests at random times with a steady average rate.

    Each request has the API key of a tenant, chosen at random. After the exit, `sent` has every
    request, and the answers are judged. `rate` may be changed at any time.
    """

    def __init__(self, topology: Topology, spec: LoadSpec, *, seed: int) -> None:
        self.sent: list[Sent] = []
        self.rate = spec.rate
        self._topology = topology
        self._spec = spec
        self._seed = seed
        self._chooser = random.Random(seed)
        self._questions: dict[str, Iterator[Question]] = {}
        self._known: dict[str, list[Question]] = {}
        self._idle: deque[_Stream] = deque()
        self._places = asyncio.Semaphore(_CONNECTIONS)
        self._answers: list[tuple[int, Question, bytes]] = []
        """Places in `sent`, questions and answers that are judged after the load."""
        self._answered: set[bytes] = set()
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        for number, tenant in enumerate(self._topology.keys):
            # Each tenant has texts of its own, so that an answer for another tenant is
            # recognizable.
            questions = self._topology.oracle.questions(1000 * self._seed + number)
            self._known[tenant] = list(islice(questions, _REMEMBERED))
            self._questions[tenant] = questions
        self._sending = self._pool.submit(asyncio.run, self._send())
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._pool.shutdown()
        self._sending.result()
        self._judge()

    async def _send(self) -> None:
        due = time.monotonic()
        try:
            async with asyncio.TaskGroup() as requests:
                while not self._stop.is_set():
                    due += self._chooser.expovariate(self.rate)
                    await asyncio.sleep(max(0.0, due - time.monotonic()))
                    requests.create_task(self._one(due))
        finally:
            for _, writer, _ in self._idle:
                writer.transport.abort()

    async def _one(self, due: float) -> None:
        tenants = list(self._questions)
        hot = [tenant for tenant in tenants if tenant.startswith(LIMITED)]
        is_more = self._chooser.random() > self._spec.rate / self.rate
        tenant = self._chooser.choice(hot if hot and is_more else tenants)
        if self._chooser.random() < self._spec.repeated:
            question = self._chooser.choice(self._known[tenant])
        else:
            question = next(self._questions[tenant])
        if self._chooser.random() < self._spec.hasty:
            question = msgspec.structs.replace(question, headers=question.headers | _HASTY)
        await self._try(due, tenant, question)

    async def _try(self, due: float, tenant: str, question: Question) -> None:
        """Send a request, and record it."""
        is_repeat = question.body in self._answered
        patience = due + _PATIENCE - time.monotonic()
        status, head, body = await self._exchange(tenant, question, patience)
        if status == 200 and 200 in question.statuses:
            self._answered.add(question.body)
            self._answers.append((len(self.sent), question, body))
        sent = Sent(
            due=due,
            latency=time.monotonic() - due,
            status=status,
            tenant=tenant,
            path=question.path,
            items=question.items,
            id=head.get("x-request-id", ""),
            code="" if status == 200 else _code(body),
            is_hasty=_HASTY.items() <= question.headers.items(),
            is_repeat=is_repeat,
            allowed=question.statuses,
            has_left=question.is_left,
        )
        self.sent.append(sent)

    async def _exchange(self, tenant: str, question: Question, patience: float) -> _Answer:
        """Send a request, and return its answer or `_NO_ANSWER`.

        A request takes 0.1 ms of processor time, and with httpx it would take 1.4 ms.
        """
        lines = [
            f"POST {question.path} HTTP/1.1",
            "host: gateway",
            f"authorization: Bearer {question.key or self._topology.keys[tenant]}",
            "content-type: application/json",
            f"content-length: {len(question.body)}",
            *(f"{name}: {value}" for name, value in question.headers.items()),
        ]
        if question.is_left:
            patience = self._chooser.random() * _LEAVES_WITHIN
        writer = None
        try:
            async with asyncio.timeout(patience), self._places:
                reader, writer, _ = stream = await self._connection()
                writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + question.body)
                head = await reader.readuntil(b"\r\n\r\n")
                fields = (line.partition(":") for line in head.decode().split("\r\n"))
                found = {name.lower(): value.strip() for name, _, value in fields}
                body = await reader.readexactly(int(found["content-length"]))
                if found.get("connection") != "close":
                    self._idle.append(stream)
                    writer = None
                return int(head[9:12]), found, body
        except (OSError, EOFError, ValueError, KeyError, asyncio.LimitOverrunError):
            return _NO_ANSWER
        finally:
            if writer is not None:
                writer.transport.abort()

    async def _connection(self) -> _Stream:
        addresses = self._topology.addresses
        # Connections take turns, so that none is idle for longer than the gateway keeps it open.
        while self._idle:
            reader, writer, address = stream = self._idle.popleft()
            if address in addresses and not reader.at_eof() and not writer.is_closing():
                return stream
            writer.close()
        address = self._chooser.choice(addresses)
        return *await asyncio.open_connection(*address), address

    def _judge(self) -> None:
        """Judge the answers, and find out whose requests the wrong answers belong to."""
        oracle = self._topology.oracle
        asked = {
            question.body: (self.sent[place].tenant, question)
            for place, question, _ in self._answers
        }
        for place, question, body in self._answers:
            mine = self.sent[place]
            is_right = _is_right(oracle, question, body)
            owner = "" if is_right else owner_of(body, mine.tenant, asked.values(), oracle)
            self.sent[place] = msgspec.structs.replace(mine, is_right=is_right, answer_of=owner)


def owner_of(
    body: bytes, tenant: str, asked: Iterable[tuple[str, Question]], oracle: Oracle
) -> str:
    """Return the other tenant whose question `body` answers; "" if there is no such tenant."""
    others = (each for each in asked if each[0] != tenant)
    return next((other for other, question in others if _is_right(oracle, question, body)), "")


def _is_right(oracle: Oracle, question: Question, body: bytes) -> bool:
    """Return whether `body` answers the question; false if the body cannot be decoded."""
    try:
        return oracle.is_right(question, body)
    except msgspec.DecodeError:
        return False


def _code(body: bytes) -> str:
    with contextlib.suppress(msgspec.DecodeError):
        problem = msgspec.json.decode(body)
        if isinstance(problem, dict):
            return str(problem.get("code", ""))
    return ""
