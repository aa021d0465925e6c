"""Changes fields of guards and routers, and finds the effect of each."""

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


_FOUND = (
    b'{"detector":"words","label":"X","score":1.0,"text":"a","start":0,"end":1,"action":"block"}'
)


async def _answer_all(stub: StubBackend, call: Call, reply: Reply, verdict: bytes) -> None:
    findings = _FOUND if verdict == b"block" else b""
    result = b'{"verdict":"%b","findings":[%b]}' % (verdict, findings)
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


@case_of(CASES, "decisions.texts[]")
async def _(scene: ReloadScene) -> None:
    """Only texts of tenants that agreed are kept, and no longer than they agree."""
    scene.eu.behaviour = scene.us.behaviour = _block

    async def texts() -> list[str]:
        await _answer(scene)
        kept = scene.worker.parts.decisions.of("own")
        assert kept is not None
        return [one.text for one in kept.decisions]

    agreed = _guard(scene) | {"decisions": {"texts": ["acme"]}}

    assert await scene.both(agreed, _guard(scene), texts) == (["a"], ["", ""])


_FORMATS = {"name": "contacts", "kind": "formats", "formats": ["email"]}
_RULE = {"detector": "contacts", "label": "EMAIL", "target": "old"}


def _router(scene: ReloadScene, **fields: Any) -> Section:
    declared = {"model": scene.name, "detectors": [_FORMATS], "rules": [_RULE], "default": "none"}
    return {"routers": {"own": declared | fields}}


async def _find_email(stub: StubBackend, call: Call, reply: Reply) -> None:
    found = (
        b'{"verdict":"flag","findings":[{"detector":"contacts","action":"flag","label":"EMAIL",'
        b'"score":1.0,"start":0,"end":1}]}'
    )
    await reply.send(
        *(Done(index=i, result=found, rows=1, tokens=4) for i in range(len(call.items)))
    )
    await reply.end(stub.report)


async def _route(scene: ReloadScene) -> Response:
    return await scene.exchange(post("/v1/route/own", b'{"input":"a"}'))


async def _target_changes(scene: ReloadScene, changes: Section, *, fails: bool = False) -> None:
    """The text gets the target `new` because of the changes of its router."""
    behaviour = refuse("overloaded") if fails else _find_email
    scene.eu.behaviour = scene.us.behaviour = behaviour

    async def target() -> object:
        return (await _route(scene)).json()["results"][0]["target"]

    before, after = await scene.both(_router(scene), _router(scene, **changes), target)

    assert before != after == "new"


_LATER = _RULE | {"detector": "later"}
_ROUTER_CHANGES: dict[str, Section] = {
    "rules[].target": {"rules": [_RULE | {"target": "new"}]},
    "rules[].label": {
        "detectors": [_FORMATS | {"formats": ["email", "phone"]}],
        "rules": [_RULE | {"label": "PHONE"}],
        "default": "new",
    },
    "rules[].detector": {
        "detectors": [_FORMATS, _FORMATS | {"name": "later"}],
        "rules": [_LATER],
        "default": "new",
    },
    "shadow": {"shadow": "new"},
}
for _field, _changes in _ROUTER_CHANGES.items():
    CASES[f"routers.*.{_field}"] = partial(_target_changes, changes=_changes)
for _field in ("default", "on_error"):
    CASES[f"routers.*.{_field}"] = partial(_target_changes, changes={_field: "new"}, fails=True)


@case_of(CASES, "routers.*.model")
async def _(scene: ReloadScene) -> None:
    async def status() -> int:
        return (await _route(scene)).status

    scene.eu.behaviour = scene.us.behaviour = _find_email
    models = {"models": {scene.name: {"planned": True}, "later": {"planned": True}}}

    found = await scene.both(_router(scene), models | _router(scene, model="later"), status)

    assert found == (200, 404)


@case_of(CASES, "routers.*.detectors[]")
async def _(scene: ReloadScene) -> None:
    """The backend gets the router's detectors in the new form."""
    scene.eu.behaviour = scene.us.behaviour = _find_email

    async def sent() -> object:
        await _route(scene)
        return msgspec.msgpack.decode(scene.eu.calls[-1].parameters)["detectors"][0]["formats"]

    any_label = [{"detector": "contacts", "target": "old"}]
    changed = _router(scene, detectors=[_FORMATS | {"formats": ["iban"]}], rules=any_label)

    assert await scene.both(_router(scene), changed, sent) == (["email"], ["iban"])
