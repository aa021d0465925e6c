"""Makes operators' changes in turns: configuration, keys, purges and revisions."""

import asyncio
import itertools
import shutil
from collections import Counter
from pathlib import Path

import httpx
import msgspec
import numpy as np

from loadtests.soak.load import OK, STRANGER, classify
from testing.raw_http import Connection
from testing.system import System

_MODEL = "sentiment"
_TIMEOUT = 120.0


class OperatorChanges:
    """Makes the next change at each `next`, in turns; `failed` lists failed ones.

    `billable` gets the ids of the requests that try out keys.
    """

    def __init__(self, system: System, *, config: Path, models: Path, billable: set[str]) -> None:
        self._system = system
        self._document = config / "gateway.yaml"
        self._text = self._document.read_text()
        self._models = models / _MODEL
        self._billable = billable
        self._number = itertools.count()
        self.made: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self._turns = itertools.cycle(
            (
                self._reload,
                self._key,
                self._purge_tenant,
                self._revision,
                self._broken,
                self._limits,
                self._purge_model,
            )
        )

    async def next(self) -> None:
        """Make the next change, and record whether it had its effect."""
        change = next(self._turns)
        name = change.__name__.strip("_")
        self.made[name] += 1
        with self._system.admin() as admin:
            if not await change(admin):
                self.failed[name] += 1

    async def _reload(self, admin: httpx.Client) -> bool:
        jitter = 0.1 + next(self._number) % 2 / 10
        self._document.write_text(self._text.replace("ttl_jitter: 0.1", f"ttl_jitter: {jitter}"))
        return (await _post(admin, "/admin/config/reload")).status_code == OK

    async def _broken(self, admin: httpx.Client) -> bool:
        """Publish an invalid document, which must be refused."""
        self._document.write_text(self._text + "\nno_such_section: 1\n")
        return (await _post(admin, "/admin/config/reload")).is_client_error

    async def _key(self, admin: httpx.Client) -> bool:
        """Use a key, and again after it was revoked."""
        made = await _post(admin, "/admin/keys", tenant="demo", name="soak")
        before = await self._try(made.json()["key"])
        revoked = await asyncio.to_thread(admin.delete, f"/admin/keys/{made.json()['id']}")
        after = await self._try(made.json()["key"])
        return revoked.is_success and (before, after) == (OK, STRANGER)

    async def _limits(self, admin: httpx.Client) -> bool:
        capacity = 20 + next(self._number) % 20
        rules = [{"name": "narrow", "unit": "requests", "capacity": capacity, "window": 2.0}]
        changed = await asyncio.to_thread(admin.put, "/admin/tenants/narrow/limits", json=rules)
        return changed.is_success

    async def _purge_tenant(self, admin: httpx.Client) -> bool:
        return (await _post(admin, "/admin/cache/purge", tenant="demo")).status_code == OK

    async def _purge_model(self, admin: httpx.Client) -> bool:
        return (await _post(admin, "/admin/cache/purge", model=_MODEL)).status_code == OK

    async def _revision(self, admin: httpx.Client) -> bool:
        """Add a revision with opposite labels, or remove it again."""
        if (self._models / "2").exists():
            await asyncio.to_thread(shutil.rmtree, self._models / "2")
        else:
            await asyncio.to_thread(_write_opposite, self._models)
        return (await _post(admin, "/admin/models/reload")).status_code == OK

    async def _try(self, key: str) -> int:
        async with Connection(self._system.port) as connection:
            await connection.send(classify(key, "a film to try a key with"))
            response = await connection.response()
        if response.status != STRANGER:
            self._billable.add(response.headers["x-request-id"])
        return response.status


async def _post(admin: httpx.Client, path: str, **fields: str) -> httpx.Response:
    return await asyncio.to_thread(
        admin.post, path, content=msgspec.json.encode(fields), timeout=_TIMEOUT
    )


def _write_opposite(model: Path) -> None:
    """Write a revision whose head has opposite labels."""
    draft = Path(shutil.copytree(model / "1", model / ".draft"))
    with np.load(draft / "head.npz") as head:
        layers = {name: head[name] for name in head.files}
    last = len(layers) // 2 - 1
    for name in (f"w{last}", f"b{last}"):
        layers[name] = -layers[name]
    np.savez(draft / "head.npz", **layers)
    draft.rename(model / "2")
