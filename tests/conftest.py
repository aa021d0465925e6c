"""Fixtures every test may use: the event loop's kind and the demo models, built once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from backends.demo.build import build_demo_models
from tests.support.valkey import Valkey


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let what chance decides be tried as often as wanted."""
    parser.addoption("--door-requests", type=int, default=3000, help="requests to both doors")
    parser.addoption("--cache-lookups", type=int, default=4000, help="look-ups, many cancelled")


@pytest.fixture
def anyio_backend() -> str:
    """Async tests run on asyncio, as the product does."""
    return "asyncio"


@pytest.fixture(scope="session")
def demo_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of the real demo models, built once a session."""
    target = tmp_path_factory.mktemp("demo-models")
    build_demo_models(target, progress=lambda _: None)
    return target


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[Valkey]:
    """One real Valkey for the session, which no test may stop; see `valkey`."""
    with Valkey() as server:
        yield server


@pytest.fixture
def valkey(valkey_server: Valkey) -> str:
    """The URL of a real and empty Valkey."""
    valkey_server.flush()
    return valkey_server.url
