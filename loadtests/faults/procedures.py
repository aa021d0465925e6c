"""Rotates secrets, upgrades and restores the layout, as the documentation tells operators.

Each function blocks, and raises `TopologyError` if the layout behaves wrongly.
"""

import contextlib
import secrets
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final  # Any: answers of the admin listener

import httpx
import msgspec

from gateway.settings import process_environment
from loadtests.containers import services
from loadtests.containers.images import PRESENT, tagged
from loadtests.containers.podman import HOME, inspect, run
from loadtests.containers.services import BALANCER_PORT, PREFIX, Service
from loadtests.faults.containers import ADMIN_KEY, Containers
from loadtests.faults.topology import TopologyError
from testing.compose_files import ROOT
from testing.waiting import wait_until

Step = tuple[str, Callable[[], None]]
"""The name of a step, and the function that takes it."""
TOKEN: Final = "SLUICEGATE_BACKEND_TOKEN"  # noqa: S105 - the name of a variable
SECOND_TOKEN: Final = "SLUICEGATE_BACKEND_SECOND_TOKEN"  # noqa: S105 - as above
SECOND_ADMIN_KEY: Final = "SLUICEGATE_SECOND_ADMIN_KEY"
_LONGEST = 90.0
"""Seconds that a step may take."""
_BALANCER = "load-balancer"
_OTHER_PORT = BALANCER_PORT + 1
_MOVED = 3.0
"""After this many seconds, nobody uses the former balancer, because exchanges are shorter."""
_PAUSE = 2.0
"""Seconds of load between two steps."""
_FAILOVER, _LOOK = 60.0, 0.25
_FIRST = ("billing", "request-log", "gateway-", "backend-")
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


def take(steps: Iterator[Step]) -> None:
    """Take steps one after another, and let the load run for a while after each step."""
    for name, act in steps:
        began = time.monotonic()
        act()
        took = time.monotonic() - began
        print(f"  {name}: {took:.1f} s", flush=True)
        if took > _LONGEST:
            raise TopologyError(f"{name} took {took:.0f} s")
        time.sleep(_PAUSE)


# --- Rotation of the backend token and the admin key


class Restart(msgspec.Struct, frozen=True):
    """A container to create again with other variables. An empty value removes the variable."""

    why: str
    service: str
    variables: dict[str, str]
    accepted: tuple[bool, ...] = ()
    """For the old and the new admin key: whether the gateway accepts this key afterwards."""


def restarts(found: Mapping[str, Service], token: str, admin_key: str) -> list[Restart]:
    """Return the restarts that replace the backend token and the admin key, in order.

    Each restart creates one container again.
    """
    old = found["gateway-1"].environment
    both = {ADMIN_KEY: admin_key, SECOND_ADMIN_KEY: old[ADMIN_KEY]}
    steps: tuple[tuple[str, str, dict[str, str], tuple[bool, ...]], ...] = (
        ("accepts both tokens", "backend-", {TOKEN: token, SECOND_TOKEN: old[TOKEN]}, ()),
        ("sends the new token", "gateway-", {TOKEN: token}, ()),
        ("refuses the old token", "backend-", {SECOND_TOKEN: ""}, ()),
        ("accepts both admin keys", "gateway-", both, (True, True)),
        ("refuses the old admin key", "gateway-", {SECOND_ADMIN_KEY: ""}, (False, True)),
    )
    return [
        Restart(why, name, variables, accepted)
        for why, kind, variables, accepted in steps
        for name in found
        if name.startswith(kind)
    ]


def rotation(layout: Containers) -> Iterator[Step]:
    """Yield the steps that rotate the secrets."""
    keys = (layout.secrets[ADMIN_KEY], secrets.token_urlsafe(24))
    for restart in restarts(layout.services, secrets.token_urlsafe(24), keys[1]):
        yield f"{restart.service} {restart.why}", partial(_restart, layout, restart, keys)
    layout.secrets[ADMIN_KEY] = keys[1]


def _restart(layout: Containers, restart: Restart, keys: tuple[str, str]) -> None:
    former = layout.services[restart.service]
    variables = former.environment | restart.variables
    kept = {name: value for name, value in variables.items() if value}
    _replace(layout, msgspec.structs.replace(former, environment=kept))
    found = []
    for key in keys if restart.accepted else ():
        with layout.admin(restart.service, key) as admin:
            found.append(admin.get("/admin/tenants").is_success)
    if tuple(found) != restart.accepted:
        raise TopologyError(f"{restart.service}: old and new admin key accepted: {found}")


# --- Upgrade of every container


def order(found: Mapping[str, Service]) -> list[str]:
    """Return the names of services in the order in which to upgrade them.

    The project's own services come first, then services with images of other projects. The load
    balancer is last.

    Services that do one task and then exit, such as a migration, are left out.
    """

    def place(name: str) -> int:
        if name == _BALANCER:
            return len(_FIRST) + 1
        kinds = (number for number, kind in enumerate(_FIRST) if name.startswith(kind))
        return next(kinds, len(_FIRST))

    return sorted((name for name, each in found.items() if not each.ends), key=place)


def upgrade(layout: Containers) -> Iterator[Step]:
    """Yield the steps that replace each container by its next version.

    The next version of one of the project's images has the tag of this release. The next version of
    another image has a new label.
    """
    for name in order(layout.services):
        yield name, partial(_upgrade, layout, layout.services[name])


def _upgrade(layout: Containers, service: Service) -> None:
    own = service.image.startswith("localhost/")
    image = tagged(service.image, PRESENT) if own else next_version(service)
    changed = msgspec.structs.replace(service, image=image)
    if service.name == _BALANCER:
        _replace_balancer(layout, changed)
    else:
        _replace(layout, changed)


def _replace(layout: Containers, changed: Service) -> None:
    """Replace a container by a new, healthy one at the same address."""
    name = changed.name
    if name in _STATE and _primary(layout) == name:
        _fail_over(layout, name)
    former = inspect(changed.container)
    services.discard(layout.services[name])
    layout.services[name] = changed
    services.start(changed, former=former)
    layout.until_healthy([name])
    if name in _STATE:
        _wait(lambda: _is_copied(changed), "the copy is complete")


def next_version(service: Service) -> str:
    """Build the image of `service` again with a new label, and return its name."""
    name = f"localhost/next-{service.name}:next"
    folder = HOME / "next"
    folder.mkdir(exist_ok=True)
    version = f"LABEL version={time.time()}\n"
    (folder / "Dockerfile").write_text(f"FROM {service.image}\n{version}")
    run("build", "--pull=never", "--network=none", f"--tag={name}", str(folder))
    return name


def _primary(layout: Containers) -> str:
    """Return the service that the Sentinels name as the primary of the state Redis."""
    return _sentinel(layout, "get-master-addr-by-name", "state").split()[0]


def _sentinel(layout: Containers, *words: str) -> str:
    ask = ("redis-cli", "-p", "26379", "sentinel", *words)
    return run("exec", layout.services["sentinel-0"].container, *ask)


def _fail_over(layout: Containers, former: str) -> None:
    """Make another server the primary of the state Redis, and wait until all others follow."""
    # The Sentinels refuse the command while a failover is in progress, and until they know the
    # replica, which takes some 10 s.
    _wait(lambda: _sentinel(layout, "failover", "state").strip() == "OK", "a failover begins")
    _wait(lambda: _primary(layout) != former, "there is another primary")
    _wait(lambda: _is_copied(layout.services[former]), "the former primary follows")


def _is_copied(service: Service) -> bool:
    asked = ("redis-cli", "info", "replication")
    return "master_link_status:up" in run("exec", service.container, *asked, check=False)


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
    services.discard(layout.services[_BALANCER])
    layout.services[_BALANCER] = changed
    services.start(changed)
    layout.until_healthy([_BALANCER])
    layout.send_to(BALANCER_PORT)
    time.sleep(_MOVED)
    services.discard(second)


# --- Backup and restore


def restore(layout: Containers) -> Iterator[str]:
    """Back up ledger and state, delete them, and restore them into empty volumes.

    Yield each difference between the data before and after, with the keys and tenants of the
    ledger.
    """
    seen: list[Any] = [None]

    def is_at_rest() -> bool:
        seen.append(_ledger(layout))
        return bool(seen[-1] == seen[-2])

    wait_until(is_at_rest, within=_FAILOVER, what="the ledger is at rest", every=_SAME_FOR)
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
    if _state(layout, _primary(layout)) != state:
        yield "the state is not as before the restore"
    with contextlib.suppress(AssertionError):  # the last step compares these values
        _wait(lambda: _is_on_both(layout, state), "the replica is whole")
    if not _is_on_both(layout, state):
        yield "the servers of the state differ"
    layout.start_services(_USERS)
    layout.until_healthy(layout.services)
    if _config(layout) != config:
        yield "the configuration is not as before the restore"


def _lose_data(layout: Containers) -> Iterator[str]:
    """Replace every server that has data by one with an empty volume."""
    for name in [*_USERS, *_DATA]:
        services.discard(layout.services[name])
    for name in _DATA:
        for disk in layout.services[name].disks[:1]:
            services.remove_volume(disk)
    layout.start_services(_DATA)
    _wait(lambda: _has_replica(layout), "Sentinel sees the replica")
    if _ledger(layout) or _state(layout, _STATE[0]):
        yield "the volumes were not empty"


def accepts(keys: Mapping[str, str]) -> bool:
    """Return whether the gateways accept every key of `keys`."""
    url = f"http://127.0.0.1:{BALANCER_PORT}/v1/models"
    headers = [{"authorization": f"Bearer {key}"} for key in keys.values()]
    return all(httpx.get(url, headers=each, timeout=30.0).is_success for each in headers)


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
    command = ("redis-cli", "-e", "eval", LASTING_KEYS, "0")
    said = run("exec", layout.services[name].container, *command)
    return [line for line in said.splitlines() if line]


def _is_on_both(layout: Containers, state: list[str]) -> bool:
    return all(_state(layout, name) == state for name in _STATE)


def _ledger(layout: Containers) -> dict[str, list[str]]:
    tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1"
    digest = "SELECT count(*), md5(string_agg(t::text, E'\\n' ORDER BY t::text)) FROM"
    found = {}
    for (table,) in layout.ask_ledger(tables):
        (found[table],) = layout.ask_ledger(f'{digest} "{table}" AS t')
    return found


def _has_replica(layout: Containers) -> bool:
    name = layout.services["sentinel-0"].container
    said = run("exec", name, "redis-cli", "-p", "26379", "info", "sentinel", check=False)
    return "slaves=1,sentinels=3" in said


def _wait(holds: Callable[[], bool], what: str) -> None:
    wait_until(holds, within=_FAILOVER, what=what, every=_LOOK)
