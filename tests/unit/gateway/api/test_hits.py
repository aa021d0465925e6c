"""A memory hit is replayed to equal requests, charged and counted each time, while it holds."""

from functools import partial

import msgspec
import pytest

from sluicegate.gateway.api.hits import MEASURED_ONE_OF
from sluicegate.gateway.auth.keys import hash_key
from sluicegate.gateway.config.document import LimitsConfig, ModelConfig
from sluicegate.gateway.types import KeyId, Principal, Rule, TenantId, Usage
from tests.support.api import KEY, NARROW_KEY
from tests.support.dialects import GUARDS, serve_models
from tests.support.entry_points import EntryPoint
from tests.support.inference_scene import INFO

pytestmark = pytest.mark.anyio
_RULE = Rule(name="minute", unit="requests", capacity=10, window=60.0)


@pytest.fixture
async def entry_point(anyio_backend: str) -> EntryPoint:
    entry_point = EntryPoint(fast=True)
    entry_point.api.configure(limits=LimitsConfig(tenant=(_RULE,)))
    return entry_point


def ask(extra: str = "", texts: str | list[str] = "popular") -> bytes:
    body = msgspec.json.encode({"model": "sentiment", "input": texts})
    head = f"POST /v1/classify HTTP/1.1\r\nhost: w\r\nauthorization: Bearer {KEY}\r\n{extra}"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def remaining(answer: bytes) -> bytes:
    """Return how many requests the answer says remain."""
    return answer.split(b"x-ratelimit-remaining-requests: ")[1].split(b"\r\n")[0]


@pytest.mark.parametrize("extra", ["", "x-more: 1\r\n", "x-server-timing: 1\r\n"])
async def test_a_replay_is_charged_and_has_an_event(entry_point: EntryPoint, extra: str) -> None:
    for _ in range(2):
        await entry_point.send(ask())
    entry_point.events()

    answer = await entry_point.send(ask(extra))

    assert b"cache-status: sluicegate; hit; detail=memory\r\n" in answer
    assert remaining(answer) == b"7"
    assert len(entry_point.events()) == 1
    entry_point.api.metrics.flush()
    labels = {"model": "sentiment", "revision": INFO.revision, "source": "memory_hit"}
    assert entry_point.api.registry.get_sample_value("sluicegate_items_total", labels) == 2


async def test_verdicts_of_replays_are_counted(entry_point: EntryPoint) -> None:
    api = entry_point.api
    serve_models(api)
    api.configure(guards=GUARDS)
    body = b'{"input":"popular"}'
    request = ask().replace(b"/v1/classify", b"/v1/guard/chat")
    request = request.partition(b"content-length")[0] + b"content-length: 19\r\n\r\n" + body
    verdicts = (b"block", b"allow")
    for count, verdict in enumerate(verdicts, 3):
        api.scene.runner.result = partial(_verdict, verdict)
        for _ in range(count):
            await entry_point.send(request)
        request = request.replace(b"popular", b"another")

    answer = await entry_point.send(request.replace(b"another", b"popular"))

    assert b'"verdict":"block"' in answer
    api.metrics.flush()
    counted = [
        api.registry.get_sample_value(
            "sluicegate_guard_texts_total", {"guard": "chat", "verdict": verdict.decode()}
        )
        for verdict in verdicts
    ]
    assert counted == [4, 4]


async def test_one_of_64_replays_is_a_sampled_decision(entry_point: EntryPoint) -> None:
    api = entry_point.api
    serve_models(api)
    api.configure(guards=GUARDS, limits=LimitsConfig(tenant=()))
    body = b'{"input":"popular"}'
    request = ask().replace(b"/v1/classify", b"/v1/guard/chat")
    request = request.partition(b"content-length")[0] + b"content-length: 19\r\n\r\n" + body
    api.scene.runner.result = partial(_verdict, b"block")
    api.metrics.decisions.follow(api.runtimes.current.document.guards, ["acme"])
    for _ in range(2):  # the second one leaves what is replayed
        await entry_point.send(request)

    for _ in range(2 * MEASURED_ONE_OF):
        await entry_point.send(request)

    kept = api.metrics.decisions.of("chat")
    assert kept is not None
    found = [(one.verdict, one.tenant, one.text) for one in kept.decisions]
    assert found == [("block", "acme", "popular")] * 4


def _verdict(verdict: bytes, _: bytes) -> bytes:
    return b'{"verdict":"%b","findings":[]}' % verdict


async def test_an_equal_request_of_another_key_is_decided_by_its_own_rights(
    entry_point: EntryPoint,
) -> None:
    for _ in range(3):
        await entry_point.send(ask())

    answer = await entry_point.send(ask().replace(KEY.encode(), NARROW_KEY.encode()))

    assert answer.startswith(b"HTTP/1.1 403 ")


async def test_an_entry_that_was_replaced_is_not_replayed(entry_point: EntryPoint) -> None:
    for _ in range(2):
        await entry_point.send(ask())
    ((key, entry),) = entry_point.api.scene.cache.entries.items()
    entry_point.api.scene.cache.entries[key] = msgspec.structs.replace(entry, payload=b'"newer"')

    answer = await entry_point.send(ask())

    assert b"newer" in answer
    assert remaining(answer) == b"7"


async def test_an_entry_is_not_replayed_beyond_a_lifetime_that_was_shortened(
    entry_point: EntryPoint,
) -> None:
    await entry_point.send(ask())
    entry_point.api.configure(models={"sentiment": ModelConfig(cache_ttl=60.0)})
    for _ in range(2):
        await entry_point.send(ask())
    computed = len(entry_point.api.scene.runner.computed)

    entry_point.api.scene.wall.advance(61.0)
    answer = await entry_point.send(ask())

    assert b"fwd=uri-miss; stored" in answer
    assert len(entry_point.api.scene.runner.computed) == computed + 1


async def test_a_limit_that_is_only_tried_out_is_checked_each_time(entry_point: EntryPoint) -> None:
    tried = msgspec.structs.replace(_RULE, name="tried", capacity=1, shadow=True)
    entry_point.api.configure(limits=LimitsConfig(tenant=(_RULE, tried)))

    for _ in range(4):
        await entry_point.send(ask())

    value = entry_point.api.registry.get_sample_value(
        "sluicegate_limit_decisions_total", {"policy": "tried", "decision": "shadow_refused"}
    )
    assert value == 3


async def test_each_key_is_looked_up_in_memory_once(entry_point: EntryPoint) -> None:
    peeks = []
    for texts in ("popular", "popular", "popular", ["popular", "new"]):
        await entry_point.send(ask(texts=texts))
        peeks.append(entry_point.api.scene.cache.peeks)

    # The others are misses, or looked up behind the first look into memory.
    assert peeks == [0, 1, 2, 2]


async def test_a_request_that_names_no_model_is_not_replayed_once_there_are_others(
    entry_point: EntryPoint,
) -> None:
    serve_models(entry_point.api)
    models = frozenset({INFO.name, "another"})
    caller = Principal(tenant=TenantId("acme"), key=KeyId("key_1"), models=models)
    entry_point.api.keys.replace({hash_key(KEY): caller})
    body = b'{"inputs":"popular"}'
    head = ask().replace(b"/v1/classify", b"/predict").split(b"content-length")[0]
    request = head + b"content-length: %d\r\n\r\n" % len(body) + body
    answers = [await entry_point.send(request) for _ in range(3)]

    another = msgspec.structs.replace(INFO, name="another")
    entry_point.api.scene.models.infos["another"] = another
    later = await entry_point.send(request)

    assert [answer[9:12] for answer in answers] == [b"200"] * 3
    assert later[9:12] == b"422"


async def test_a_run_of_hits_bills_what_its_answers_say(entry_point: EntryPoint) -> None:
    texts = ("a", "a much longer text", "\u65e5\u672c\u8a9e")

    answers = [await entry_point.send(ask(texts=text)) for text in texts for _ in range(3)]

    told = [msgspec.json.decode(each.split(b"\r\n\r\n", 1)[1])["usage"] for each in answers]
    billed = [msgspec.to_builtins(event[5]) for event in entry_point.events()]
    assert len(told) == len(billed) == 9
    for name in Usage.__struct_fields__:
        assert sum(each[name] for each in told) == sum(each[name] for each in billed)
