"""Changes fields of the document and finds the effect of each: the result cache and limits."""

import asyncio
import uuid
from functools import partial
from typing import Any

import msgspec
import pytest

from sluicegate.gateway.errors import ConfigurationError
from sluicegate.gateway.regional_limits.follower import limits_of_region
from sluicegate.gateway.regional_limits.values import BucketShare, BucketShares, ShareReport
from sluicegate.wire.protocol import Call, Done
from testing.raw_http import KEY, post
from testing.stub_backend import Reply, StubBackend, answer_when, fail_items
from testing.waiting import eventually, until
from tests.support.reload_scene import LONG, ReloadCase, ReloadScene, Section, case_of

CASES: dict[str, ReloadCase] = {}
HOUR = 3_600.0


# Origins of pages


async def _allowed(scene: ReloadScene) -> tuple[str | None, str | None]:
    """Return the origin that an answer allows, and how long a preflight is kept."""
    asked = {"origin": "https://a.example", "access-control-request-method": "POST"}
    answer = await scene.ask("a", headers={"origin": "https://a.example"})
    async with scene.worker.connect() as connection:
        await connection.send(post("/v1/classify", None, method="OPTIONS", headers=asked))
        _, preflight = await connection.head()
    allowed = answer.headers.get("access-control-allow-origin")
    return allowed, preflight.get("access-control-max-age")


async def _origin_is_allowed(
    scene: ReloadScene, before: Section, after: Section, expected: object
) -> None:
    found = await scene.both({"cors": before}, {"cors": after}, partial(_allowed, scene))
    assert found == expected


_ORIGIN = "https://a.example"
for _field, _before, _after, _seen in (
    ("origins[]", {}, {"origins": [_ORIGIN]}, ((None, None), (_ORIGIN, "7200"))),
    ("tenants.*[]", {}, {"tenants": {"acme": [_ORIGIN]}}, ((None, None), (_ORIGIN, "7200"))),
    ("max_age", {"origins": ["*"]}, {"origins": ["*"], "max_age": 5}, (("*", "7200"), ("*", "5"))),
):
    CASES[f"cors.{_field}"] = partial(
        _origin_is_allowed, before=_before, after=_after, expected=_seen
    )


# Idempotency keys


async def _is_replayed_after_another(scene: ReloadScene) -> bool:
    """Use two keys, and tell whether the answer of the first is still there."""
    first, second = ({"idempotency-key": str(uuid.uuid4())} for _ in range(2))
    await scene.ask("a", headers=first)
    await scene.ask("a", headers=second)
    return "idempotency-replayed" in (await scene.ask("a", headers=first)).headers


async def _room_is_made(scene: ReloadScene, field: str, little: int) -> None:
    found = await scene.both(
        {"idempotency": {field: little}},
        {"idempotency": {field: 100_000}},
        partial(_is_replayed_after_another, scene),
    )
    assert found == (False, True)


for _field, _little in (("max_keys", 1), ("max_bytes", 1_024)):
    CASES[f"idempotency.{_field}"] = partial(_room_is_made, field=_field, little=_little)


@case_of(CASES, "idempotency.lease")
async def _(scene: ReloadScene) -> None:
    store = scene.worker.parts.idempotency

    async def interval() -> float:
        return store.renewal_interval

    found = await scene.both(
        {"idempotency": {"lease": 3}}, {"idempotency": {"lease": 60}}, interval
    )

    assert found == (1, 20)


# The result cache


async def _memory_is(scene: ReloadScene, before: Section, expected: int) -> None:
    cache = scene.worker.parts.path.cache
    await scene.put(cache={"memory_bytes": 3_000_000})
    await until(lambda: cache.statistics().memory.capacity_bytes == 3_000_000)

    await scene.put(cache=before)

    await until(lambda: cache.statistics().memory.capacity_bytes == expected)


CASES["cache.memory_bytes"] = partial(
    _memory_is, before={"memory_bytes": 5_000_000}, expected=5_000_000
)
CASES["cache.memory_enabled"] = partial(
    _memory_is, before={"memory_bytes": 3_000_000, "memory_enabled": False}, expected=0
)
ONLY_REDIS = {"memory_enabled": False, "redis_timeout": LONG}


async def _finds_in_redis(scene: ReloadScene, *, found: bool) -> None:
    async def finds() -> bool:
        return (await scene.hits("a") > 0) is found

    await eventually(finds)


@case_of(CASES, "cache.redis_enabled")
async def _(scene: ReloadScene) -> None:
    await scene.put(cache=ONLY_REDIS)
    await _finds_in_redis(scene, found=True)

    await scene.put(cache=ONLY_REDIS | {"redis_enabled": False})
    await _finds_in_redis(scene, found=False)


@case_of(CASES, "cache.redis_timeout")
async def _(scene: ReloadScene) -> None:
    await scene.put(cache=ONLY_REDIS)
    await _finds_in_redis(scene, found=True)

    await scene.put(cache=ONLY_REDIS | {"redis_timeout": 1e-9})
    await _finds_in_redis(scene, found=False)


@case_of(CASES, "cache.ttl_jitter")
async def _(scene: ReloadScene) -> None:
    days = 24 * HOUR * 1_000
    numbers = iter(range(1_000))

    async def lives() -> set[bool]:
        """Store an answer; return whether those in Redis live as long as the document says."""
        await scene.ask(f"{next(numbers)}")
        return {ttl > 900 * days for ttl in (await scene.ttls()).values() if ttl > 100 * days}

    async def is_stored() -> bool:
        return await lives() == {True}

    async def is_shorter() -> bool:
        return False in await lives()

    entry = {"cache_ttl": 1_000 * 24 * HOUR}
    await scene.put(entry=entry, cache={"ttl_jitter": 0})
    await eventually(is_stored)
    await scene.put(entry=entry, cache={"ttl_jitter": 1})
    await eventually(is_shorter)


@case_of(CASES, "cache.lease")
async def _(scene: ReloadScene) -> None:
    async def claims(text: str) -> int:
        before, gate = await scene.ttls(), asyncio.Event()
        scene.eu.calls.clear()
        scene.eu.behaviour = answer_when(gate)
        asking = asyncio.create_task(scene.ask(text))
        await until(lambda: bool(scene.eu.calls))
        after = await scene.ttls()
        gate.set()
        await asking
        return sum(ttl <= LONG * 1_000 for name, ttl in after.items() if name not in before)

    await scene.put(cache={"lease": 0})
    before = await claims("a")
    await scene.put(cache={"lease": LONG})

    async def is_claimed() -> bool:
        return await claims("b") == 1

    assert before == 0
    # The Redis tier with the new lease replaces the other within an iteration or two.
    await eventually(is_claimed)


@case_of(CASES, "cache.refusal_ttl")
async def _(scene: ReloadScene) -> None:
    scene.eu.behaviour = fail_items(0, code="input_too_long", status=422, retryable=False)

    async def calls() -> int:
        scene.eu.calls.clear()
        await scene.ask("too long")
        await scene.ask("too long")
        return len(scene.eu.calls)

    found = await scene.both({"cache": {"refusal_ttl": 0}}, {"cache": {"refusal_ttl": HOUR}}, calls)

    assert found == (2, 1)


@case_of(CASES, "cache.refreshes")
async def _(scene: ReloadScene) -> None:
    stale = scene.worker.parts.path.last_answers
    entry = {"cache_ttl": 0.001, "stale_while_revalidate": HOUR}

    async def is_skipped() -> bool:
        before = stale.statistics().refreshes_skipped
        await scene.ask("a")
        return stale.statistics().refreshes_skipped > before

    async def is_refreshed() -> bool:
        before = stale.statistics().refreshes
        await scene.ask("a")
        return stale.statistics().refreshes > before

    await scene.put(entry=entry, cache={"refreshes": 0})
    await eventually(is_skipped)
    await scene.put(entry=entry, cache={"refreshes": 1})
    await eventually(is_refreshed)


# Limits


async def _policies(scene: ReloadScene) -> str:
    """Return the status and what the answer says of limits."""
    response = await scene.ask("a")
    limits = {name: value for name, value in response.headers.items() if "ratelimit" in name}
    return f"{response.status} {limits}"


async def _rule_changes(scene: ReloadScene, section: str, change: Section, expected: str) -> None:
    rule = {"name": scene.name, "unit": "requests", "capacity": 1, "window": HOUR}

    def document(**fields: Any) -> Section:
        limits: Section = {"tenant": []} | {section: [rule | fields]}
        planned = {name: {"planned": True} for name in (scene.name, "another")}
        return {"models": planned, "limits": limits}

    await scene.put(**document())
    await scene.ask("a")
    before = await _policies(scene)
    await scene.put(**document(**change))
    after = await _policies(scene)

    assert before.startswith("429")
    assert f'"{scene.name}";q=1;w=3600' in before
    assert expected not in before
    assert expected in after


async def _model_rule_changes(scene: ReloadScene, change: Section) -> None:
    rule = {"name": "rule", "unit": "items", "capacity": 1, "window": HOUR}
    numbers = iter(range(1_000))

    async def ask() -> int:
        return await scene.status(f"{next(numbers)}")

    async def is_allowed() -> bool:
        return await ask() == 200

    await scene.put(entry={"limits": [rule]})
    before = [await ask(), await ask()]
    await scene.put(entry={"limits": [rule | change]})

    assert before == [200, 429]
    await eventually(is_allowed)


_MONTHLY = {"window": 0, "period": "month"}
for _field, _change, _expected in (
    ("name", {"name": "other"}, '"other";q=1'),
    ("unit", {"unit": "items"}, "x-ratelimit-limit-items"),
    ("capacity", {"capacity": 2}, ";q=2;"),
    ("window", {"window": 0.001}, ";w=1"),
    ("period", _MONTHLY, ";w=2592000"),
    ("model", {"model": "another"}, "200 {}"),
    ("shadow", {"shadow": True}, "200"),
):
    for _section in ("tenant", "key"):
        CASES[f"limits.{_section}[].{_field}"] = partial(
            _rule_changes, section=_section, change=_change, expected=_expected
        )
for _field, _change in (
    ("name", {"name": "other"}),
    ("unit", {"unit": "concurrent", "window": 0}),
    ("capacity", {"capacity": 100}),
    ("window", {"window": 0.001}),
    ("period", _MONTHLY),
    ("shadow", {"shadow": True}),
):
    CASES[f"models.*.limits[].{_field}"] = partial(_model_rule_changes, change=_change)


@case_of(CASES, "models.*.limits[].model")
async def _(scene: ReloadScene) -> None:
    """It is refused: the model is known."""
    rule = {"name": "rule", "unit": "items", "capacity": 1, "window": HOUR}
    await scene.put(entry={"limits": [rule]})

    with pytest.raises(ConfigurationError) as caught:
        await scene.put(entry={"limits": [rule | {"model": scene.name}]})

    assert caught.value.field == f"models.{scene.name}.limits[0].model"


@case_of(CASES, "limits.local_share")
async def _(scene: ReloadScene) -> None:
    async def share() -> float:
        return scene.worker.parts.limiter.local.fraction

    found = await scene.both(
        {"limits": {"local_share": 0.2}}, {"limits": {"local_share": 0.3}}, share
    )

    assert found == (0.2, 0.3)


class _Leases:
    """Where a region asks for its shares; keeps the lease it names."""

    def __init__(self) -> None:
        self.seen = 0.0

    def report(self, report: ShareReport, *, lease: float, longest: float) -> BucketShares:
        self.seen = lease
        share = BucketShare(used=1.0, before=1.0, raised=0.0)
        return BucketShares(
            now=0, lease=lease, regions=1, rest=share, changed={}, are_all=True, granted={}
        )

    def leave(self, region: str, worker: str) -> None:
        """Do nothing."""


@case_of(CASES, "limits.share_lease")
async def _(scene: ReloadScene) -> None:
    """Of a worker in a gateway region, whose document is that of the worker of the scene."""
    leases, runtimes = _Leases(), scene.worker.parts.runtimes
    limits = limits_of_region(
        "one",
        worker="one-0",
        store=leases,
        document=lambda: runtimes.current.document,
        monotonic=asyncio.get_running_loop().time,
    )

    async with limits.follower:
        for lease in (50.0, 70.0):
            await scene.put(limits={"share_lease": lease})
            await until(lambda expected=lease: leases.seen == expected)  # type: ignore[misc]


async def _labels_of(stub: StubBackend, call: Call, reply: Reply) -> None:
    labels = b'{"labels":[{"label":"a","score":0.6},{"label":"b","score":0.4}]}'
    for index in range(len(call.items)):
        await reply.send(Done(index=index, result=labels, rows=1, tokens=4))
    await reply.end(stub.report)


async def _moderation(scene: ReloadScene) -> tuple[int, bool | None]:
    """Return the status of a moderation, and whether the text is flagged."""
    scene.eu.behaviour = scene.us.behaviour = _labels_of
    body = msgspec.json.encode({"model": scene.name, "input": "a text"})
    response = await scene.exchange(post("/v1/moderations", body, key=KEY))
    results = response.json().get("results")
    return response.status, results[0]["flagged"] if results else None


@case_of(CASES, "models.*.moderation.*")
async def _(scene: ReloadScene) -> None:
    found = await scene.both(
        {}, {"entry": {"moderation": {"a": "hate"}}}, partial(_moderation, scene)
    )

    assert found == ((400, None), (200, True))


@case_of(CASES, "models.*.moderation_threshold")
async def _(scene: ReloadScene) -> None:
    entry = {"moderation": {"a": "hate", "b": "violence"}}
    found = await scene.both(
        {"entry": entry | {"moderation_threshold": 0.7}},
        {"entry": entry | {"moderation_threshold": 0.5}},
        partial(_moderation, scene),
    )

    assert found == ((200, False), (200, True))
