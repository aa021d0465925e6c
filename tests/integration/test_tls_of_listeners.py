"""Listeners over TLS: new certificates while connections live, slow handshakes, many of them."""

import asyncio
import contextlib
import logging
import ssl
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from sluicegate.gateway.errors import ConfigurationError
from sluicegate.gateway.http.edge import ListenerEdge, ListenerTls, check_listeners
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.sockets.certificate_files import expiry_of
from sluicegate.gateway.telemetry.edge_metrics import EdgeMetrics
from sluicegate.wire.http import server
from sluicegate.wire.http.connection import Connection
from sluicegate.wire.http.timeouts import ConnectionTimeouts
from testing.certificates import Authority
from testing.waiting import until
from tests.support.edge import served

pytestmark = pytest.mark.anyio
MUCH = 12 * 1024 * 1024
HSTS = "strict-transport-security: max-age=31536000\r\n"


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """The event loop of a gateway's processes, whose TLS is its own."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def edge(authority: Authority, registry: CollectorRegistry) -> ListenerEdge:
    tls = ListenerTls(authority.server())
    return ListenerEdge(tls=tls, metrics=EdgeMetrics(registry))


@pytest.fixture
def context(authority: Authority) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=authority.ca)
    made.set_alpn_protocols(["h2", "http/1.1"])
    return made


def sample(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, {"listener": "customers", **labels})


async def test_requests_over_tls_are_answered_and_told_to_stay_with_it(
    edge: ListenerEdge, context: ssl.SSLContext
) -> None:
    async with served(edge) as running, running.connect(context) as caller:
        first, second = await caller.ask(), await caller.ask()

        spoken = caller.writer.get_extra_info("ssl_object")
        assert first.body == second.body == "https 127.0.0.1"
        assert HSTS in first.head
        assert "x-content-type-options: nosniff\r\n" in first.head
        assert spoken.selected_alpn_protocol() == "http/1.1"


async def test_a_plain_listener_names_no_server_and_asks_for_no_tls() -> None:
    async with served(ListenerEdge()) as running, running.connect() as caller:
        answer = await caller.ask()

    assert "x-content-type-options: nosniff\r\n" in answer.head
    assert "strict-transport" not in answer.head
    assert "\r\nserver:" not in answer.head


async def test_a_refusal_reaches_a_client_over_tls(
    edge: ListenerEdge, context: ssl.SSLContext
) -> None:
    async with served(edge) as running, running.connect(context) as caller:
        caller.writer.write(b"GET / HTTP/9.9\r\n\r\n")

        answer = await caller.answer()

        assert answer.status in (400, 505)
        assert await caller.ends()


async def test_a_new_certificate_is_shown_to_new_connections_and_old_ones_go_on(
    authority: Authority,
    edge: ListenerEdge,
    registry: CollectorRegistry,
    context: ssl.SSLContext,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with served(edge) as running, running.connect(context) as old:
        await old.ask()
        before = shown(old.writer)
        following = asyncio.create_task(edge.follow(0.01))
        name = "sluicegate_tls_certificate_unusable"

        path = authority.server()
        good, expiry = path.read_bytes(), "sluicegate_tls_certificate_expiry_timestamp_seconds"
        path.write_bytes(b"no certificate")
        await until(lambda: sample(registry, name) == 1)
        async with running.connect(context) as caller:
            assert shown(caller.writer) == before
        path.write_bytes(good)
        await until(lambda: sample(registry, name) == 0)
        async with running.connect(context) as caller:
            assert shown(caller.writer) not in (b"", before)
            assert (await caller.ask()).status == 200

        assert (await old.ask()).status == 200
        assert sample(registry, expiry) == expiry_of(good.decode())
        said = [one.message for one in caplog.records if "certificates" in one.message]
        assert said.count("the certificates stay as they were") == 1
        following.cancel()


async def test_what_is_no_handshake_is_counted_and_logged_once(
    edge: ListenerEdge,
    registry: CollectorRegistry,
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused = "sluicegate_refused_connections_total"
    async with served(edge) as running:
        for _ in range(3):
            async with running.connect() as caller:
                caller.writer.write(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n")
                await caller.ends()
        await until(lambda: sample(registry, refused, reason="tls") == 3)

    reasons = [vars(one)["reason"] for one in caplog.records if "established" in one.message]
    assert reasons == ["plain HTTP came where TLS is spoken: the URL must begin with `https://`"]


async def test_a_handshake_that_never_ends_counts_as_a_connection_and_is_ended(
    edge: ListenerEdge, context: ssl.SSLContext, registry: CollectorRegistry
) -> None:
    timeouts = ConnectionTimeouts(head=0.5, connections=2)
    name = "sluicegate_refused_connections_total"
    async with (
        served(edge, timeouts=timeouts) as running,
        running.connect() as silent,
        running.connect() as slow,
    ):
        slow.writer.write(b"\x16\x03\x01\x02\x00\x01")
        async with running.connect(context) as third:
            refused = await third.answer()
        assert await silent.ends()
        assert await slow.ends()
        await until(lambda: (sample(registry, name, reason="tls") or 0) >= 2)

        async with running.connect(context) as caller:
            answer = await caller.ask()

        assert (refused.status, answer.status) == (503, 200)
        assert sample(registry, name, reason="connections") == 1


async def test_tls_1_1_is_refused(edge: ListenerEdge, context: ssl.SSLContext) -> None:
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    async with served(edge) as running:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            async with running.connect(context):
                pass


async def test_a_stop_does_not_wait_for_handshakes(
    edge: ListenerEdge, context: ssl.SSLContext
) -> None:
    async with served(edge) as running, running.connect(context) as caller:
        silent = await asyncio.open_connection("127.0.0.1", running.port)
        waiting = asyncio.create_task(caller.ask(b"x-wait: 1\r\n"))
        await asyncio.sleep(0)
        running.resumed.set()
        assert (await waiting).status == 200
    silent[1].transport.abort()
    with contextlib.suppress(OSError):
        await silent[1].wait_closed()


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[Connection]:
    """Whom the checks of time-outs, made often, have checked after its end began."""
    made: list[Connection] = []
    check = Connection.check

    def checked(self: Connection, now: float) -> None:
        check(self, now)
        if self.writer.is_closing():
            made.append(self)

    monkeypatch.setattr(Connection, "check", checked)
    monkeypatch.setattr(server, "_CHECK_INTERVAL", 0.01)
    return made


async def send_much(_scope: Any, _receive: Any, send: Any) -> None:
    headers = [(b"content-length", b"%d" % MUCH), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": bytes(MUCH)})


async def test_a_slow_client_gets_all_of_an_answer_that_ends_its_connection(
    edge: ListenerEdge, context: ssl.SSLContext, checks: list[Connection]
) -> None:
    timeouts = ConnectionTimeouts(confirm=0.05)
    async with (
        served(edge, timeouts=timeouts, app=send_much) as running,
        running.connect(context) as caller,
    ):
        caller.writer.transport.pause_reading()  # type: ignore[attr-defined]
        caller.writer.write(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n")
        await until(lambda: len(checks) > 20)
        caller.writer.transport.resume_reading()  # type: ignore[attr-defined]

        answer = await caller.answer()

        assert len(answer.body) == MUCH
        assert await caller.ends()


async def test_clients_that_read_nothing_are_given_up(
    authority: Authority, context: ssl.SSLContext, checks: list[Connection]
) -> None:
    edge = ListenerEdge(tls=ListenerTls(authority.server()), per_address=1)
    for timeouts, app in (
        (ConnectionTimeouts(idle=0.05), send_much),  # what it has not read is below TLS
        (ConnectionTimeouts(confirm=0.05), None),  # it has all, and does not confirm the end
    ):
        async with (
            served(edge, timeouts=timeouts, app=app) as running,
            running.connect(context) as caller,
        ):
            caller.writer.transport.pause_reading()  # type: ignore[attr-defined]
            caller.writer.write(b"GET / HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n")
            await until(lambda: bool(checks))
            await until(lambda: not len(edge.counts))
        checks.clear()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tls_key": "key"}, "SLUICEGATE_TLS_CERTIFICATE"),
        ({"admin_tls_client_ca": "key"}, "SLUICEGATE_ADMIN_TLS_CERTIFICATE"),
        ({"tls_certificate": "missing"}, "cannot be read"),
        ({"tls_certificate": "other.pem", "tls_key": "key"}, "does not belong to the key"),
        ({"admin_tls_certificate": "other.pem", "admin_tls_client_ca": "text"}, "no certificates"),
        ({"trusted_proxies": "here"}, "SLUICEGATE_TRUSTED_PROXIES"),
        ({"proxy_protocol": True}, "SLUICEGATE_TRUSTED_PROXIES"),
    ],
)
def test_files_and_networks_that_cannot_be_used_are_refused(
    tmp_path: Path, settings: dict[str, object], message: str
) -> None:
    authority = Authority(tmp_path)
    authority.issue("other", "127.0.0.1")
    authority.pair("own", "127.0.0.1")[1].rename(tmp_path / "key")
    (tmp_path / "text").write_text("text")
    files = {
        name: tmp_path / value if "tls" in name else value  # type: ignore[operator]
        for name, value in settings.items()
    }

    with pytest.raises(ConfigurationError, match=message):
        check_listeners(Settings(**files))  # type: ignore[arg-type]


def shown(writer: asyncio.StreamWriter) -> bytes:
    """Return the certificate that the server has shown."""
    found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    return found


def test_metrics_have_no_addresses(registry: CollectorRegistry) -> None:
    EdgeMetrics(registry).refused("address")

    assert b'listener="customers",reason="address"' in generate_latest(registry)
