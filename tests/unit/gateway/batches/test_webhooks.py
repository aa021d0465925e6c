"""Webhooks are signed as their specification says, and go to public addresses over TLS only."""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import msgspec
import pytest

from sluicegate.gateway.batches import webhooks
from sluicegate.gateway.batches.webhooks import DeliveryRunner, Webhook, read_webhooks, sign
from sluicegate.gateway.errors import DependencyUnavailable
from sluicegate.gateway.ledger.batch_types import BatchState, RequestBatch
from sluicegate.gateway.ledger.batches import in_status
from sluicegate.gateway.ledger.ledger import Ledger
from tests.support.ledgers import Clock, open_ledger
from tests.unit.gateway.batches.test_lines import BATCH

pytestmark = pytest.mark.anyio
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


class Receiver:
    """Answers each request with the next of `statuses`, and keeps what arrived."""

    def __init__(self, *statuses: int) -> None:
        self._statuses = list(statuses)
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.targets: list[str] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.host = f"127.0.0.1:{port}"
        self.url = f"http://user:password@{self.host}/hook?for=acme"
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.targets.append(head.split()[1])
            lines = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:-2])
            self.requests.append((lines, await reader.readexactly(int(lines["content-length"]))))
            status = self._statuses.pop(0)
            writer.write(
                f"HTTP/1.1 {status} X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode()
            )
            await writer.drain()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(tmp_path: Path, clock: Clock) -> Iterator[Ledger]:
    with open_ledger(tmp_path, clock) as opened:
        yield opened


def end_a_batch(ledger: Ledger) -> None:
    batches = ledger.batches
    with ledger.files._store.writing() as connection:
        connection.exec_driver_sql(
            "INSERT INTO files VALUES ('file-1', 'acme', 'batch', 'x', 0, 0, 0, 1)"
        )
    batches.create(BATCH, most_open=1, most_bytes=0)
    assert batches.claim("me", seconds=9.0, running=[], most=1) == BATCH

    def completed(batch: RequestBatch) -> RequestBatch:
        return in_status(batch, BatchState.COMPLETED, 1)

    batches.end(BATCH.id, "me", completed)


def runner(ledger: Ledger, webhook: Webhook | None, timeout: float = 15.0) -> DeliveryRunner:
    webhooks = {} if webhook is None else {"acme": webhook}
    return DeliveryRunner(
        deliveries=ledger.deliveries, read=lambda: webhooks, wall=lambda: 77.0, timeout=timeout
    )


def test_both_secrets_of_a_rotation_sign() -> None:
    new, old = (f"whsec_{base64.b64encode(bytes([n]) * 32).decode()}" for n in (1, 2))
    url = "https://hooks.acme.example"

    both = sign(Webhook(url=url, secret=new, second_secret=old), "msg_1", 77, b"{}")

    alone = [sign(Webhook(url=url, secret=each), "msg_1", 77, b"{}") for each in (new, old)]
    signatures = [headers["webhook-signature"] for headers in alone]
    assert both["webhook-signature"] == " ".join(signatures)


def test_a_signature_is_that_of_the_specification() -> None:
    """Compared with the example of the specification's own libraries."""
    webhook = Webhook(url="https://example.com", secret=SECRET)

    headers = sign(webhook, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')

    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


@pytest.mark.parametrize("last", [204, 410])
async def test_a_webhook_is_sent_until_it_is_taken_under_one_id(
    last: int, ledger: Ledger, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")  # which is for others
    end_a_batch(ledger)
    async with Receiver(500, last) as receiver:
        webhook = Webhook(url=receiver.url, secret=SECRET, allow_private=True)
        delivering = runner(ledger, webhook)
        for _ in range(4):
            await delivering.run_once()
            clock.advance(6.0)

    (first, body), (second, _) = receiver.requests
    event = msgspec.json.decode(body)
    assert (receiver.targets, first["host"]) == (["/hook?for=acme"] * 2, receiver.host)
    assert first["webhook-id"] == second["webhook-id"] == event["id"]
    assert (event["type"], event["data"]) == ("batch.completed", {"id": BATCH.id})
    signed = f"{event['id']}.77.".encode() + body
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    signature = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert first["webhook-signature"] == f"v1,{signature}".lower()
    clock.advance(1e6)
    assert ledger.deliveries.take(seconds=1.0) == []


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://127.0.0.1:{}/", "not `https://`"),
        ("https://localhost:{}/", "outside the public Internet"),
        ("https://[::ffff:127.0.0.1]:{}/", "outside the public Internet"),
        ("https://private-and-public.example:{}/", "outside the public Internet"),
    ],
)
async def test_private_networks_and_plain_http_are_not_called(
    url: str,
    reason: str,
    ledger: Ledger,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    end_a_batch(ledger)
    resolve = socket.getaddrinfo

    def resolved(host: str, *rest: Any, **options: Any) -> Any:
        known = {"private-and-public.example": ["127.0.0.1", "1.1.1.1"]}
        names = known.get(host, [host])
        return [each for name in names for each in resolve(name, *rest, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    connected = asyncio.Event()

    def on_connection(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        writer.close()

    async with await asyncio.start_server(on_connection, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        await runner(ledger, Webhook(url=url.format(port), secret=SECRET)).run_once()

    assert not connected.is_set()
    (logged,) = caplog.records
    assert logged.message == "a webhook was not delivered"
    assert reason in logged.__dict__["reason"]


async def test_a_tenant_without_a_webhook_is_told_nothing(ledger: Ledger, clock: Clock) -> None:
    end_a_batch(ledger)

    await runner(ledger, None).run_once()

    clock.advance(1e6)
    assert ledger.deliveries.take(seconds=1.0) == []


async def test_a_delivery_waits_longer_each_time_and_is_given_up(
    ledger: Ledger, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    end_a_batch(ledger)
    forbidden = runner(ledger, Webhook(url="http://localhost/", secret=SECRET))
    attempts = []
    await forbidden.run_once()
    for wait in (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400):
        clock.advance(wait - 1)
        await forbidden.run_once()
        attempts.append(len(caplog.records))
        clock.advance(1)
        await forbidden.run_once()

    assert attempts == [*range(1, 10)]
    assert len(caplog.records) == 10
    clock.advance(1e6)
    assert ledger.deliveries.take(seconds=1.0) == []


@pytest.mark.parametrize("answer", [b"H", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n"])
async def test_an_answer_that_never_ends_keeps_no_other_webhook(
    ledger: Ledger, answer: bytes, clock: Clock
) -> None:
    """The status is enough; without one there is a time-out over all."""
    end_a_batch(ledger)

    loop, writers = asyncio.get_running_loop(), list[asyncio.StreamWriter]()

    def drip(writer: asyncio.StreamWriter) -> None:
        if not writer.is_closing():
            writer.write(b"x")
            loop.call_later(0.02, drip, writer)

    def on_connection(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        writer.write(answer)
        drip(writer)

    async with await asyncio.start_server(on_connection, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        webhook = Webhook(url=f"http://127.0.0.1:{port}/", secret=SECRET, allow_private=True)
        timeout = 0.3 if answer == b"H" else 30.0
        await asyncio.wait_for(runner(ledger, webhook, timeout=timeout).run_once(), 60.0)
    for writer in writers:
        writer.close()

    clock.advance(6.0)
    assert bool(ledger.deliveries.take(seconds=1.0)) == (answer == b"H")


async def test_a_file_that_cannot_be_read_uses_up_no_attempts(
    ledger: Ledger, clock: Clock, tmp_path: Path
) -> None:
    end_a_batch(ledger)
    path = tmp_path / "webhooks.yaml"
    delivering = DeliveryRunner(deliveries=ledger.deliveries, read=lambda: read_webhooks(path))
    for text in ["acme: [", "acme: {url: 3}"] * 6:
        path.write_text(text)
        await delivering.run_once()
        clock.advance(100.0)

    assert [each.attempts for each in ledger.deliveries.take(seconds=1.0)] == [1]


async def test_a_ledger_that_is_away_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, rounds = asyncio.Event(), []

    async def pause(stop: asyncio.Event, seconds: float) -> None:
        rounds.append(seconds)
        if len(rounds) == 5:
            stop.set()

    monkeypatch.setattr(webhooks, "pause", pause)
    with Ledger(f"sqlite:///{tmp_path}/none.db") as ledger:
        await runner(ledger, None).run(stop)

    assert [record.message for record in caplog.records] == ["webhooks wait"]


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_c2hvcnQ=", "whsec_?"])
def test_an_entry_that_is_wrong_stops_its_own_tenant_alone(tmp_path: Path, secret: str) -> None:
    path = tmp_path / "webhooks.yaml"
    url = "https://example.com"
    path.write_text(
        f"acme: {{url: '{url}', secret: '{secret}'}}\nb: {{url: '{url}', secret: {SECRET}}}"
    )

    assert read_webhooks(path) == {"acme": None, "b": Webhook(url=url, secret=SECRET)}


def test_a_file_of_webhooks_that_cannot_be_read_says_so_without_its_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "webhooks.yaml"
    path.write_text(f"acme: {{url: 'https://example.com', secret: {SECRET}}}")
    assert read_webhooks(path)["acme"] is not None
    path.write_text(f"acme: {{url: 3, secret: {SECRET}}}")
    assert read_webhooks(path) == {"acme": None}
    path.write_text(f"acme: {{url: 3, secret: {SECRET}")

    with pytest.raises(DependencyUnavailable):
        read_webhooks(path)

    assert read_webhooks(None) == {}
    assert str(path) in str(caplog.records[-1].__dict__)
    assert SECRET not in caplog.text
