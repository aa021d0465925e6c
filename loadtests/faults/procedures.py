"""Rotates secrets, upgrades and restores the layout, as the documentation tells operators.

The functions raise `TopologyError` if the layout behaves wrongly.
"""

import secrets
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final  # Any: answers of the admin listener

import httpx
import msgspec

from gateway.settings import process_environment
from loadtests.containers import services
from loadtests.containers.images import PRESENT, next_version, tagged
from loadtests.containers.podman import HOME, run
from loadtests.containers.services import BALANCER_PORT, PREFIX, Service
from loadtests.faults.catalogue import Case
from loadtests.faults.containers import ADMIN_KEY, Containers
from loadtests.faults.topology import TopologyError
from testing.compose_files import ROOT
from testing.waiting import wait_until

_TOKEN: Final = "SLUICEGATE_BACKEND_TOKEN"  # noqa: S105 - the name of a variable
_SECOND_TOKEN: Final = "SLUICEGATE_BACKEND_SECOND_TOKEN"  # noqa: S105 - as above
_SECOND_ADMIN_KEY: Final = "SLUICEGATE_SECOND_ADMIN_KEY"
_LONGEST = 90.0
"""Seconds that the replacement of a container may take."""
_PAUSE = 2.0
"""Seconds of load between two replacements."""
_BALANCER = "load-balancer"
_OTHER_PORT = BALANCER_PORT + 1
_MOVED = 3.0
"""After this many seconds, nobody uses the former balancer, because exchanges are shorter."""
_ORDER = ("billing", "request-log", "gateway-", "backend-", "")
"""The order of an upgrade, by beginnings of names: the project's own services come first."""
_STATE = ("redis-state", "redis-state-replica")
_DATA = ["database", *_STATE, "sentinel-0", "sentinel-1", "sentinel-2"]
_USERS = ["gateway-1", "gateway-2", "billing", "request-log"]
_SAME_FOR = 5.0
LASTING_KEYS = (
    "local found = {} for _, key in ipairs(redis.call('KEYS', '*')) do"
    " if redis.call('PTTL', key) == -1 then"
    " found[#found + 1] = redis.call('TYPE', key).ok .. ' ' .. key end end"
    " table.sort(found) return found"
)
"""The query for the keys in a state Redis that do not expire, with their types: the event stream,
positions in it, the configuration. Other keys are limits, which may expire before a backup is
restored."""


@contextmanager
def rotation(layout: Containers, _: str) -> Iterator[None]:
    """Replace the backend token and the admin key."""
    old = layout.services["gateway-1"].environment
    token, keys = secrets.token_urlsafe(24), (old[ADMIN_KEY], secrets.token_urlsafe(24))
    both = {ADMIN_KEY: keys[1], _SECOND_ADMIN_KEY: keys[0]}
    # The kind of the services to change, their variables, of which an empty value removes one, and
    # whether a gateway then accepts the old and the new admin key.
    steps: tuple[tuple[str, dict[str, str], tuple[bool, ...]], ...] = (
        ("backend-", {_TOKEN: token, _SECOND_TOKEN: old[_TOKEN]}, ()),
        ("gateway-", {_TOKEN: token}, ()),
        ("backend-", {_SECOND_TOKEN: ""}, ()),
        ("gateway-", both, (True, True)),
        ("gateway-", {_SECOND_ADMIN_KEY: ""}, (False, True)),
    )
    for kind, variables, accepted in steps:
        for name in [name for name in layout.services if name.startswith(kind)]:
            former = layout.services[name]
            environment = {k: v for k, v in (former.environment | variables).items() if v}
            _replace(layout, msgspec.structs.replace(former, environment=environment))
            found = tuple(_is_accepted(layout, name, key) for key in keys if accepted)
            if found != accepted:
                raise TopologyError(f"{name}: old and new admin key accepted: {found}")
    layout.secrets[ADMIN_KEY] = keys[1]
    yield


def _is_accepted(layout: Containers, gateway: str, key: str) -> bool:
    with layout.admin(gateway, key) as admin:
        return admin.get("/admin/tenants").is_success


@contextmanager
def upgrade(layout: Containers, _: str) -> Iterator[None]:
    """Replace each container by its next version; the load balancer is last.

    The next version of one of the project's images has the tag of this release. The next version of
    another image has a new label.
    """

    def place(name: str) -> tuple[bool, int]:
        kind = next(n for n, kind in enumerate(_ORDER) if name.startswith(kind))
        return name == _BALANCER, kind

    for name in sorted(layout.services, key=place):
        service = layout.services[name]
        if not service.ends:
            own = service.image.startswith("localhost/")
            image = tagged(service.image, PRESENT) if own else next_version(service.image, name)
            _replace(layout, msgspec.structs.replace(service, image=image))
    yield


def _replace(layout: Containers, changed: Service) -> None:
    """Replace a container by a new, healthy one, and let the load run for a while."""
    name, began = changed.name, time.monotonic()
    if name == _BALANCER:
        _replace_balancer(layout, changed)
    else:
        if name in _STATE and _primary(layout) == name:
            _fail_over(layout, name)
        layout.replace(changed)
        if name in _STATE:
            _wait(lambda: _is_copied(layout, name), "the copy is complete")
    layout.services[name] = changed
    took = time.monotonic() - began
    print(f"  {name}: {took:.1f} s", flush=True)
    if took > _LONGEST:
        raise TopologyError(f"the replacement of {name} took {took:.0f} s")
    time.sleep(_PAUSE)


def _replace_balancer(layout: Containers, changed: Service) -> None:
    """Replace the balancer. In the meantime, callers use a second balancer.

    To callers, this is like an address that moves between balancers.
    """
    # The second balancer may have any address. Gateways do not know this address, so they take the
    # second balancer for the caller.
    networks = dict.fromkeys(changed.networks, "")
    second = msgspec.structs.replace(changed, name=f"{_BALANCER}-next", networks=networks)
    services.start(second, port=_OTHER_PORT)
    _wait(lambda: services.is_healthy(second), "the second balancer is healthy")
    layout.send_to(_OTHER_PORT)
    time.sleep(_MOVED)
    services.discard(changed)
    services.start(changed)
    layout.until_healthy([_BALANCER])
    layout.send_to(BALANCER_PORT)
    time.sleep(_MOVED)
    services.discard(second)


def _fail_over(layout: Containers, former: str) -> None:
    """Make another server the primary of the state Redis, and wait until all others follow."""
    # The Sentinels refuse the command while a failover is in progress, and until they know the
    # replica, which takes some 10 s.
    _wait(lambda: _sentinel(layout, "sentinel", "failover", "state") == "OK", "a failover begins")
    _wait(lambda: _primary(layout) != former, "there is another primary")
    _wait(lambda: _is_copied(layout, former), "the former primary follows")


def _primary(layout: Containers) -> str:
    """Return the service that the Sentinels name as the primary of the state Redis."""
    return _sentinel(layout, "sentinel", "get-master-addr-by-name", "state").split()[0]


def _sentinel(layout: Containers, *words: str) -> str:
    return _redis(layout, "sentinel-0", "-p", "26379", *words)


def _is_copied(layout: Containers, name: str) -> bool:
    return "master_link_status:up" in _redis(layout, name, "info", "replication")


def _redis(layout: Containers, name: str, *words: str) -> str:
    """Return the answer of a Redis or a Sentinel; "" if it does not answer."""
    container = layout.services[name].container
    return run("exec", container, "redis-cli", *words, check=False).strip()


def restored(case: Case) -> Iterator[str]:
    """Back up ledger and state, delete them, and restore them into empty volumes.

    Yield each difference between the data before and after, with the keys and tenants of the
    ledger.
    """
    layout: Containers = case.topology
    seen: list[Any] = [None]

    def is_at_rest() -> bool:
        seen.append(_ledger(layout))
        return bool(seen[-1] == seen[-2])

    _wait(is_at_rest, "the ledger is at rest", every=_SAME_FOR)
    ledger, state, config = seen[-1], _state(layout, _primary(layout)), _config(layout)
    if not state:
        raise TopologyError("the state Redis has nothing that a restore could bring back")
    with tempfile.TemporaryDirectory(dir=HOME) as folder:
        _script("backup.sh", folder)
        if _ledger(layout) != ledger:
            raise TopologyError("the ledger changed during the backup although nobody used it")
        yield from _lose_data(layout)
        _script("restore.sh", folder)
    if _ledger(layout) != ledger:
        yield "the ledger is not as before the restore"
    with suppress(AssertionError):  # the next step compares the same
        _wait(lambda: _is_on_both(layout, state), "the replica is whole")
    if not _is_on_both(layout, state):
        yield "the state is not as before the restore, or its servers differ"
    layout.start_services(_USERS)
    layout.until_healthy(layout.services)
    if _config(layout) != config:
        yield "the configuration is not as before the restore"
    yield from _refused_keys(layout)


def _refused_keys(layout: Containers) -> Iterator[str]:
    url = f"http://127.0.0.1:{BALANCER_PORT}/v1/models"
    for tenant, key in layout.keys.items():
        headers = {"authorization": f"Bearer {key}"}
        if not httpx.get(url, headers=headers, timeout=30.0).is_success:
            yield f"the key of {tenant} is not accepted after the restore"


def _lose_data(layout: Containers) -> Iterator[str]:
    """Replace every server that has data by one with an empty volume."""
    for name in [*_USERS, *_DATA]:
        services.discard(layout.services[name])
    for name in _DATA:
        for disk in layout.services[name].disks[:1]:
            services.remove_volume(disk)
    layout.start_services(_DATA)
    seen = "slaves=1,sentinels=3"
    _wait(lambda: seen in _sentinel(layout, "info", "sentinel"), "Sentinel sees the replica")
    if _ledger(layout) or _state(layout, _STATE[0]):
        yield "the volumes were not empty"


def _script(name: str, folder: str) -> None:
    own = {
        "CONTAINERS_CONF": str(HOME / "containers.conf"),
        "SLUICEGATE_EXEC": "podman exec -i",
        "SLUICEGATE_PREFIX": PREFIX,
    }
    done = subprocess.run(
        [str(ROOT / "deploy" / name), folder],
        env={**process_environment(), **own},
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise TopologyError(f"deploy/{name}: {done.stderr.strip()[-2000:]}")


def _config(layout: Containers) -> Any:
    with layout.admin() as admin:
        found = admin.get("/admin/config").raise_for_status().json()
    return found | {"workers": None}


def _state(layout: Containers, name: str) -> list[str]:
    return _redis(layout, name, "-e", "eval", LASTING_KEYS, "0").splitlines()


def _is_on_both(layout: Containers, state: list[str]) -> bool:
    return all(_state(layout, name) == state for name in _STATE)


def _ledger(layout: Containers) -> dict[str, list[str]]:
    """Return the number of rows and a digest of each table."""
    tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1"
    digest = "SELECT count(*), md5(string_agg(t::text, E'\\n' ORDER BY t::text)) FROM"
    return {
        table: layout.ask_ledger(f'{digest} "{table}" AS t')[0]
        for (table,) in layout.ask_ledger(tables)
    }


def _wait(holds: Callable[[], bool], what: str, *, every: float = 0.25) -> None:
    wait_until(holds, within=60.0, what=what, every=every)
