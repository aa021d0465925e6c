"""What `sluicegate up` would run."""

import random
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from sluicegate.gateway.config.load import WORKER_BASE_BYTES
from sluicegate.gateway.settings import Settings, load_settings
from sluicegate.gateway.supervisor.data_directory import Credentials, DataDirectory, open_directory
from sluicegate.gateway.supervisor.errors import CannotStart
from sluicegate.gateway.supervisor.machine import available_memory
from sluicegate.gateway.supervisor.plan import ProcessPlan, UpOptions, plan_up, write_placement
from sluicegate.gateway.supervisor.spec import ProcessRole, ProcessSpec, is_started
from sluicegate.gateway.supervisor.topology import backend_specs, reachable
from sluicegate.gateway.supervisor.up import check_configuration, check_models
from sluicegate.gateway.supervisor.valkey import url
from tests.support.config_texts import load_text

KEYS = Credentials(admin_key="the-admin-key-0123", demo_key="the-demo-key-01234")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[DataDirectory]:
    with open_directory(tmp_path / "d", lambda _: None) as opened:
        yield opened


@pytest.fixture
def plan(directory: DataDirectory) -> Iterator[ProcessPlan]:
    with socket.socket() as first, socket.socket() as second, socket.socket() as admin:
        yield plan_up(
            Settings(),
            UpOptions(workers=2, regions=("eu", "us")),
            directory=directory,
            keys=KEYS,
            workers=(first, second),
            admin=admin,
        )


def everybody(plan: ProcessPlan) -> list[ProcessSpec]:
    return [*plan.valkeys, *plan.backends, *plan.others]


def test_every_role_runs_once_but_a_backend_for_each_region_and_every_worker(
    plan: ProcessPlan,
) -> None:
    roles = [spec.role for spec in everybody(plan)]

    assert sorted(set(roles)) == sorted(set(ProcessRole) - {ProcessRole.SUPERVISOR})
    assert roles.count(ProcessRole.GATEWAY) == 2
    assert [spec.region for spec in plan.backends] == ["eu", "us"]
    assert len({spec.name for spec in everybody(plan)}) == len(roles)


def test_children_get_the_settings_of_the_plan(plan: ProcessPlan, directory: DataDirectory) -> None:
    workers = [spec for spec in plan.others if spec.role is ProcessRole.GATEWAY]
    loaded = [load_settings(spec.environment) for spec in workers]

    assert [settings.worker for settings in loaded] == ["0", "1"]
    assert loaded[0].listen_fd != loaded[1].listen_fd
    assert loaded[0].data_dir == directory.root
    assert loaded[0].placement == directory.placement
    assert loaded[0].secret
    assert loaded[0].cache_url == url(plan.valkeys[0])


def test_only_the_admin_process_is_told_the_admin_key(plan: ProcessPlan) -> None:
    told = [spec.role for spec in everybody(plan) if KEYS.admin_key in spec.environment.values()]

    assert told == [ProcessRole.ADMIN]


def test_no_key_is_on_a_command_line(plan: ProcessPlan) -> None:
    words = " ".join(word for spec in everybody(plan) for word in spec.argv)

    assert KEYS.admin_key not in words
    assert KEYS.demo_key not in words


def test_the_placement_is_what_the_gateway_reads(plan: ProcessPlan, tmp_path: Path) -> None:
    path = tmp_path / "placement.yaml"

    write_placement(path, plan.backends)
    document = load_text("", placement=path)

    assert [region.name for region in document.regions] == ["eu", "us"]
    backend = document.regions[0].pools[0].backends[0]
    assert (backend.id, backend.url) == ("eu-0", plan.backends[0].address)


def test_backends_get_different_ports() -> None:
    specs = backend_specs(
        ("a", "b", "c", "d"), models=Path("m"), settings=Settings(), choose=random.Random()
    )

    assert len({spec.address for spec in specs}) == 4


def test_a_valkey_url_survives_an_odd_path(plan: ProcessPlan) -> None:
    odd = msgspec.structs.replace(plan.valkeys[0], address="unix:/a b/100%/c.sock")

    assert url(odd) == "unix:///a%20b/100%25/c.sock?db=0"


def test_a_listener_on_every_address_is_asked_on_loopback() -> None:
    assert reachable("::") == "::1"
    assert reachable("10.1.2.3") == "10.1.2.3"


@pytest.mark.parametrize("demo_models", [False, True])
def test_a_repository_of_the_users_gets_demo_models_beside_it_on_request_only(
    directory: DataDirectory, tmp_path: Path, *, demo_models: bool
) -> None:
    """Those are built in the data directory; nothing is ever built into the user's folder."""
    with socket.socket() as worker, socket.socket() as admin:
        planned = plan_up(
            Settings(),
            UpOptions(
                workers=1, regions=("eu",), models=tmp_path / "mine", demo_models=demo_models
            ),
            directory=directory,
            keys=KEYS,
            workers=(worker,),
            admin=admin,
        )

    (backend,) = planned.backends
    assert str(tmp_path / "mine") in backend.argv
    assert planned.demo_models == (directory.root / "models" if demo_models else None)
    assert ("--more-models" in backend.argv) is demo_models


def test_without_a_repository_the_demo_models_are_served(
    plan: ProcessPlan, directory: DataDirectory
) -> None:
    assert plan.demo_models == plan.models == directory.root / "models"
    assert all("--more-models" not in spec.argv for spec in plan.backends)


@pytest.mark.parametrize(("name", "reason"), [("nowhere", "does not exist"), ("", "no model")])
def test_a_repository_without_models_is_refused_before_anything_starts(
    tmp_path: Path, name: str, reason: str
) -> None:
    options = UpOptions(workers=1, regions=("eu",), models=tmp_path / name)

    with pytest.raises(CannotStart, match=reason):
        check_models(options)


def test_a_bound_on_memory_that_a_full_cache_would_break_is_refused(tmp_path: Path) -> None:
    cache = Settings().memory_limit_bytes
    (tmp_path / "gateway.yaml").write_text(f"{{cache: {{memory_bytes: {cache}}}}}")
    allowed = cache + WORKER_BASE_BYTES

    with pytest.raises(CannotStart, match=f" {allowed}"):
        check_configuration(Settings(config=tmp_path))

    check_configuration(Settings(config=tmp_path, memory_limit_bytes=allowed))
    check_configuration(Settings(config=tmp_path, memory_limit_bytes=0))


def test_backends_have_a_bound_on_their_memory(plan: ProcessPlan) -> None:
    bounds = [spec.memory_bytes for spec in plan.backends]

    assert min(bounds) > 0
    assert sum(bounds) <= available_memory()


@pytest.mark.parametrize(("asked", "bounds"), [(None, [400, 400]), (0, [0, 0]), (7, [7, 7])])
def test_backends_share_the_memory_unless_the_settings_say_more(
    asked: int | None, bounds: list[int]
) -> None:
    specs = backend_specs(
        ("eu", "us"),
        models=Path("models"),
        settings=Settings(backend_memory_limit_bytes=asked),
        choose=random.Random(1),
        memory=1000,
    )

    assert [spec.memory_bytes for spec in specs] == bounds


def test_children_are_watched_and_workers_have_each_others_sockets(plan: ProcessPlan) -> None:
    first, second = (spec for spec in plan.others if spec.role is ProcessRole.GATEWAY)

    assert all(spec.silent_within >= 10.0 for spec in everybody(plan))
    assert all(spec.heartbeat_variable for spec in (*plan.backends, *plan.others))
    assert all(spec.probe is not is_started for spec in plan.valkeys)
    assert first.siblings == (second.listener,)
    assert second.siblings == (first.listener,)
    assert load_settings(first.environment).sibling_fds == str(_fd(second))


def _fd(spec: ProcessSpec) -> int:
    assert spec.listener is not None
    return spec.listener.fileno()
