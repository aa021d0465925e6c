"""Gateway and backend over TLS: real sockets, and certificates made for each test."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sluicegate.backends.api.tls import ServerTls
from sluicegate.gateway.config.document import RoutingConfig
from sluicegate.gateway.types import Endpoint
from sluicegate.gateway.upstream import http
from sluicegate.gateway.upstream.base import CallFailed, Cause
from sluicegate.gateway.upstream.http import HttpBackendClient
from sluicegate.gateway.upstream.httpx_transport import HttpxTransport
from sluicegate.gateway.upstream.tls import ClientTls
from sluicegate.gateway.upstream.transport import BackendTransport
from sluicegate.wire.protocol import Call, CallItem, ClassifyParameters, Done, Failed, Task
from testing.certificates import Authority
from testing.model_repository import write_repository
from testing.raw_http import post
from testing.stub_backend import StubBackend
from testing.waiting import eventually, until
from tests.support.dispatching import call_backend
from tests.support.listening_backend import listening_backend
from tests.support.worker import RunningWorker, classify, running_worker

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[BackendTransport, HttpxTransport], ids=["native", "httpx"], autouse=True)
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "BackendTransport", request.param)
    # On a busy machine a handshake takes longer than half a second.
    patient = partial(RoutingConfig, connect_timeout=PATIENCE)
    monkeypatch.setattr(http, "RoutingConfig", patient)


PATIENCE = 60.0


def server_tls(certificate: Path, *, client_ca: Path | None = None) -> ServerTls:
    return ServerTls(certificate, client_ca=client_ca)


def client_tls(ca: Path, *, certificate: Path | None = None) -> ClientTls:
    return ClientTls(ca=ca, certificate=certificate)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return write_repository(tmp_path / "models")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "stranger")


async def classified(client: HttpBackendClient, endpoint: Endpoint) -> list[Done | Failed]:
    state = await client.state(endpoint, time_limit=PATIENCE)
    info = next(model for model in state.models if model.name == "mood")
    call = Call(
        model="mood",
        revision=info.revision,
        profile=info.profile,
        task=Task.CLASSIFY,
        parameters=msgspec.msgpack.encode(ClassifyParameters()),
        items=[CallItem(body=msgspec.msgpack.encode("good"), remaining=PATIENCE, scope="t")],
    )
    received: list[Done | Failed] = []
    deadline = asyncio.get_running_loop().time() + PATIENCE
    await call_backend(
        client, endpoint, call, deadline=deadline, idle_timeout=PATIENCE, receive=received.extend
    )
    return received


async def refusal(client: HttpBackendClient, endpoint: Endpoint) -> CallFailed:
    with pytest.raises(CallFailed) as caught:
        await client.state(endpoint, time_limit=PATIENCE)
    return caught.value


def reasons(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.reason for record in caplog.records if hasattr(record, "reason")]


async def test_calls_are_answered_over_tls(models: Path, authority: Authority) -> None:
    async with (
        listening_backend(models, server_tls(authority.server())) as listening,
        HttpBackendClient(tls=client_tls(authority.ca)) as client,
    ):
        (outcome,) = await classified(client, listening.endpoint())

    assert isinstance(outcome, Done)


async def test_with_a_client_ca_work_is_done_for_who_has_a_certificate_only(
    models: Path, authority: Authority
) -> None:
    tls = server_tls(authority.server(), client_ca=authority.ca)
    known = client_tls(authority.ca, certificate=authority.issue("gateway", "gateway"))
    async with (
        listening_backend(models, tls, tls_client_ca=authority.ca) as listening,
        HttpBackendClient(tls=known) as client,
        HttpBackendClient(tls=client_tls(authority.ca)) as nobody,
    ):
        (outcome,) = await classified(client, listening.endpoint())
        refused = await refusal(nobody, listening.endpoint())
        health = await listening.backend.get("/health/ready")

    assert isinstance(outcome, Done)
    assert (refused.cause, refused.status) == (Cause.REFUSED, 401)
    assert refused.detail == "a client certificate is missing"
    assert health.status == 200


async def test_secret_and_certificate_are_both_asked_for_where_both_are_set(
    models: Path, authority: Authority
) -> None:
    tls = server_tls(authority.server(), client_ca=authority.ca)
    known = client_tls(authority.ca, certificate=authority.issue("gateway", "gateway"))
    settings: dict[str, Any] = {"tls_client_ca": authority.ca, "token": "a shared secret"}
    async with (
        listening_backend(models, tls, **settings) as listening,
        HttpBackendClient(tls=known) as without_secret,
        HttpBackendClient(tls=client_tls(authority.ca), token="a shared secret") as without_it,
        HttpBackendClient(tls=known, token="a shared secret") as client,
    ):
        statuses = [
            (await refusal(each, listening.endpoint())).status
            for each in (without_secret, without_it)
        ]
        (outcome,) = await classified(client, listening.endpoint())

    assert statuses == [401, 401]
    assert isinstance(outcome, Done)


async def test_a_certificate_of_a_strange_ca_opens_nothing_and_both_sides_say_so(
    models: Path, authority: Authority, stranger: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    tls = server_tls(authority.server(), client_ca=authority.ca)
    strange = client_tls(authority.ca, certificate=stranger.issue("gateway", "gateway"))
    async with (
        listening_backend(models, tls, tls_client_ca=authority.ca) as listening,
        HttpBackendClient(tls=strange) as client,
    ):
        refused = [await refusal(client, listening.endpoint()) for _ in range(2)]

    assert {each.cause for each in refused} == {Cause.UNREACHABLE}
    assert "is our certificate accepted?" in refused[0].detail
    assert reasons(caplog) == [
        "the client's certificate is not accepted: unable to get local issuer certificate"
    ]


Scene = tuple[Path, ClientTls, str]


def wrong_ca(authority: Authority, stranger: Authority) -> Scene:
    return authority.server(), client_tls(stranger.ca), "unable to get local issuer certificate"


def expired(authority: Authority, stranger: Authority) -> Scene:
    return authority.server(expired=True), client_tls(authority.ca), "certificate has expired"


def wrong_host(authority: Authority, stranger: Authority) -> Scene:
    return authority.server(hosts=("other.example",)), client_tls(authority.ca), "address mismatch"


@pytest.mark.parametrize("scene", [wrong_ca, expired, wrong_host])
async def test_a_certificate_that_is_not_right_is_told_in_words(
    models: Path,
    authority: Authority,
    stranger: Authority,
    scene: Callable[[Authority, Authority], Scene],
) -> None:
    certificate, tls, said = scene(authority, stranger)
    async with (
        listening_backend(models, server_tls(certificate)) as listening,
        HttpBackendClient(tls=tls) as client,
    ):
        refused = await refusal(client, listening.endpoint())

    assert refused.cause is Cause.UNREACHABLE
    assert refused.retryable
    assert "its certificate is not accepted" in refused.detail
    assert said in refused.detail


async def test_a_server_name_takes_the_place_of_an_address(
    models: Path, authority: Authority
) -> None:
    certificate = authority.server(hosts=("backends.example",))
    async with (
        listening_backend(models, server_tls(certificate)) as listening,
        HttpBackendClient(tls=client_tls(authority.ca)) as client,
    ):
        (outcome,) = await classified(client, listening.endpoint(server_name="backends.example"))
        refused = await refusal(client, listening.endpoint(server_name="strangers.example"))

    assert isinstance(outcome, Done)
    assert "strangers.example" in refused.detail


async def test_http_to_a_tls_port_is_told_on_both_sides(
    models: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        listening_backend(models, server_tls(authority.server())) as listening,
        HttpBackendClient() as client,
    ):
        refused = await refusal(client, listening.endpoint(scheme="http"))

    assert refused.cause is Cause.UNREACHABLE
    assert "should the URL be `https://`?" in refused.detail
    assert reasons(caplog) == [
        "plain HTTP came where TLS is spoken: the URL must begin with `https://`"
    ]


async def test_tls_to_an_http_port_is_told(models: Path, authority: Authority) -> None:
    async with (
        listening_backend(models) as listening,
        HttpBackendClient(tls=client_tls(authority.ca)) as client,
    ):
        refused = await refusal(client, listening.endpoint(scheme="https"))

    assert refused.cause is Cause.UNREACHABLE
    assert "no TLS is spoken there" in refused.detail


async def test_new_certificates_are_used_without_a_restart(
    models: Path, tmp_path: Path, authority: Authority, stranger: Authority
) -> None:
    """Both sides change to another authority; what was trusted before no longer is."""
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(authority.ca.read_bytes())
    server = authority.server()
    own = authority.issue("gateway", "gateway")
    of_before = client_tls(authority.ca, certificate=stranger.issue("kept", "gateway"))
    tls = server_tls(server, client_ca=trusted)
    told = asyncio.Event()
    async with (
        listening_backend(models, tls, tls_client_ca=trusted) as listening,
        HttpBackendClient(tls=client_tls(trusted, certificate=own), look_interval=0.01) as client,
        HttpBackendClient(tls=of_before) as left_behind,
    ):
        following = asyncio.create_task(tls.follow(told, interval=60.0))
        before = await classified(client, listening.endpoint())

        for issued, path in ((stranger.server(), server), (stranger.issue("g", "gateway"), own)):
            path.write_bytes(issued.read_bytes())
        trusted.write_bytes(stranger.ca.read_bytes())
        told.set()
        await eventually(lambda: can_call(client, listening.endpoint()))
        await eventually(lambda: is_refused(left_behind, listening.endpoint()))
        # Connections of before may have answered until now: the next look finds the new files.
        await eventually(lambda: can_classify(client, listening.endpoint()))
        following.cancel()

    assert isinstance(before[0], Done)


async def can_classify(client: HttpBackendClient, endpoint: Endpoint) -> bool:
    try:
        (outcome, *_) = await classified(client, endpoint)
    except CallFailed:
        return False
    return isinstance(outcome, Done)


async def can_call(client: HttpBackendClient, endpoint: Endpoint) -> bool:
    return not await is_refused(client, endpoint)


async def is_refused(client: HttpBackendClient, endpoint: Endpoint) -> bool:
    try:
        await client.state(endpoint, time_limit=PATIENCE)
    except CallFailed:
        return True
    return False


async def test_files_that_cannot_be_used_change_nothing(
    models: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    server = authority.server()
    tls = server_tls(server)
    own = client_tls(authority.ca, certificate=authority.issue("gateway", "gateway"))
    async with (
        listening_backend(models, tls) as listening,
        HttpBackendClient(tls=own, look_interval=0.01) as client,
    ):
        following = asyncio.create_task(tls.follow(asyncio.Event(), interval=0.01))
        server.write_text("half of it")
        authority.ca.write_text("half of it")
        await until(lambda: len(reasons(caplog)) == 2)
        (outcome,) = await classified(client, listening.endpoint())
        following.cancel()

    assert isinstance(outcome, Done)
    assert len(reasons(caplog)) == 2


async def test_requests_go_to_others_while_a_certificate_is_not_accepted(
    tmp_path: Path,
    valkey: str,
    authority: Authority,
    stranger: Authority,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    bad, good = stranger.server(), authority.server()
    async with (
        StubBackend(backend_id="eu-0", region="eu", certificate=bad) as strange,
        StubBackend(backend_id="us-0", region="us", certificate=good) as trusted,
        running_worker(tmp_path, valkey, [strange, trusted], upstream_ca=authority.ca) as worker,
    ):
        answers = [await ask(worker, f"text {number}") for number in range(5)]
        told = [r for r in caplog.records if r.message == "a backend did not pass its probe"]

    assert {answer["backend"] for answer in answers} == {"us-0"}
    assert not strange.calls
    assert {(record.backend, record.region) for record in told} == {("eu-0", "eu")}  # type: ignore[attr-defined]
    assert any("its certificate is not accepted" in record.reason for record in told)  # type: ignore[attr-defined]


async def ask(worker: RunningWorker, text: str) -> dict[str, str]:
    async with worker.connect() as connection:
        await connection.send(post("/v1/classify", classify(text)))
        response = await connection.response()
    assert response.status == 200, response.body
    found: dict[str, str] = response.json()["results"][0]
    return found
