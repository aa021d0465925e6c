"""Changes fields of the document and finds the effect of each: the section `routing`."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from functools import partial

from sluicegate.gateway.dispatch.prober import MIN_INTERVAL
from sluicegate.gateway.routing.endpoint_state import CallVerdict, Health
from sluicegate.wire.protocol import Report
from testing.stub_backend import StubBackend, cut_after, hang
from testing.waiting import until
from tests.support.reload_scene import LONG, ReloadCase, ReloadScene, Section, case_of

CASES: dict[str, ReloadCase] = {}


def routing(**fields: object) -> Section:
    """Return the section of a document."""
    return {"routing": fields}


@case_of(CASES, "regions[].pools[].models[]")
async def _(scene: ReloadScene) -> None:
    async def assigned() -> set[tuple[str, ...]]:
        return {endpoint.models for endpoint in scene.fleet.endpoints}

    # Every served model has a backend: the first region's serves what it is set to.
    assert await scene.both(
        {"regions": scene.regions()}, {"regions": scene.regions(models=["x-*"])}, assigned
    ) == ({()}, {(), ("x-*",)})


# Calls


@case_of(CASES, "routing.attempts")
async def _(scene: ReloadScene) -> None:
    scene.eu.behaviour = scene.us.behaviour = cut_after(0)
    numbers = iter(range(10))

    async def tries() -> int:
        scene.eu.calls.clear()
        scene.us.calls.clear()
        await scene.ask(f"{next(numbers)}")
        return len(scene.eu.calls) + len(scene.us.calls)

    assert await scene.both(routing(attempts=1), routing(attempts=2), tries) == (1, 2)


@case_of(CASES, "routing.attempt_timeout")
async def _(scene: ReloadScene) -> None:
    """The old one would outlive the test."""
    scene.eu.behaviour = scene.us.behaviour = hang
    await scene.put(**routing(attempts=1))

    await scene.put(**routing(attempts=1, attempt_timeout=0.02))
    response = await scene.ask("a")

    assert response.status >= 500
    assert response.json()["code"] != "deadline_exceeded"


@contextlib.contextmanager
def _unanswered() -> Iterator[str]:
    """Give a URL whose connections are never accepted, nor refused."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            filling = stack.enter_context(socket.socket())
            filling.setblocking(False)
            filling.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@case_of(CASES, "routing.connect_timeout")
async def _(scene: ReloadScene) -> None:
    """Under the old one the probe of a new backend would outlive the test."""
    await scene.put(**routing(connect_timeout=LONG))
    await scene.put(**routing(connect_timeout=0.02))

    with _unanswered() as url:
        away = scene.backend(scene.eu, url=url)
        regions = [{"name": "eu", "pools": [{"backends": [away]}]}]
        await scene.put(regions=regions, **routing(connect_timeout=0.02))
        await until(lambda: "no connection in time" in scene.statistics(scene.eu).trouble)


@case_of(CASES, "routing.client")
async def _(scene: ReloadScene) -> None:
    """Calls over httpx end their connections; those of the native client keep them."""
    numbers = iter(range(10))

    async def ends_connections() -> bool:
        scene.eu.headers.clear()
        scene.us.headers.clear()
        await scene.ask(f"{next(numbers)}")
        (headers,) = (*scene.eu.headers, *scene.us.headers)
        return headers.get("connection") == "close"

    clients = routing(client="native"), routing(client="httpx")
    assert await scene.both(*clients, ends_connections) == (False, True)


@case_of(CASES, "routing.max_calls_per_backend")
async def _(scene: ReloadScene) -> None:
    """With the old bound only one of the two would arrive."""
    scene.eu.behaviour = hang
    await scene.put(**routing(max_calls_per_backend=1))
    await scene.put(**routing(max_calls_per_backend=2))

    async with contextlib.AsyncExitStack() as stack:
        for text in "ab":
            connection = await stack.enter_async_context(scene.worker.connect())
            await scene.send(connection, text)
            count = len(scene.eu.calls)
            await until(lambda least=count + 1: len(scene.eu.calls) >= least)  # type: ignore[misc]


@case_of(CASES, "routing.hedge_share")
async def _(scene: ReloadScene) -> None:
    hedging, numbers = scene.backends.dispatcher.hedging, iter(range(10))

    async def share() -> float:
        await scene.ask(f"{next(numbers)}")
        return hedging.share

    assert await scene.both(routing(hedge_share=0.1), routing(hedge_share=0.2), share) == (0.1, 0.2)


# Probes and names


@case_of(CASES, "routing.probe_interval")
async def _(scene: ReloadScene) -> None:
    await scene.put(**routing(probe_interval=3_600))
    clock = asyncio.get_running_loop().time
    asleep = clock() + 3 * MIN_INTERVAL
    await until(lambda: clock() > asleep)

    await scene.put(**routing(probe_interval=0.05))

    before = scene.eu.probes
    await until(lambda: scene.eu.probes > before + 2)


@case_of(CASES, "routing.probe_timeout")
async def _(scene: ReloadScene) -> None:
    """The old one would outlive the test."""
    await scene.put(**routing(probe_timeout=LONG))
    await scene.put(**routing(probe_timeout=0.2))

    scene.eu.is_frozen = True

    await until(lambda: scene.statistics(scene.eu).health is Health.NOT_READY)


def _named(scene: ReloadScene, **fields: object) -> Section:
    """Return a document whose backend is found by name."""
    scene.resolver.table[scene.name] = ["127.0.0.1"]
    backend = {"id": "named", "dns": f"{scene.name}:{scene.eu.port}"}
    return {
        "regions": [{"name": "eu", "pools": [{"backends": [backend]}]}],
        "routing": {"dns_timeout": LONG} | fields,
    }


@case_of(CASES, "routing.dns_interval")
async def _(scene: ReloadScene) -> None:
    await scene.put(**_named(scene, dns_interval=3_600))

    await scene.put(**_named(scene, dns_interval=0.02))

    before = scene.resolver.asked
    await until(lambda: scene.resolver.asked > before + 2)


@case_of(CASES, "routing.dns_timeout")
async def _(scene: ReloadScene) -> None:
    """The old one would outlive the test."""
    await scene.put(**_named(scene, dns_interval=0.02))
    await scene.put(**_named(scene, dns_interval=0.02, dns_timeout=0.02))

    scene.resolver.is_hanging = True

    await until(lambda: scene.backends.discovery.statistics().failing == 1)
    scene.resolver.is_hanging = False


# Ejection: the fleet is told of calls that failed, as the dispatcher does.


def _call(scene: ReloadScene, stub: StubBackend, verdict: CallVerdict) -> None:
    endpoint = next(e for e in scene.fleet.endpoints if e.backend == stub.backend_id)
    scene.fleet.record(endpoint, verdict)


async def _ejected_after(scene: ReloadScene, *verdicts: CallVerdict) -> bool:
    for verdict in verdicts:
        _call(scene, scene.eu, verdict)
    return scene.statistics(scene.eu).ejected_for > 0


_FAILED = CallVerdict.FAILED
_MIXED = (CallVerdict.OK, _FAILED) * 20
for _field, _before, _after, _verdicts in (
    ("eject_after", {"eject_after": 1_000}, {"eject_after": 2}, (_FAILED, _FAILED)),
    ("eject_share", {"eject_share": 1.0}, {"eject_share": 0.1}, _MIXED),
    (
        "max_ejected",
        {"eject_after": 1, "max_ejected": 0},
        {"eject_after": 1, "max_ejected": 1},
        (_FAILED, _FAILED),
    ),
):

    async def _ejects(
        scene: ReloadScene, before: Section, after: Section, verdicts: tuple[CallVerdict, ...]
    ) -> None:
        observe = partial(_ejected_after, scene, *verdicts)
        assert await scene.both({"routing": before}, {"routing": after}, observe) == (False, True)

    CASES[f"routing.{_field}"] = partial(_ejects, before=_before, after=_after, verdicts=_verdicts)


@case_of(CASES, "routing.eject_for")
async def _(scene: ReloadScene) -> None:
    await scene.put(**routing(eject_after=1, max_ejected=1, eject_for=1_000))
    _call(scene, scene.eu, _FAILED)
    await scene.put(**routing(eject_after=1, max_ejected=1, eject_for=9_000))
    _call(scene, scene.us, _FAILED)

    assert scene.statistics(scene.eu).ejected_for <= 1_000
    assert scene.statistics(scene.us).ejected_for > 1_000


@case_of(CASES, "routing.panic_threshold")
async def _(scene: ReloadScene) -> None:
    backends = [scene.backend(scene.eu), scene.backend(scene.us)]
    regions = [{"name": "eu", "pools": [{"backends": backends}]}]
    ejecting = {"eject_after": 1, "eject_for": 9_000}

    async def used() -> int:
        if not scene.statistics(scene.us).ejected_for:
            _call(scene, scene.us, _FAILED)
        items = [b"%d" % number for number in range(64)]
        return len(scene.fleet.spread(scene.model(), items))

    found = await scene.both(
        {"regions": regions, "routing": ejecting | {"panic_threshold": 0.1}},
        {"regions": regions, "routing": ejecting | {"panic_threshold": 1}},
        used,
    )

    assert found == (1, 2)


@case_of(CASES, "routing.slow_start")
async def _(scene: ReloadScene) -> None:
    async def share() -> float:
        return scene.statistics(scene.us).share

    await scene.put(**routing(slow_start=9_000))
    scene.fleet.drain(frozenset({scene.us.backend_id}))
    scene.fleet.drain(frozenset())
    before = await share()
    await scene.put(**routing(slow_start=1e-6))

    assert before < 1.0
    assert await share() == 1.0


# Regions


async def _first_choice(scene: ReloadScene) -> str:
    """Return who comes first while the backend in the first region has much to do."""
    scene.eu.report = Report(queued_seconds=5_000.0, rows_per_second=100.0)
    await until(lambda: scene.statistics(scene.eu).report == scene.eu.report)
    return scene.fleet.candidates(scene.model(), b"item")[0].region


@case_of(CASES, "routing.spill_after")
async def _(scene: ReloadScene) -> None:
    found = await scene.both(
        routing(spill_after=9_000), routing(spill_after=1), partial(_first_choice, scene)
    )

    assert found == ("eu", "us")


@case_of(CASES, "routing.overflow_after")
async def _(scene: ReloadScene) -> None:
    regions = scene.regions(overflow=True)

    found = await scene.both(
        {"regions": regions, **routing(spill_after=1, overflow_after=9_000)},
        {"regions": regions, **routing(spill_after=1, overflow_after=1)},
        partial(_first_choice, scene),
    )

    assert found == ("eu", "us")
