"""Changes fields of regions, models, bounds and prices, and finds the effect of each."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from sluicegate.gateway.config.document import PriceConfig
from sluicegate.gateway.errors import ConfigurationError
from sluicegate.gateway.operations.active_document import ActiveDocumentReader
from sluicegate.gateway.redis.connect import open_client
from sluicegate.gateway.runtime.control import Control
from sluicegate.wire.protocol import Call, Done
from testing.raw_http import KEY, post
from testing.stub_backend import Behaviour, Reply, StubBackend, answer, refuse
from testing.waiting import eventually
from tests.support.reload_scene import OTHER_KEY, ReloadCase, ReloadScene, Section, case_of

CASES: dict[str, ReloadCase] = {}
HOUR = 3_600.0


# Regions: what the fleet has is what the prober, the client and the router go by.


async def _first_endpoint(scene: ReloadScene, name: str) -> object:
    return getattr(scene.fleet.endpoints[0], name)


async def _backend_changes(
    scene: ReloadScene, *, before: Section, fields: Section, seen: str, expected: object
) -> None:
    scene.resolver.table["name"] = ["127.0.0.1"]

    def regions(**own: Any) -> list[Section]:
        return [{"name": "eu", "pools": [{"backends": [scene.backend(scene.eu, **own)]}]}]

    found = await scene.both(
        {"regions": regions(**before)},
        {"regions": regions(**(before | fields))},
        lambda: _first_endpoint(scene, seen),
    )
    assert found[0] != found[1] == expected


_BACKEND = "regions[].pools[].backends[]."
for _field, _value, _seen, _expected, _before in (
    ("id", "other", "backend", "other", {}),
    ("weight", 3.0, "weight", 3.0, {}),
    ("tls", True, "url", "https://127.0.0.1:1", {"url": "", "dns": "name:1"}),
    ("server_name", "a.example", "server_name", "a.example", {"url": "https://127.0.0.1:1"}),
):
    CASES[_BACKEND + _field] = partial(
        _backend_changes, fields={_field: _value}, seen=_seen, expected=_expected, before=_before
    )


@case_of(CASES, "regions[].name")
async def _(scene: ReloadScene) -> None:
    other = scene.regions()
    other[0]["name"] = "ap"

    found = await scene.both({}, {"regions": other}, lambda: _first_endpoint(scene, "region"))

    assert found == ("eu", "ap")


@case_of(CASES, "regions[].pools[].name")
async def _(scene: ReloadScene) -> None:
    """It is for operators, who are shown it: see `GET /admin/backends`."""
    control = Control(scene.redis)
    active = ActiveDocumentReader(control=control, settings=scene.worker.settings)

    async def pool() -> str:
        return (await active.document()).regions[1].pools[0].name

    found = await scene.both({}, {"regions": scene.regions(name="spot")}, pool)

    assert found == ("default", "spot")


@case_of(CASES, "regions[].pools[].cost_per_hour")
async def _(scene: ReloadScene) -> None:
    """It is for operators, whose console draws the margin with it."""
    control = Control(scene.redis)
    active = ActiveDocumentReader(control=control, settings=scene.worker.settings)

    async def cost() -> float:
        return (await active.document()).regions[1].pools[0].cost_per_hour

    found = await scene.both({}, {"regions": scene.regions(cost_per_hour=1.25)}, cost)

    assert found == (0.0, 1.25)


@case_of(CASES, "regions[].pools[].overflow")
async def _(scene: ReloadScene) -> None:
    async def overflow() -> bool:
        return scene.statistics(scene.us).overflow

    found = await scene.both({}, {"regions": scene.regions(overflow=True)}, overflow)

    assert found == (False, True)


async def _who_answers(scene: ReloadScene) -> str:
    found: str = (await scene.ask(f"{scene.name} who")).json()["results"][0]["backend"]
    return found


@case_of(CASES, _BACKEND + "url")
async def _(scene: ReloadScene) -> None:
    moved = scene.backend(scene.eu, url=scene.us.url)
    regions = [{"name": "eu", "pools": [{"backends": [moved]}]}]

    found = await scene.both(
        {"entry": {"cache_ttl": 0}},
        {"entry": {"cache_ttl": 0}, "regions": regions},
        lambda: _who_answers(scene),
    )

    assert found == (scene.eu.backend_id, scene.us.backend_id)


@case_of(CASES, _BACKEND + "dns")
async def _(scene: ReloadScene) -> None:
    scene.resolver.table[scene.name] = ["127.0.0.1"]
    found_by_name = {"id": "named", "dns": f"{scene.name}:{scene.us.port}"}
    regions = [{"name": "eu", "pools": [{"backends": [found_by_name]}]}]

    found = await scene.both(
        {"entry": {"cache_ttl": 0}},
        {"entry": {"cache_ttl": 0}, "regions": regions},
        lambda: _who_answers(scene),
    )

    assert found == (scene.eu.backend_id, scene.us.backend_id)


# Models


@case_of(CASES, "models.*.scope")
async def _(scene: ReloadScene) -> None:
    async def hits_of_another_tenant() -> int:
        await scene.ask("mine")
        return await scene.hits("mine", key=OTHER_KEY)

    found = await scene.both({}, {"entry": {"scope": "shared"}}, hits_of_another_tenant)

    assert found == (0, 1)


@case_of(CASES, "models.*.cache_ttl")
async def _(scene: ReloadScene) -> None:
    found = await scene.both(
        {"entry": {"cache_ttl": 0}},
        {"entry": {"cache_ttl": HOUR}},
        lambda: scene.hits_again("kept"),
    )

    assert found == (0, 1)


async def _last_answers_are_given(
    scene: ReloadScene, field: str, behaviour: Behaviour, given: Callable[[], int]
) -> None:
    """Answers are out of date at once, and given all the same with the other document."""
    entry = {"cache_ttl": 0.001}

    async def is_given() -> bool:
        before = given()
        scene.eu.behaviour = scene.us.behaviour = answer
        await scene.ask("a")
        scene.eu.behaviour = scene.us.behaviour = behaviour
        await scene.ask("a")
        return given() > before

    await scene.put(entry=entry)
    before = await is_given()
    await scene.put(entry=entry | {field: HOUR})

    assert not before
    await eventually(is_given)


@case_of(CASES, "models.*.stale_while_revalidate")
async def _(scene: ReloadScene) -> None:
    stale = scene.worker.parts.path.last_answers
    await _last_answers_are_given(
        scene, "stale_while_revalidate", answer, lambda: stale.statistics().served
    )


@case_of(CASES, "models.*.stale_if_error")
async def _(scene: ReloadScene) -> None:
    stale = scene.worker.parts.path.last_answers
    await _last_answers_are_given(
        scene, "stale_if_error", refuse("overloaded"), lambda: stale.statistics().served_on_error
    )


@case_of(CASES, "models.*.enabled")
async def _(scene: ReloadScene) -> None:
    found = await scene.both({"entry": {"enabled": False}}, {}, partial(scene.status, "a"))

    assert found == (404, 200)


@case_of(CASES, "models.*.planned")
async def _(scene: ReloadScene) -> None:
    """A document may name a model that nobody serves, once it is planned."""
    await scene.put()
    later = f"{scene.name}-later"

    def models(*, planned: bool) -> Section:
        return {scene.name: {"planned": True}, later: {"planned": planned}}

    cache = open_client(scene.worker.settings.cache_url, timeout=1.0, slow=1.0)

    async def is_refused() -> bool:
        try:
            text = scene.text(models=models(planned=False))
            await scene.publisher.check(text, if_match="", cache_redis=cache)
        except ConfigurationError as error:
            return later in error.detail
        return False

    # Once the worker has reported which models there are.
    await eventually(is_refused)
    await scene.put(models=models(planned=True))


# Deadlines and bounds of requests


async def _vector_of(stub: StubBackend, call: Call, reply: Reply) -> None:
    assert msgspec.msgpack.decode(call.items[0].body) == [1, 2]
    await reply.send(Done(index=0, result=b'{"embedding":[0.5]}', rows=1, tokens=4))
    await reply.end(stub.report)


async def _status_of_tokens(scene: ReloadScene) -> int:
    scene.eu.behaviour = scene.us.behaviour = _vector_of
    body = msgspec.json.encode({"model": scene.name, "input": [[1, 2]]})
    return (await scene.exchange(post("/v1/embeddings", body, key=KEY))).status


@case_of(CASES, "models.*.token_ids")
async def _(scene: ReloadScene) -> None:
    found = await scene.both({}, {"entry": {"token_ids": True}}, partial(_status_of_tokens, scene))

    assert found == (400, 200)


@case_of(CASES, "deadline.default")
async def _(scene: ReloadScene) -> None:
    async def remaining() -> float:
        await scene.ask("a")
        return scene.eu.calls[-1].items[0].remaining

    fresh = {"cache_ttl": 0}
    before, after = await scene.both(
        {"entry": fresh, "deadline": {"default": 1_000, "maximum": 9_000}},
        {"entry": fresh, "deadline": {"default": 9_000, "maximum": 9_000}},
        remaining,
    )

    assert before <= 1_000 < after <= 9_000


@case_of(CASES, "deadline.maximum")
async def _(scene: ReloadScene) -> None:
    async def remaining() -> float:
        await scene.ask("a", headers={"x-request-timeout": "8000"})
        return scene.eu.calls[-1].items[0].remaining

    fresh = {"cache_ttl": 0}
    before, after = await scene.both(
        {"entry": fresh, "deadline": {"maximum": 1_000}},
        {"entry": fresh, "deadline": {"maximum": 9_000}},
        remaining,
    )

    assert before <= 1_000 < after <= 8_000


async def _bound_is_raised(scene: ReloadScene, field: str) -> None:
    found = await scene.both(
        {"request": {field: 3}}, {"request": {field: 500}}, partial(scene.status, *"abcdef")
    )
    assert found == (413, 200)


for _field in ("max_body_bytes", "max_items", "max_values"):
    CASES[f"request.{_field}"] = partial(_bound_is_raised, field=_field)


async def _expansion_is_raised(scene: ReloadScene, field: str) -> None:
    found = await scene.both(
        {"request": {field: 3}},
        {"request": {field: 100_000}},
        partial(scene.status, *"abcdef"),
    )
    assert found == (422, 200)


for _field in ("max_expanded_bytes", "max_answer_bytes"):
    CASES[f"request.{_field}"] = partial(_expansion_is_raised, field=_field)


async def _length_is_raised(scene: ReloadScene, field: str) -> None:
    body = msgspec.json.encode({"model": scene.name, "input": "a", "labels": ["some", "more"]})

    async def status() -> int:
        return (await scene.exchange(post("/v1/zero-shot", body))).status

    found = await scene.both({"request": {field: 3}}, {"request": {field: 100}}, status)
    assert found == (422, 200)


for _field in ("max_template_bytes", "max_label_bytes"):
    CASES[f"request.{_field}"] = partial(_length_is_raised, field=_field)


# Prices


async def _price_changes(scene: ReloadScene, field: str, value: object) -> None:
    """Prices to come follow the document, in the ledger by which usage costs."""
    price = {"model": "*", "since": "2990-01-01", "currency": "EUR"}
    changed = msgspec.convert(price | {field: value}, PriceConfig)
    models = {"another": {"planned": True}}

    async def is_price() -> bool:
        return changed in await asyncio.to_thread(scene.ledger.prices.entries)

    found = await scene.both(
        {"models": models, "prices": [{}, price]},
        {"models": models, "prices": [{}, price | {field: value}]},
        is_price,
    )

    assert found == (False, True)


_PRICES: dict[str, object] = {
    "model": "another",
    "since": "2991-01-01",
    "currency": "USD",
    **dict.fromkeys(("hit", "computed", "row", "token", "batch_percent"), 7),
}
for _field, _price in _PRICES.items():
    CASES[f"prices[].{_field}"] = partial(_price_changes, field=_field, value=_price)
