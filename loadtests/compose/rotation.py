"""Rotates the backend token and the admin key by the steps of `docs/operations.md`."""

import secrets
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

import httpx
import msgspec

from loadtests.arena import topology
from loadtests.arena.podman import inspect
from loadtests.arena.system import Arena, ArenaError
from loadtests.arena.topology import PREFIX, Service
from loadtests.compose.upgrade import replace

_BACKENDS, _GATEWAYS = "backend-", "gateway-"
TOKEN: Final = "SLUICEGATE_BACKEND_TOKEN"  # noqa: S105 - the name of a variable
SECOND_TOKEN: Final = "SLUICEGATE_BACKEND_SECOND_TOKEN"  # noqa: S105 - as above
ADMIN_KEY: Final = "SLUICEGATE_ADMIN_KEY"
SECOND_ADMIN_KEY: Final = "SLUICEGATE_SECOND_ADMIN_KEY"
_ACCEPTS_BOTH = "accepts both admin keys"


class Restart(msgspec.Struct, frozen=True, kw_only=True):
    """A container that is made anew with other variables; an empty one is not set."""

    why: str
    service: str
    variables: dict[str, str]


def plan(services: Mapping[str, Service], token: str, admin_key: str) -> list[Restart]:
    """Return the restarts that rotate both secrets, one container after the other."""
    backends = [name for name in services if name.startswith(_BACKENDS)]
    gateways = [name for name in services if name.startswith(_GATEWAYS)]
    old = services[gateways[0]].environment
    steps = (
        ("accepts both tokens", backends, {TOKEN: token, SECOND_TOKEN: old[TOKEN]}),
        ("sends the new token", gateways, {TOKEN: token}),
        ("refuses the old token", backends, {SECOND_TOKEN: ""}),
        (_ACCEPTS_BOTH, gateways, {ADMIN_KEY: admin_key, SECOND_ADMIN_KEY: old[ADMIN_KEY]}),
        ("refuses the old admin key", gateways, {SECOND_ADMIN_KEY: ""}),
    )
    return [
        Restart(why=why, service=name, variables=variables)
        for why, names, variables in steps
        for name in names
    ]


def steps(arena: Arena) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield the name of each step, and what takes it; each may block."""
    old, new = topology.secrets_of_the_arena()[ADMIN_KEY], secrets.token_urlsafe(24)
    for restart in plan(arena.services, secrets.token_urlsafe(24), new):
        yield f"{restart.service} {restart.why}", partial(_restart, arena, restart)
        if restart.why == _ACCEPTS_BOTH:
            check = partial(_check, arena, restart.service, old, new, both=True)
            yield f"{restart.service}: keys", check
    for name in (name for name in arena.services if name.startswith(_GATEWAYS)):
        yield f"{name}: keys", partial(_check, arena, name, old, new, both=False)
    topology.keep_secrets({ADMIN_KEY: new})


def _restart(arena: Arena, restart: Restart) -> None:
    former = arena.services[restart.service]
    variables = former.environment | restart.variables
    kept = {name: value for name, value in variables.items() if value}
    changed = msgspec.structs.replace(former, environment=kept)
    arena.services[restart.service] = changed
    replace(arena, changed, changed.image)


def _check(arena: Arena, name: str, old: str, new: str, *, both: bool) -> None:
    """Check which keys the operators' listener of a gateway accepts: the new one, or both."""
    address = inspect(arena.services[name].container).address[f"{PREFIX}edge"]
    url = f"http://{address}:8081/admin/tenants"
    headers = [{"authorization": f"Bearer {key}"} for key in (old, new)]
    accepted = [httpx.get(url, headers=each, timeout=30.0).is_success for each in headers]
    if accepted != [both, True]:
        raise ArenaError(f"{name} accepts of the old and the new admin key: {accepted}")
