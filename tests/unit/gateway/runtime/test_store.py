"""Swapping the runtime."""

import pytest

from sluicegate.gateway.config.document import Document
from sluicegate.gateway.runtime.runtime import Runtime, compile_runtime
from sluicegate.gateway.runtime.store import RuntimeStore
from tests.support.config_texts import load_text

pytestmark = pytest.mark.anyio


def runtime(generation: int) -> Runtime:
    return compile_runtime(Document(), generation, {})


async def test_a_swap_is_prepared_then_made_then_told() -> None:
    store = RuntimeStore(runtime(1))
    steps: list[str] = []

    async def prepare(to_come: Runtime) -> None:
        steps.append(f"prepare {to_come.generation} at {store.current.generation}")

    store.on_prepare(prepare)
    store.on_swap(lambda now: steps.append(f"tell {now.generation} at {store.current.generation}"))

    await store.swap(runtime(2))

    assert steps == ["prepare 2 at 1", "tell 2 at 2"]


async def test_a_hook_that_refuses_leaves_everything_as_it_was() -> None:
    store = RuntimeStore(runtime(1))
    told: list[Runtime] = []

    async def refuse(_: Runtime) -> None:
        raise ValueError("not now")

    store.on_prepare(refuse)
    store.on_swap(told.append)

    with pytest.raises(ValueError, match="not now"):
        await store.swap(runtime(2))

    assert store.current.generation == 1
    assert told == []


async def test_a_callback_that_fails_does_not_keep_others_from_the_news() -> None:
    store = RuntimeStore(runtime(1))
    told: list[Runtime] = []

    def fail(_: Runtime) -> None:
        raise ValueError("a bug")

    store.on_swap(fail)
    store.on_swap(told.append)

    with pytest.raises(ExceptionGroup):
        await store.swap(runtime(2))

    assert store.current.generation == 2
    assert [one.generation for one in told] == [2]


def test_endpoints_come_in_the_order_of_the_document() -> None:
    document = load_text(
        """
        regions:
          - name: eu
            pools:
              - backends: [{id: a, url: "http://h:1/", weight: 2}]
              - {name: spare, overflow: true, backends: [{id: b, url: "http://h:2"}]}
          - {name: us, pools: [{backends: [{id: c, url: "http://h:3"}]}]}
        """
    )

    compiled = compile_runtime(document, 3, {"model:x": 4})

    shown = [(e.backend, e.region, e.url, e.weight, e.overflow) for e in compiled.endpoints]
    assert shown == [
        ("a", "eu", "http://h:1", 2.0, False),
        ("b", "eu", "http://h:2", 1.0, True),
        ("c", "us", "http://h:3", 1.0, False),
    ]
    assert (compiled.generation, compiled.epochs["model:x"]) == (3, 4)
