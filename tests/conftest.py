"""Fixtures every test may use: the event loop's kind, the demo models built once, databases."""

import fcntl
import gc
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from sluicegate.backends.model_tools.demo.build import build_demo_models
from sluicegate.backends.model_tools.demo.encoder import write_encoder
from sluicegate.backends.model_tools.demo.source import find_source
from sluicegate.gateway.settings import process_environment
from testing.postgresql import PostgreSQL, programs
from testing.valkey import Valkey
from tests.support.ledgers import ledger_url
from tests.support.progress import Progress

_ALLOCATIONS = 20_000
"""Objects between two collections of garbage. Python's default is 700, and costs more time."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let what chance decides be tried as often as wanted."""
    parser.addoption("--entry-point-requests", type=int, default=1000, help="requests to both")
    parser.addoption("--fuzz-seed", type=int, default=20261121, help="of requests by chance")
    parser.addoption("--cache-lookups", type=int, default=4000, help="look-ups, many cancelled")


# No example fails because a machine is slow.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Let systems that tests start bill sooner than once a second, as tests wait for that.

    They shed no load: on a machine that is slow enough, a test's few callers are too many.
    """
    terminal = config.pluginmanager.getplugin("terminalreporter")
    if terminal is not None and config.getoption("numprocesses", None):
        config.pluginmanager.register(Progress(terminal))
    process_environment().setdefault("SLUICEGATE_EVENTS_INTERVAL", "0.25")
    process_environment().setdefault("SLUICEGATE_MAX_LOOP_DELAY", "0")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Let the first process of several compile the modules of all tests, which the others read.

    That takes 16 s of a processor, which each of them would spend if they began together. What is
    collected stays until the end: garbage is looked for in what tests make alone.
    """
    gc.disable()
    run, cache = process_environment().get("PYTEST_XDIST_TESTRUNUID"), session.config.cache
    if run is None or cache is None:
        return _freeze((yield))
    with (cache.mkdir("collection") / "compiled-in-run").open("a+") as compiled_in:
        fcntl.flock(compiled_in, fcntl.LOCK_EX)
        compiled_in.seek(0)
        is_first = compiled_in.read() != run
        if not is_first:
            fcntl.flock(compiled_in, fcntl.LOCK_UN)
        result = yield
        if is_first:
            compiled_in.truncate(0)
            compiled_in.write(run)
        return _freeze(result)


def _freeze(result: object) -> object:
    gc.freeze()
    gc.enable()
    gc.set_threshold(_ALLOCATIONS)
    return result


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config) -> Generator[None, Any, Any]:
    """Let one process run all files of a package: they share a fixture of that scope."""

    def package_or_file(nodeid: str) -> str:
        path = config.rootpath / nodeid.partition("::")[0]
        return str(path.parent if path.with_name("__init__.py").exists() else path)

    scheduler = yield
    scheduler._split_scope = package_or_file
    return scheduler


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests run on asyncio, as the product does.

    Each has a loop of its own, or that of its module's asynchronous fixtures.
    """
    return "asyncio"


@pytest.fixture(scope="session")
def demo_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of the real demo models, built once a session, which no test may change."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in process_environment():
        # Of all the processes of the session: the first one builds, and the others wait.
        folder = folder.parent
    target = folder / "demo-models"
    build_demo_models(target, progress=lambda _: None)
    return target


@pytest.fixture(scope="session")
def light_models(demo_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of `minilm` with 2 layers and `sentiment` on it, which no test may change.

    For systems whose starts, stops and loads are tested: a start takes half the processor time.
    """
    root = tmp_path_factory.mktemp("light") / "models"
    encoder = root / "minilm" / "1"
    encoder.mkdir(parents=True)
    write_encoder(find_source(), encoder, layers=2)
    shutil.copy(demo_models / "minilm" / "1" / "model.yaml", encoder)
    shutil.copytree(demo_models / "sentiment" / "1", root / "sentiment" / "1")
    return root


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


@pytest.fixture
def own_valkey() -> Iterator[Valkey]:
    """A server of the test's own, which it may stop or kill."""
    with Valkey() as server:
        yield server


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    """One real PostgreSQL for the session; see `database`."""
    folder = programs()
    if folder is None:
        pytest.skip("PostgreSQL is not installed (make install-system)")
    with PostgreSQL(folder) as server:
        yield server


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.system)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database for a ledger, of either kind."""
    if request.param == "sqlite":
        return ledger_url(tmp_path)
    server: PostgreSQL = request.getfixturevalue("postgresql")
    return server.database()
