"""Backs ledger and state Redis up, loses them, and restores them into empty volumes."""

import contextlib
import subprocess
import tempfile
import time
from typing import Any  # answers of the operators' listener

import msgspec

from gateway.settings import process_environment
from loadtests.arena import topology
from loadtests.arena.images import ROOT
from loadtests.arena.podman import HOME, run
from loadtests.arena.system import Arena, ArenaError, wait_until
from loadtests.arena.topology import PREFIX
from loadtests.compose.bringing_up import bring_up
from loadtests.compose.upgrade import primary_of

_DATA = ["database", "redis-state", "redis-state-replica",
         "sentinel-0", "sentinel-1", "sentinel-2"]  # fmt: skip
_USERS = ["gateway-1", "gateway-2", "billing", "request-log"]
_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1"
_STATE = ("redis-state", "redis-state-replica")
LASTING_KEYS = (
    "local found = {} for _, key in ipairs(redis.call('KEYS', '*')) do"
    " if redis.call('PTTL', key) == -1 then"
    " found[#found + 1] = redis.call('TYPE', key).ok .. ' ' .. key end end"
    " table.sort(found) return found"
)
"""Asks a server of the state for its keys that do not expire, with their types: the event stream,
positions in it, the configuration. Limits may have expired when the backup is back."""
_QUIET = 60.0
_SAME_FOR = 5.0


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup must bring back."""

    ledger: dict[str, list[str]]
    """Rows and their digest, by table."""
    keys: Any
    tenants: Any
    config: Any
    state: list[str]


def restore_into_fresh_volumes(arena: Arena) -> list[str]:
    """Return what differs after a restore, by what was there before; empty if all is equal."""
    before = _settled(arena)
    if not before.state:
        raise ArenaError("the state Redis has nothing that a restore could bring back")
    with tempfile.TemporaryDirectory(dir=HOME) as folder:
        _script("backup.sh", folder)
        if _ledger(arena) != before.ledger:
            raise ArenaError("the ledger changed during the backup although nobody used it")
        for name in [*_USERS, *_DATA]:
            topology.discard(arena.services[name])
        for name in _DATA:
            topology.remove_volume(arena.services[name])
        bring_up(arena, _DATA)
        wait_until(lambda: _has_replica(arena), within=_QUIET, what="Sentinel sees no replica")
        empty = _ledger(arena) or _state(arena, _STATE[0])
        _script("restore.sh", folder)
    restored, state = _ledger(arena), _state(arena, primary_of(arena))
    with contextlib.suppress(ArenaError):  # what it has at the end is judged
        wait_until(lambda: _is_on_both(arena, state), within=_QUIET, what="no whole replica")
    if not _is_on_both(arena, state):
        state = ["the servers of the state differ"]
    bring_up(arena, _USERS)
    arena.until_healthy(list(arena.services))
    after = msgspec.structs.replace(_contents(arena), ledger=restored, state=state)
    differing = [
        name for name in Contents.__struct_fields__ if getattr(before, name) != getattr(after, name)
    ]
    return [*(["the volumes were not empty"] if empty else []), *differing]


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
    print(done.stdout.strip(), flush=True)
    if done.returncode:
        raise ArenaError(f"deploy/{name}: {done.stderr.strip()[-2000:]}")


def _settled(arena: Arena) -> Contents:
    """Return the contents once the ledger has not changed for some seconds."""
    deadline = time.monotonic() + _QUIET
    latest = _ledger(arena)
    while time.monotonic() < deadline:
        time.sleep(_SAME_FOR)
        former, latest = latest, _ledger(arena)
        if former == latest:
            return _contents(arena)
    raise ArenaError("the ledger changes although nobody uses it")


def _contents(arena: Arena) -> Contents:
    with arena.admin() as admin:
        keys, tenants, config = (
            admin.get(f"/admin/{path}").raise_for_status().json()
            for path in ("keys", "tenants", "config")
        )
    config.pop("workers", None)
    return Contents(
        ledger=_ledger(arena),
        keys=keys,
        tenants=tenants,
        config=config,
        state=_state(arena, primary_of(arena)),
    )


def _state(arena: Arena, name: str) -> list[str]:
    command = ("redis-cli", "-e", "eval", LASTING_KEYS, "0")
    said = run("exec", arena.services[name].container, *command)
    return [line for line in said.splitlines() if line]


def _is_on_both(arena: Arena, state: list[str]) -> bool:
    return all(_state(arena, name) == state for name in _STATE)


def _ledger(arena: Arena) -> dict[str, list[str]]:
    digest = "SELECT count(*), md5(string_agg(t::text, E'\\n' ORDER BY t::text)) FROM"
    found = {}
    for (table,) in arena.ask_ledger(_TABLES):
        (found[table],) = arena.ask_ledger(f'{digest} "{table}" AS t')
    return found


def _has_replica(arena: Arena) -> bool:
    name = arena.services["sentinel-0"].container
    said = run("exec", name, "redis-cli", "-p", "26379", "info", "sentinel", check=False)
    return "slaves=1,sentinels=3" in said
