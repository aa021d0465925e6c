"""Lets operators change the running system over its admin API.

They repeat each change until it is acknowledged.
"""

import asyncio
import random
from collections import defaultdict
from typing import Any, Final

import msgspec

from testing.simulation.world.callers import read_answer
from testing.simulation.world.model import ENCODERS, Oracle, write_revision
from testing.simulation.world.scenario import LENGTH, LIMITED, Step
from testing.simulation.world.world import ADMIN_KEY, REGIONS, World

KINDS: Final = ("rotate", "limit", "reload", "drain", "swap", "break", "purge")
ROTATED: Final = "beta"
"""The tenant whose key operators rotate."""
PURGED: Final = "acme"
"""The tenant whose results operators purge."""
_AMOUNTS: Final = (5.0, 10.0)
"""New limits. For the operation `purge`, the first one means a tenant, the second one a model."""
_PATIENCE: Final = 70.0
_PAUSE: Final = 1.0
_KEY_KNOWN: Final = 1.5
"""Seconds after which callers use a new key. Every worker knows it within a second."""
_DRAINED: Final = 2.0
"""Seconds for which a backend is drained."""
_SAME: Final = {"swap": "models", "break": "models"}
"""Kinds of operations that change the same."""
_RESTORED: Final = 5
"""Looks, a second apart, within which a drain is there again after Redis has lost it."""


class Change(msgspec.Struct, kw_only=True):
    """An operator's change. `acknowledged` is when the admin API said that it is live."""

    step: Step
    begun: float
    acknowledged: float | None = None
    value: Any = None


def make_operations(seed: int) -> tuple[Step, ...]:
    """Return the operations of a seed."""
    chooser = random.Random(f"operations {seed}")
    count = chooser.choice((0, 1, 2, 3))
    return tuple(
        Step(
            at=chooser.uniform(0.5, LENGTH),
            kind=chooser.choice(KINDS),
            target=chooser.choice(("eu-0", "eu-1", "us-0")),
            other=chooser.choice(ENCODERS),
            amount=chooser.choice(_AMOUNTS),
        )
        for _ in range(count)
    )


class Operators:
    """Does operations, and keeps what they have changed. `secrets` are the tenants' keys."""

    def __init__(self, world: World, secrets: dict[str, str], oracle: Oracle) -> None:
        self.changes: list[Change] = []
        self.secrets = secrets
        self.former: list[str] = []
        """Secrets that an acknowledged rotation made invalid."""
        self.lost: list[str] = []
        """What is no longer in effect, in words."""
        self.is_ending = False
        self._world = world
        self._oracle = oracle
        self._turns = defaultdict[str, asyncio.Lock](asyncio.Lock)
        self._revisions = 1

    def unknown_keys(self) -> set[str]:
        """Return the tenants whose new key may be valid before an operator has got it."""
        rotations = [change for change in self.changes if change.step.kind == "rotate"]
        return {ROTATED} if any(each.acknowledged is None for each in rotations) else set()

    async def do(self, step: Step) -> None:
        """Do one operation, and repeat it until it is acknowledged or the run ends.

        Operators change the same models or keys one after the other: a swap fails as long as
        another operator has published a broken revision.
        """
        async with self._turns[_SAME.get(step.kind, step.kind)]:
            change = Change(step=step, begun=self._world.simulation.now)
            self.changes.append(change)
            await getattr(self, f"_{step.kind}")(change)

    async def _rotate(self, change: Change) -> None:
        secret = self.secrets[ROTATED]
        keys = await self._until_done("GET", f"/admin/keys?tenant={ROTATED}", region="eu")
        path = f"/admin/keys/{keys['keys'][0]['id']}/rotate"
        made = await self._until_done("POST", path, {"former_valid_for": 0}, region="eu")
        self.former.append(secret)
        self._acknowledge(change, made["key"])
        await asyncio.sleep(_KEY_KNOWN)
        self.secrets[ROTATED] = made["key"]

    async def _limit(self, change: Change) -> None:
        rule = {
            "name": "burst",
            "unit": "requests",
            "window": 10.0,
            "capacity": int(change.step.amount),
        }
        await self._until_done("PUT", f"/admin/tenants/{LIMITED}/limits", [rule], region="us")
        self._acknowledge(change, rule["capacity"])

    async def _reload(self, change: Change) -> None:
        wanted = {"deadline": {"default": 5.0, "maximum": 20.0 + len(self.changes)}}
        for region in REGIONS:
            machine = self._world.machines[f"{region}-gateway"]
            self._world.write_document(machine.folder / "config", **wanted)
            machine.disk.stamp_below(machine.folder / "config")
            machine.disk.settle()
            await self._until_done("POST", "/admin/config/reload", region=region)
        self._acknowledge(change, wanted)

    async def _drain(self, change: Change) -> None:
        region = change.step.target.split("-")[0]
        path = f"/admin/regions/{region}/backends/{change.step.target}"
        for each in REGIONS:
            await self._until_done("POST", f"{path}/drain", region=each)
        await asyncio.sleep(_DRAINED)
        same = [c for c in self.changes if c.step.kind == "drain"]
        for each in REGIONS:
            if len(same) == 1 and not await self._is_drained(change.step.target, each):
                self.lost.append(f"{each} lost an acknowledged drain of {change.step.target}")
        for each in REGIONS:
            await self._until_done("POST", f"{path}/restore", region=each)
        self._acknowledge(change, None)

    async def _is_drained(self, backend: str, region: str) -> bool:
        """Return whether a backend is drained, soon at the latest."""
        for _ in range(_RESTORED):
            found = await self._until_done("GET", "/admin/regions", region=region)
            all_ = [each for listed in found["regions"] for each in listed["backends"]]
            if any(each["id"] == backend and each["drained"] for each in all_):
                return True
            await asyncio.sleep(_PAUSE)
        return False

    async def _purge(self, change: Change) -> None:
        """Purge the cached results of a tenant or a model in all regions."""
        by_tenant = change.step.amount == _AMOUNTS[0]
        wanted = {"tenant": PURGED} if by_tenant else {"model": change.step.other}
        for region in REGIONS:
            await self._until_done("POST", "/admin/cache/purge", wanted, region=region)
        self._acknowledge(change, wanted)

    async def _swap(self, change: Change) -> None:
        """Publish a new revision of each model on all backends, also of broken ones."""
        self._write(ENCODERS)
        for region in REGIONS:
            await self._until_done("POST", "/admin/models/reload", region=region)
        self._acknowledge(change, None)

    async def _break(self, change: Change) -> None:
        """Publish a revision that cannot be opened; the former one must stay in service."""
        self._write((change.step.other,), is_broken=True)
        for region in REGIONS:
            await self._until_done("POST", "/admin/models/reload", region=region, fine=(422,))
        self._acknowledge(change, None)

    def _write(self, names: tuple[str, ...], *, is_broken: bool = False) -> None:
        self._revisions += 1
        for region in REGIONS:
            machine = self._world.machines[f"{region}-backend"]
            root = machine.folder / "models"
            for name in names:
                write_revision(root, name, self._revisions, is_broken=is_broken)
                machine.disk.stamp_below(root / name / f"{self._revisions}")
            if not is_broken:
                self._oracle.learn(root)
            machine.disk.settle()

    def _acknowledge(self, change: Change, value: Any) -> None:
        change.acknowledged, change.value = self._world.simulation.now, value

    async def _until_done(
        self, method: str, path: str, body: Any = None, *, region: str, fine: tuple[int, ...] = ()
    ) -> Any:
        """Return the answer of a request that is repeated until it has succeeded."""
        while True:
            is_last = self.is_ending  # a request that began earlier may have met a fault
            status, answer = await ask_admin(self._world, region, method, path, body)
            if status in (200, 201, *fine):
                return answer
            if is_last and status:
                raise asyncio.CancelledError
            await asyncio.sleep(_PAUSE)


async def ask_admin(
    world: World, region: str, method: str, path: str, body: Any = None
) -> tuple[int, Any]:
    """Return status and JSON of an answer of the admin API; status 0 without an answer."""
    content = b"" if body is None else msgspec.json.encode(body)
    head = (
        f"{method} {path} HTTP/1.1\r\nhost: admin\r\nauthorization: Bearer {ADMIN_KEY}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    try:
        async with asyncio.timeout(_PATIENCE):
            reader, writer = await asyncio.open_connection(*world.admin(region))
            try:
                writer.write(head.encode() + content)
                status, _, answer = await read_answer(reader)
            finally:
                writer.transport.abort()
        # A server that is stopping may give up a request with a plain 503.
        return status, msgspec.json.decode(answer) if answer and status != 503 else None
    except (OSError, asyncio.IncompleteReadError, TimeoutError):
        return 0, None
