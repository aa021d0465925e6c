"""Sends an open-loop load from a separate thread, and records every request and its answer."""

import asyncio
import contextlib
import random
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Self

import msgspec

from loadtests.faults.catalogue import LoadSpec
from loadtests.faults.judge import LIMITED, Sent
from loadtests.faults.topology import Oracle, Question, Topology

_PATIENCE = 15.0
"""Seconds that a caller waits; the gateway's own deadline is shorter."""
_HASTE = "0.3"
_REMEMBERED = 50
_RUNS = 409
_HANG_UP = 0.25
_LEAVES_WITHIN = 0.04
_LONG = 120.0
"""Seconds after which a request with an idempotency key counts as lost."""
_CONNECTIONS = 256
_NO_ANSWER = (OSError, EOFError, ValueError, asyncio.LimitOverrunError)
"""What a request raises whose answer does not come, or is no HTTP."""
_Address = tuple[str, int]
_Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter, _Address]


class _Answer(msgspec.Struct, frozen=True):
    """An answer that is judged after the load."""

    place: int
    question: Question
    body: bytes


class Load:
    """Sends requests at a steady rate, spaced at random, while entered.

    Each request has the key of a tenant, chosen at random. After the exit, `sent` is complete and
    judged.
    """

    def __init__(self, topology: Topology, spec: LoadSpec, *, seed: int = 1) -> None:
        self.sent: list[Sent] = []
        self.rate = spec.rate
        """Requests a second; may be changed at any time."""
        self._topology = topology
        self._spec = spec
        self._seed = seed
        self._chooser = random.Random(seed)
        self._questions: dict[str, Iterator[Question]] = {}
        self._known: dict[str, list[Question]] = {}
        self._idle: deque[_Stream] = deque()
        self._answers: list[_Answer] = []
        self._answered: set[bytes] = set()
        self._error: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")

    def __enter__(self) -> Self:
        for number, tenant in enumerate(self._topology.keys):
            # Every tenant asks texts of its own, so that another tenant's answer is a wrong one.
            seed = 1000 * self._seed + number
            self._questions[tenant] = self._topology.oracle.questions(seed)
            self._known[tenant] = [next(self._questions[tenant]) for _ in range(_REMEMBERED)]
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
        self._judge()

    def _run(self) -> None:
        try:
            with self._topology.inside():
                asyncio.run(self._send())
        except Exception as error:  # noqa: BLE001 - raised at the exit, in the other thread
            self._error = error

    async def _send(self) -> None:
        places = asyncio.Semaphore(_CONNECTIONS)
        due = time.monotonic()
        try:
            async with asyncio.TaskGroup() as requests:
                while not self._stop.is_set():
                    due += self._chooser.expovariate(self.rate)
                    await asyncio.sleep(max(0.0, due - time.monotonic()))
                    requests.create_task(self._one(due, places))
        finally:
            for _, writer, _ in self._idle:
                writer.transport.abort()

    async def _one(self, due: float, places: asyncio.Semaphore) -> None:
        tenants = list(self._questions)
        hot = [tenant for tenant in tenants if tenant.startswith(LIMITED)]
        is_more = self._chooser.random() > self._spec.rate / self.rate
        tenant = self._chooser.choice(hot if hot and is_more else tenants)
        is_hasty = self._chooser.random() < self._spec.hasty
        question = (
            self._chooser.choice(self._known[tenant])
            if self._chooser.random() < self._spec.repeated
            else next(self._questions[tenant])
        )
        if self._spec.keyed:
            await self._send_twice(due, tenant, question, places)
            return
        while wait := await self._try(due, tenant, question, places, is_hasty=is_hasty):
            await asyncio.sleep(wait * self._chooser.uniform(1.0, 1.5))
            due = time.monotonic()

    async def _send_twice(
        self, due: float, tenant: str, question: Question, places: asyncio.Semaphore
    ) -> None:
        """Send a request with an idempotency key until it is answered, and do so twice.

        Every fourth caller first sends it and hangs up, which is not recorded.
        """
        key = str(uuid.uuid4())
        headers = (*question.headers, ("idempotency-key", key))
        # 409 says that the request of a caller who hung up still runs.
        keyed = msgspec.structs.replace(
            question, headers=headers, statuses=question.statuses | {_RUNS}
        )
        if self._chooser.random() < _HANG_UP:
            with contextlib.suppress(*_NO_ANSWER):
                async with asyncio.timeout(_PATIENCE):
                    await self._exchange(tenant, msgspec.structs.replace(keyed, is_left=True))
        for _ in range(2):
            until = time.monotonic() + _LONG
            while time.monotonic() < until:
                await self._try(due, tenant, keyed, places, retry_key=key)
                if self.sent[-1].status == 200:
                    break
                await asyncio.sleep(0.2)
                due = time.monotonic()
            due = time.monotonic()

    async def _try(
        self,
        due: float,
        tenant: str,
        question: Question,
        places: asyncio.Semaphore,
        *,
        is_hasty: bool = False,
        retry_key: str = "",
    ) -> float:
        """Send once; return after how many seconds to send again, 0 for never."""
        status, head, body = 0, b"", b""
        is_repeat = question.body in self._answered
        with contextlib.suppress(*_NO_ANSWER):
            async with asyncio.timeout(due + _PATIENCE - time.monotonic()), places:
                status, head, body = await self._exchange(tenant, question, is_hasty=is_hasty)
        retry_after = _field(head, b"retry-after:")
        if status == 200 and 200 in question.statuses:
            self._answered.add(question.body)
            self._answers.append(_Answer(len(self.sent), question, body))
        self.sent.append(
            Sent(
                due=due,
                latency=time.monotonic() - due,
                status=status,
                tenant=tenant,
                items=question.items,
                id=_field(head, b"x-request-id:"),
                code="" if status == 200 else _code(body),
                retry_after=retry_after,
                is_hasty=is_hasty,
                is_repeat=is_repeat,
                allowed=question.statuses,
                has_left=question.is_left,
                retry_key=retry_key,
            )
        )
        may_repeat = self._spec.insists and status != 200 and not self._stop.is_set()
        return float(retry_after) if may_repeat and retry_after else 0.0

    async def _exchange(
        self, tenant: str, question: Question, *, is_hasty: bool = False
    ) -> tuple[int, bytes, bytes]:
        lines = [
            f"POST {question.path} HTTP/1.1",
            "host: gateway",
            f"authorization: Bearer {question.key or self._topology.keys[tenant]}",
            "content-type: application/json",
            f"content-length: {question.declared_bytes or len(question.body)}",
            *(f"{name}: {value}" for name, value in question.headers),
            *((f"x-request-timeout: {_HASTE}",) if is_hasty else ()),
        ]
        reader, writer, _ = stream = await self._connection()
        try:
            writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + question.body)
            if question.is_left:
                await asyncio.sleep(self._chooser.random() * _LEAVES_WITHIN)
                writer.transport.abort()
            head = await reader.readuntil(b"\r\n\r\n")
            body = await reader.readexactly(int(_field(head, b"content-length:")))
        except BaseException:  # whatever it was, the next answer on this stream is not ours
            writer.transport.abort()
            raise
        if question.declared_bytes or _field(head, b"connection:") == "close":
            writer.close()
        else:
            self._idle.append(stream)
        return int(head[9:12]), head, body

    async def _connection(self) -> _Stream:
        addresses = self._topology.addresses
        # In turn, so that no connection is idle for longer than the gateway keeps it.
        while self._idle:
            reader, writer, address = stream = self._idle.popleft()
            if address in addresses and not reader.at_eof() and not writer.is_closing():
                return stream
            writer.close()
        address = self._chooser.choice(addresses)
        return *await asyncio.open_connection(*address), address

    def _judge(self) -> None:
        """Judge the answers, and find out whose a wrong answer is."""
        oracle = self._topology.oracle
        asked = {
            each.question.body: (self.sent[each.place].tenant, each.question)
            for each in self._answers
        }
        for place, question, body in map(msgspec.structs.astuple, self._answers):
            mine = self.sent[place]
            is_right = _is_right(oracle, question, body)
            owner = "" if is_right else owner_of(body, mine.tenant, asked.values(), oracle)
            self.sent[place] = msgspec.structs.replace(mine, is_right=is_right, answer_of=owner)
        self._answers.clear()


def owner_of(
    body: bytes, tenant: str, asked: Iterable[tuple[str, Question]], oracle: Oracle
) -> str:
    """Return the other tenant whose question `body` answers; "" if there is none."""
    others = (each for each in asked if each[0] != tenant)
    return next((other for other, question in others if _is_right(oracle, question, body)), "")


def _is_right(oracle: Oracle, question: Question, body: bytes) -> bool:
    """Return whether `body` answers the question; one of another form is wrong."""
    try:
        return oracle.is_right(question, body)
    except msgspec.DecodeError:
        return False


def _field(head: bytes, name: bytes) -> str:
    for line in head.split(b"\r\n"):
        if line.lower().startswith(name):
            return line[len(name) :].strip().decode()
    return ""


def _code(body: bytes) -> str:
    with contextlib.suppress(msgspec.DecodeError):
        problem = msgspec.json.decode(body)
        if isinstance(problem, dict):
            return str(problem.get("code", ""))
    return ""
