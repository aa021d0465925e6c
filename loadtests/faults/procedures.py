"""Rotates the layout's secrets, upgrades it, and restores it, as the documents tell operators.

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
from loadtests.containers.images import tagged
from loadtests.containers.layout import ADMIN_KEY, Layout
from loadtests.containers.podman import HOME, inspect, run
from loadtests.containers.services import BALANCER_PORT, PREFIX, Service
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
"""Seconds after which nobody uses the former balancer. It is longer than the longest exchange."""
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
"""Asks a state Redis for its keys that do not expire, with their types: the event stream, positions
in it, the configuration. Limits may have expired when the backup is back."""


def take(steps: Iterator[Step]) -> None:
    """Take steps one after the other, with some load between two of them."""
    for name, act in steps:
        began = time.monotonic()
        act()
        took = time.monotonic() - began
        print(f"  {name}: {took:.1f} s", flush=True)
        if took > _LONGEST:
            raise TopologyError(f"{name} took {took:.0f} s")
        time.sleep(_PAUSE)


# --- Rotation of the backend token and the admin key


class Restart(msgspec.Struct, frozen=True, kw_only=True):
    """A container to create again with other variables. An empty variable is left unset."""

    why: str
    service: str
    variables: dict[str, str]
    accepted: tuple[bool, bool] | None = None
    """Whether the gateway accepts the old and the new admin key afterwards."""


def restarts(found: Mapping[str, Service], token: str, admin_key: str) -> list[Restart]:
    """Return the restarts that rotate both secrets, one container after the other."""
    backends = [name for name in found if name.startswith("backend-")]
    gateways = [name for name in found if name.startswith("gateway-")]
    old = found[gateways[0]].environment
    both = {ADMIN_KEY: admin_key, SECOND_ADMIN_KEY: old[ADMIN_KEY]}
    steps = (
        ("accepts both tokens", backends, {TOKEN: token, SECOND_TOKEN: old[TOKEN]}, None),
        ("sends the new token", gateways, {TOKEN: token}, None),
        ("refuses the old token", backends, {SECOND_TOKEN: ""}, None),
        ("accepts both admin keys", gateways, both, (True, True)),
        ("refuses the old admin key", gateways, {SECOND_ADMIN_KEY: ""}, (False, True)),
    )
    return [
        Restart(why=why, service=name, variables=variables, accepted=accepted)
        for why, names, variables, accepted in steps
        for name in names
    ]


def rotation(layout: Layout) -> Iterator[Step]:
    """Yield the steps that rotate the secrets."""
    keys = (layout.secrets[ADMIN_KEY], secrets.token_urlsafe(24))
    for restart in restarts(layout.services, secrets.token_urlsafe(24), keys[1]):
        yield f"{restart.service} {restart.why}", partial(_restart, layout, restart, keys)
    layout.secrets[ADMIN_KEY] = keys[1]


def _restart(layout: Layout, restart: Restart, keys: tuple[str, str]) -> None:
    former = layout.services[restart.service]
    variables = former.environment | restart.variables
    kept = {name: value for name, value in variables.items() if value}
    layout.services[restart.service] = msgspec.structs.replace(former, environment=kept)
    replace(layout, restart.service)
    if restart.accepted:
        found = []
        for key in keys:
            with layout.admin(restart.service, key) as admin:
                found.append(admin.get("/admin/tenants").is_success)
        if tuple(found) != restart.accepted:
            raise TopologyError(f"{restart.service}: old and new admin key accepted: {found}")


# --- Upgrade of every container


def order(found: Mapping[str, Service]) -> list[str]:
    """Return the order of an upgrade: the project's services, the others, the balancer.

    Services that run once and end are left out.
    """

    def place(name: str) -> int:
        if name == _BALANCER:
            return len(_FIRST) + 1
        kinds = (number for number, kind in enumerate(_FIRST) if name.startswith(kind))
        return next(kinds, len(_FIRST))

    return sorted((name for name, each in found.items() if not each.ends), key=place)


def upgrade(layout: Layout, tag: str, move: Callable[[int], None]) -> Iterator[Step]:
    """Yield the steps that replace each container by its next version.

    The images of the project have `tag`. `move` sends callers to another port, like an address that
    moves between balancers.
    """
    for name in order(layout.services):
        if name == _BALANCER:
            yield name, partial(_replace_balancer, layout, move)
        else:
            yield name, partial(replace, layout, name, tag=tag)


def replace(layout: Layout, name: str, *, tag: str = "") -> None:
    """Replace a container, at the same address, and wait until it is healthy.

    With `tag`, the container gets another image: an image of the project gets this tag, and another
    image gets a new label.
    """
    service = layout.services[name]
    if name in _STATE and _primary(layout) == name:
        _fail_over(layout, name)
    if tag:
        own = service.image.startswith("localhost/")
        image = tagged(service.image, tag) if own else next_version(service)
        service = layout.services[name] = msgspec.structs.replace(service, image=image)
    former = inspect(service.container)
    services.discard(service)
    services.start(service, former=former)
    layout.until_healthy([name])
    if name in _STATE:
        _wait(lambda: _is_copied(service), "the copy is complete")


def next_version(service: Service) -> str:
    """Build the image of `service` again with a new label, and return its name."""
    name = f"localhost/next-{service.name}:next"
    folder = HOME / "next"
    folder.mkdir(exist_ok=True)
    version = f"LABEL version={time.time()}\n"
    (folder / "Dockerfile").write_text(f"FROM {service.image}\n{version}")
    run("build", "--pull=never", "--network=none", f"--tag={name}", str(folder))
    return name


def _primary(layout: Layout) -> str:
    """Return the service that the Sentinels name as the primary of the state Redis."""
    return _sentinel(layout, "get-master-addr-by-name", "state").split()[0]


def _sentinel(layout: Layout, *words: str) -> str:
    ask = ("redis-cli", "-p", "26379", "sentinel", *words)
    return run("exec", layout.services["sentinel-0"].container, *ask)


def _fail_over(layout: Layout, former: str) -> None:
    """Hand the role of the primary over, and wait until the others follow."""
    # Refused while a failover goes on, and until the Sentinels know the copy: some ten seconds.
    _wait(lambda: _sentinel(layout, "failover", "state").strip() == "OK", "a failover begins")
    _wait(lambda: _primary(layout) != former, "there is another primary")
    _wait(lambda: _is_copied(layout.services[former]), "the former primary follows")


def _is_copied(service: Service) -> bool:
    asked = ("redis-cli", "info", "replication")
    return "master_link_status:up" in run("exec", service.container, *asked, check=False)


def _replace_balancer(layout: Layout, move: Callable[[int], None]) -> None:
    """Replace the balancer. Meanwhile, callers use a second balancer."""
    service = layout.services[_BALANCER]
    image = next_version(service)
    # At any address: gateways take its callers for one, as they do not know it.
    networks = dict.fromkeys(service.networks, "")
    second = msgspec.structs.replace(
        service, name=f"{_BALANCER}-next", networks=networks, image=image
    )
    layout.services[_BALANCER] = msgspec.structs.replace(service, image=image)
    services.start(second, port=_OTHER_PORT)
    _wait(lambda: services.is_healthy(second), "the second balancer is healthy")
    move(_OTHER_PORT)
    time.sleep(_MOVED)
    services.discard(service)
    services.start(layout.services[_BALANCER])
    layout.until_healthy([_BALANCER])
    move(BALANCER_PORT)
    time.sleep(_MOVED)
    services.discard(second)


# --- Backup and restore


def restore(layout: Layout) -> Iterator[str]:
    """Back up ledger and state, lose them, restore them into empty volumes; yield differences."""
    before = _settled(layout)
    if not before["state"]:
        raise TopologyError("the state Redis has nothing that a restore could bring back")
    with tempfile.TemporaryDirectory(dir=HOME) as folder:
        _script("backup.sh", folder)
        if _ledger(layout) != before["ledger"]:
            raise TopologyError("the ledger changed during the backup although nobody used it")
        yield from _lose_data(layout)
        _script("restore.sh", folder)
    restored, state = _ledger(layout), _state(layout, _primary(layout))
    with contextlib.suppress(AssertionError):  # what it has at the end is compared
        _wait(lambda: _is_on_both(layout, state), "the replica is whole")
    if not _is_on_both(layout, state):
        yield "the servers of the state differ"
    layout.start(_USERS)
    layout.until_healthy(layout.services)
    after = _contents(layout) | {"ledger": restored, "state": state}
    for name, former in before.items():
        if after[name] != former:
            yield f"`{name}` is not as before the restore"


def _lose_data(layout: Layout) -> Iterator[str]:
    """Start servers with empty volumes in place of all that have data."""
    for name in [*_USERS, *_DATA]:
        services.discard(layout.services[name])
    for name in _DATA:
        for disk in layout.services[name].disks[:1]:
            services.remove_volume(disk)
    layout.start(_DATA)
    _wait(lambda: _has_replica(layout), "Sentinel sees the replica")
    if _ledger(layout) or _state(layout, _STATE[0]):
        yield "the volumes were not empty"


def accepts(keys: Mapping[str, str]) -> bool:
    """Return whether the gateways accept every key."""
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


def _settled(layout: Layout) -> dict[str, Any]:
    """Return the contents once the ledger has not changed for some seconds."""
    latest: list[Any] = [None]

    def is_same() -> bool:
        latest.append(_ledger(layout))
        return bool(latest[-1] == latest[-2])

    wait_until(is_same, within=_FAILOVER, what="the ledger is at rest", every=_SAME_FOR)
    return _contents(layout)


def _contents(layout: Layout) -> dict[str, Any]:
    """Return the data that a backup must restore."""
    with layout.admin() as admin:
        found = {
            name: admin.get(f"/admin/{name}").raise_for_status().json()
            for name in ("keys", "tenants", "config")
        }
    found["config"].pop("workers", None)
    state = _state(layout, _primary(layout))
    return found | {"ledger": _ledger(layout), "state": state}


def _state(layout: Layout, name: str) -> list[str]:
    command = ("redis-cli", "-e", "eval", LASTING_KEYS, "0")
    said = run("exec", layout.services[name].container, *command)
    return [line for line in said.splitlines() if line]


def _is_on_both(layout: Layout, state: list[str]) -> bool:
    return all(_state(layout, name) == state for name in _STATE)


def _ledger(layout: Layout) -> dict[str, list[str]]:
    tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1"
    digest = "SELECT count(*), md5(string_agg(t::text, E'\\n' ORDER BY t::text)) FROM"
    found = {}
    for (table,) in layout.ask_ledger(tables):
        (found[table],) = layout.ask_ledger(f'{digest} "{table}" AS t')
    return found


def _has_replica(layout: Layout) -> bool:
    name = layout.services["sentinel-0"].container
    said = run("exec", name, "redis-cli", "-p", "26379", "info", "sentinel", check=False)
    return "slaves=1,sentinels=3" in said


def _wait(holds: Callable[[], bool], what: str) -> None:
    wait_until(holds, within=_FAILOVER, what=what, every=_LOOK)
