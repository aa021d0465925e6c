"""The operators' listener over TLS, with certificates of operators, and those that call it."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from prometheus_client import CollectorRegistry

from sluicegate.gateway.admin.serve import serve_admin
from sluicegate.gateway.auth.keys import hash_key, new_key
from sluicegate.gateway.cli.root import main
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.supervisor.local_http import ask
from sluicegate.gateway.supervisor.probes import probe_http
from sluicegate.gateway.supervisor.reload import reload_configuration
from sluicegate.gateway.supervisor.topology import preface_of_admin
from testing.certificates import Authority
from testing.waiting import wait_until
from tests.support.admin import KEY


@pytest.fixture(scope="module")
def operators(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("operators"))


@pytest.fixture
def listener(settings: Settings, operators: Authority) -> Iterator[Settings]:
    """The listener with a certificate for another host, as its process runs it."""
    servers = Authority(settings.data_dir / "servers")
    guarded = msgspec.structs.replace(
        settings,
        admin_tls_certificate=servers.issue("server", "gateway.example"),
        admin_tls_client_ca=operators.ca,
    )
    Ledger.create(guarded.ledger).close()
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    serving = serve_admin(guarded, stop=stop, registry=CollectorRegistry())
    thread = threading.Thread(target=lambda: loop.run_until_complete(serving))
    thread.start()
    wait_until(lambda: not probed(guarded), what="the listener is ready")
    yield guarded
    loop.call_soon_threadsafe(stop.set)
    thread.join(timeout=60)
    loop.close()


def probed(settings: Settings) -> str:
    """Return what the supervisor finds missing."""
    preface = preface_of_admin(settings)
    return asyncio.run(probe_http("127.0.0.1", settings.admin_port, preface))


async def scrape(settings: Settings, key: str) -> int:
    """Return the status of an answer to Prometheus, which has no certificate."""
    preface, headers = preface_of_admin(settings), {"authorization": f"Bearer {key}"}
    port = settings.admin_port
    status, _ = await ask("127.0.0.1", port, "/metrics", headers=headers, preface=preface)
    return status


def tenants(settings: Settings, *options: str) -> Result:
    environment = {"SLUICEGATE_DATA_DIR": str(settings.data_dir), "SLUICEGATE_ADMIN_KEY": KEY}
    return CliRunner().invoke(main, ["keys", "list", *options], env=environment)


def test_operators_need_a_certificate_beside_the_key_and_the_supervisor_and_prometheus_none(
    listener: Settings, operators: Authority, tmp_path: Path
) -> None:
    own = ("--admin-certificate", str(operators.issue("operator", "operator")))
    strange = Authority(tmp_path / "strangers").issue("stranger", "stranger")
    said: list[str] = []

    known, unknown = tenants(listener, *own), tenants(listener)
    stranger = tenants(listener, "--admin-certificate", str(strange))
    asyncio.run(reload_configuration(listener, KEY, said.append))
    scraped, stolen = (asyncio.run(scrape(listener, key)) for key in (KEY, "other"))

    assert (scraped, stolen) == (200, 401)
    assert known.exit_code == 0, known.output
    assert "a client certificate is missing" in unknown.output
    assert (unknown.exit_code != 0, stranger.exit_code != 0) == (True, True)
    assert said[0].startswith("the configuration is at generation 1")


def test_a_stolen_key_of_an_operator_publishes_no_folder_without_a_certificate(
    listener: Settings,
) -> None:
    said: list[str] = []
    key = new_key("op")
    with Ledger.create(listener.ledger) as ledger:
        ledger.operators.create("olga", roles=["operator"], key_hash=hash_key(key))
    wait_until(lambda: asyncio.run(scrape(listener, key)) == 200, what="the key is known")

    asyncio.run(reload_configuration(listener, key, said.append))

    assert "a client certificate is missing" in said[0]


def test_commands_send_the_key_to_the_certificate_of_the_instance_alone(
    listener: Settings, operators: Authority
) -> None:
    own = ("--admin-certificate", str(operators.issue("operator", "operator")))
    url = f"https://127.0.0.1:{listener.admin_port}"
    elsewhere = ("--admin-url", url, "--admin-key", KEY)

    unverified = CliRunner().invoke(main, ["keys", "list", *own, *elsewhere])
    assert listener.admin_tls_certificate is not None
    Authority(listener.data_dir / "others").issue("other", "gateway.example").replace(
        listener.admin_tls_certificate
    )
    replaced = tenants(listener, *own)

    assert "CERTIFICATE_VERIFY_FAILED" in unverified.output
    assert "CERTIFICATE_VERIFY_FAILED" in replaced.output
    assert "another certificate" in replaced.output
    assert "another certificate" not in unverified.output
