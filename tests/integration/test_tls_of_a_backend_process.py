"""A backend process that serves TLS: its settings, SIGHUP, and whom it would have to trust."""

import http.client
import json
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from sluicegate.gateway.settings import process_environment
from sluicegate.wire.protocol import STATE_PATH
from testing.certificates import Authority
from testing.model_repository import write_repository
from testing.ports import free_port
from testing.waiting import wait_until

SERVE = (sys.executable, "-m", "sluicegate.backends", "serve", "--provider", "paced")
PREFIX = "SLUICEGATE_BACKEND_"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return write_repository(tmp_path / "models")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


def variables(**settings: object) -> dict[str, str]:
    told = {PREFIX + name.upper(): str(value) for name, value in settings.items()}
    return {**process_environment(), **told}


def request(port: int, path: str, context: ssl.SSLContext) -> tuple[int, bytes]:
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=20.0, context=context)
    with closing(connection):
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()


def is_ready(port: int, context: ssl.SSLContext) -> bool:
    try:
        return request(port, "/health/ready", context)[0] == 200
    except OSError:
        return False


@contextmanager
def serving(
    models: Path, port: int, context: ssl.SSLContext, **settings: object
) -> Iterator["subprocess.Popen[str]"]:
    command = [*SERVE, "--models", str(models), "--port", str(port)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=variables(**settings)
    ) as process:
        try:
            wait_until(lambda: process.poll() is not None or is_ready(port, context), within=60)
            yield process
        finally:
            process.kill()


def refused(models: Path, **settings: object) -> str:
    """Return the line with which a start ends."""
    result = subprocess.run(
        [*SERVE, "--models", str(models), "--port", "0"],
        capture_output=True,
        text=True,
        timeout=20.0,
        check=False,
        env=variables(**settings),
    )
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    return line


def test_it_serves_tls_and_takes_new_certificates_when_told(
    models: Path, authority: Authority, tmp_path: Path
) -> None:
    later = Authority(tmp_path / "later")
    trusting, trusting_later = (
        ssl.create_default_context(cafile=each.ca) for each in (authority, later)
    )
    certificate, port = authority.server(), free_port()
    own = authority.issue("gateway", "gateway")
    settings = {"tls_certificate": certificate, "tls_client_ca": authority.ca}
    with serving(models, port, trusting, **settings) as process:
        without_certificate = request(port, STATE_PATH, trusting)[0]
        trusting.load_cert_chain(own)
        status = request(port, STATE_PATH, trusting)[0]

        later.server().replace(certificate)
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: is_ready(port, trusting_later))
        with pytest.raises(ssl.SSLCertVerificationError):
            request(port, "/health/ready", trusting)

        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20.0)) as plain:
            plain.request("GET", "/health/ready")
            with pytest.raises(ConnectionError):
                plain.getresponse()
        process.send_signal(signal.SIGTERM)
        log, _ = process.communicate(timeout=60.0)

    assert (without_certificate, status, process.returncode) == (401, 200, 0)
    lines = [json.loads(line) for line in log.splitlines()]
    assert [line["message"] for line in lines if line["level"] == "info"] == [
        "backend started",
        "the certificates were read again",
        "backend stopped",
    ]
    assert "plain HTTP came where TLS is spoken" in log


def test_it_does_not_start_where_anybody_could_speak_for_any_tenant(models: Path) -> None:
    line = refused(models, host="0.0.0.0")  # noqa: S104 - what must be refused

    assert "`SLUICEGATE_BACKEND_TOKEN`" in line
    assert "`SLUICEGATE_BACKEND_TLS_CLIENT_CA`" in line


def test_certificates_that_cannot_be_used_are_one_line(
    models: Path, authority: Authority, tmp_path: Path
) -> None:
    chain, _ = authority.pair("one", "127.0.0.1")
    _, key = authority.pair("other", "127.0.0.1")
    missing = tmp_path / "missing.pem"

    assert f"`{missing}` cannot be read: No such file" in refused(models, tls_certificate=missing)
    assert "do not belong together" in refused(models, tls_certificate=chain, tls_key=key)
    assert "holds no PEM" in refused(models, tls_certificate=models / "mood/1/model.yaml")
    assert "_TLS_CERTIFICATE` is missing" in refused(models, tls_key=key)
