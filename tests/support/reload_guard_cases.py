"""Changes fields of guards, and finds the effect of each."""

from functools import partial
from typing import Any

import msgspec

from sluicegate.wire.protocol import Call, Done
from testing.raw_http import Response, post
from testing.stub_backend import Reply, StubBackend, refuse
from tests.support.reload_scene import ReloadCase, ReloadScene, Section, case_of

CASES: dict[str, ReloadCase] = {}
_DETECTOR = {"name": "words", "kind": "words", "words": ["x"]}


def _guard(scene: ReloadScene, **fields: Any) -> Section:
    return {"guards": {"own": {"model": scene.name, "detectors": [_DETECTOR]} | fields}}


async def _answer_all(stub: StubBackend, call: Call, reply: Reply, verdict: bytes) -> None:
    result = b'{"verdict":"%b","findings":[]}' % verdict
    await reply.send(
        *(Done(index=i, result=result, rows=1, tokens=4) for i in range(len(call.items)))
    )
    await reply.end(stub.report)


_block = partial(_answer_all, verdict=b"block")
_allow = partial(_answer_all, verdict=b"allow")


async def _answer(scene: ReloadScene) -> Response:
    return await scene.exchange(post("/v1/guard/own", b'{"input":"a"}'))


async def _result(scene: ReloadScene, field: str) -> object:
    (result,) = (await _answer(scene)).json()["results"]
    return result.get(field)


async def _parameter_changes(scene: ReloadScene, field: str, value: Any) -> None:
    """The backend gets the guard's detectors and how it looks, in the new form."""
    scene.eu.behaviour = scene.us.behaviour = _block

    async def sent() -> object:
        assert await _result(scene, "verdict") == "block"
        found: object = msgspec.msgpack.decode(scene.eu.calls[-1].parameters).get(field)
        return found

    before, after = await scene.both(_guard(scene), _guard(scene, **{field: value}), sent)

    assert before != after == value


for _field, _value in {
    "detectors": [_DETECTOR | {"words": ["y"]}],
    "allow": ["x"],
    "overlap": 7,
}.items():
    _path = f"guards.*.{_field}" + ("[]" if isinstance(_value, list) else "")
    CASES[_path] = partial(_parameter_changes, field=_field, value=_value)


@case_of(CASES, "guards.*.model")
async def _(scene: ReloadScene) -> None:
    async def status() -> int:
        return (await _answer(scene)).status

    scene.eu.behaviour = scene.us.behaviour = _block
    models = {"models": {scene.name: {"planned": True}, "later": {"planned": True}}}

    found = await scene.both(_guard(scene), models | _guard(scene, model="later"), status)

    assert found == (200, 404)


@case_of(CASES, "guards.*.message")
async def _(scene: ReloadScene) -> None:
    scene.eu.behaviour = scene.us.behaviour = _block

    found = await scene.both(
        _guard(scene), _guard(scene, message="Not here."), partial(_result, scene, "message")
    )

    assert found == (None, "Not here.")


@case_of(CASES, "guards.*.on_error")
async def _(scene: ReloadScene) -> None:
    scene.eu.behaviour = scene.us.behaviour = refuse("overloaded")

    found = await scene.both(
        _guard(scene), _guard(scene, on_error="allow"), partial(_result, scene, "verdict")
    )

    assert found == ("block", "allow")


@case_of(CASES, "guards.*.holdback")
async def _(scene: ReloadScene) -> None:
    async def held_back() -> object:
        response = await scene.exchange(post("/v1/guard/own", b'{"input":["a","b"],"pieces":true}'))
        return response.json()["results"][0]["holdback"]

    scene.eu.behaviour = scene.us.behaviour = _allow

    assert await scene.both(_guard(scene), _guard(scene, holdback=1), held_back) == (2, 1)
