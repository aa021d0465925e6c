"""What the state Redis holds changes together with the version that tells of it, or not at all."""

from collections.abc import Awaitable, Callable

import pytest

from sluicegate.gateway.errors import DependencyUnavailable
from sluicegate.gateway.redis.client import connect
from sluicegate.gateway.runtime.control import Control
from testing.valkey import Valkey

pytestmark = pytest.mark.anyio

Change = Callable[[Control], Awaitable[int]]


@pytest.mark.parametrize(
    ("change", "denied"),
    [
        (lambda c: c.raise_epoch("model:m"), "set"),
        (lambda c: c.drain("b"), "incr"),
        (lambda c: c.restore("drained"), "incr"),
    ],
    ids=["purge", "drain", "restore"],
)
async def test_a_change_that_cannot_be_told_of_is_not_made(change: Change, denied: str) -> None:
    with Valkey() as valkey:
        redis = connect(valkey.url, timeout=60.0)
        control = Control(redis)
        await control.drain("drained")
        before = (await control.epochs(), await control.drained(), await control.versions())

        valkey.ask(f"ACL SETUSER default -{denied}")
        with pytest.raises(DependencyUnavailable):
            await change(control)
        after = (await control.epochs(), await control.drained(), await control.versions())
        await redis.aclose()

    assert after == before


@pytest.mark.parametrize(
    "change",
    [lambda c: c.raise_epoch("model:m"), lambda c: c.drain("b"), lambda c: c.restore("b")],
    ids=["purge", "drain", "restore"],
)
async def test_a_change_returns_the_version_to_wait_for_and_is_heard_of(change: Change) -> None:
    with Valkey() as valkey:
        redis = connect(valkey.url, timeout=60.0)
        control = Control(redis)
        before = await control.versions()
        async with control.changes() as heard:
            while await heard():
                pass
            version = await change(control)
            is_heard = await heard()
        after = await control.versions()
        await redis.aclose()

    assert is_heard
    assert version in (after.epochs, after.drains)
    assert after != before
