"""Batches run to their end, each line once, whatever is killed meanwhile."""

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from copy import copy
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sluicegate.gateway.app.batches import run_batches
from sluicegate.gateway.batches.runner import FileRetention
from sluicegate.gateway.errors import Conflict, NotFound
from sluicegate.gateway.ledger.batch_types import BatchState
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.periods import utc_now
from sluicegate.gateway.settings import Settings, environment, process_environment
from sluicegate.gateway.storage.build import build_storage, file_object
from sluicegate.gateway.types import KeyId, Principal, Rule, TenantId
from sluicegate.gateway.workers.billing import run_billing
from sluicegate.gateway.workers.shipper import run_shipper
from sluicegate.wire.protocol import Call, Failed
from testing.stub_backend import Reply, StubBackend, answer, echo, hang, refuse
from testing.valkey import Valkey
from tests.support.batches import BatchScene, add_caller, batch_settings, request_line
from tests.support.pipeline import running

pytestmark = pytest.mark.anyio
_LINES, _ITEMS = 200, 10
_LONGEST = 0.5
"""Seconds that a request may take."""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One loop for the module, since its tests share a process of batches."""
    return "asyncio"


@pytest.fixture(scope="module")
async def stub(anyio_backend: str) -> AsyncIterator[StubBackend]:
    async with StubBackend() as running_stub:
        yield running_stub


@pytest.fixture(scope="module", autouse=True)
def emptied(valkey_server: Valkey) -> None:
    """Tests before may have published a document."""
    valkey_server.flush()


@pytest.fixture(scope="module")
async def scene(
    tmp_path_factory: pytest.TempPathFactory, valkey_server: Valkey, stub: StubBackend
) -> AsyncIterator[BatchScene]:
    """A tenant whose batches are run in this process."""
    settings = batch_settings(tmp_path_factory.mktemp("batches"), valkey_server.url)
    with Ledger.create(settings.ledger) as ledger:
        add_caller(
            ledger,
            "limited",
            "sk-a-key-with-limits",
            Rule(name="minute", unit="requests", capacity=1, window=60.0),
            Rule(name="month", unit="requests", capacity=3, period="month"),
        )
        made = BatchScene(
            settings, ledger, stub, deadline={"default": _LONGEST, "maximum": _LONGEST}
        )
        async with running(lambda stop: run_batches(settings, stop=stop)):
            yield made


class Runner:
    """The process that runs batches."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._environment = dict(process_environment()) | environment(settings)
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "sluicegate.gateway", "run-batches"]
        self._child = subprocess.Popen(
            command, env=self._environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()


@pytest.fixture
def runner(tmp_path: Path, valkey_server: Valkey) -> Iterator[Runner]:
    settings = batch_settings(tmp_path, valkey_server.url, batch_in_flight=4)
    process = Runner(settings)
    yield process
    process.kill()


async def bill(settings: Settings) -> None:
    """Bring what was recorded into the ledger."""

    async def ship(stop: asyncio.Event) -> None:
        await run_shipper(settings, stop=stop)

    async def record(stop: asyncio.Event) -> None:
        await run_billing(settings, stop=stop)

    async with running(ship, record):
        pass


def used(ledger: Ledger) -> dict[str, Any]:
    now = utc_now()
    (usage,) = ledger.usage("acme", now - timedelta(hours=1), now + timedelta(hours=1))
    return msgspec.structs.asdict(usage)


async def test_a_runner_that_is_killed_loses_nothing_and_repeats_nothing(
    runner: Runner, stub: StubBackend
) -> None:
    """Of 2,000 items; those of the part under way are asked again, and billed once all the same."""
    with Ledger.create(runner.settings.ledger) as ledger:
        await _kill_in_the_middle(BatchScene(runner.settings, ledger, stub), runner)


async def _kill_in_the_middle(scene: BatchScene, runner: Runner) -> None:
    texts = [[f"text {line}.{item}" for item in range(_ITEMS)] for line in range(_LINES)]
    batch = await scene.create(
        *(request_line(f"line-{number}", part) for number, part in enumerate(texts))
    )
    runner.start()
    await scene.until(batch, lambda found: found.completed >= _LINES / 4)
    runner.kill()
    runner.start()
    ended = await scene.until(batch, lambda found: found.is_clean)
    runner.kill()
    await bill(runner.settings)

    output = await scene.lines_of(ended.output_file)
    echoed = [[result["echo"] for result in line["response"]["body"]["results"]] for line in output]
    assert (ended.status, ended.error_file) == (BatchState.COMPLETED, None)
    assert [line["custom_id"] for line in output] == [f"line-{n}" for n in range(_LINES)]
    assert echoed == texts
    usage = used(scene.ledger)
    assert (usage["requests"], usage["items"]) == (_LINES, _LINES * _ITEMS)
    assert usage["failed"] == 0
    assert not (runner.settings.data_dir / "files" / "parts" / batch.id).exists()


async def test_lines_that_cannot_be_run_are_named_in_the_errors_file(scene: BatchScene) -> None:
    unknown = request_line("unknown", ["x"], body={"model": "nobody", "input": "x"})
    lines = (
        *(request_line("first", ["one"]), b"{not json\n", b"\n", request_line("first", ["two"])),
        *(msgspec.json.encode({"url": "/v1/classify", "body": {}}) + b"\n", unknown),
        request_line("elsewhere", ["x"], url="/v1/embed"),
    )
    ended = await scene.ended(await scene.create(*lines))

    errors = {line["id"][-1]: line for line in await scene.lines_of(ended.error_file)}
    assert [line["custom_id"] for line in await scene.lines_of(ended.output_file)] == ["first"]
    assert (ended.total, ended.completed, ended.failed) == (6, 1, 5)
    codes = {number: line["error"]["code"] for number, line in errors.items() if line["error"]}
    assert codes == {
        "2": "invalid_json_line",
        "4": "duplicate_custom_id",
        "5": "missing_custom_id",
        "7": "mismatched_url",
    }
    assert errors["4"]["error"]["line"] == 4
    assert "`first`" in errors["4"]["error"]["message"]
    assert errors["6"]["response"]["status_code"] == 404
    assert errors["6"]["response"]["body"]["code"] == "model_not_found"


async def test_a_line_that_expands_too_far_is_refused_alone(scene: BatchScene) -> None:
    """1 MB of texts and labels would be half a gigabyte of answer."""
    labels = [f"{number:03}".rjust(4000) for number in range(256)]
    texts = [f"t{number}" for number in range(512)]
    bodies = {
        "large": {"model": "stub", "input": texts, "labels": labels},
        "small": {"model": "stub", "input": texts[:2], "labels": ["a", "b"]},
    }
    url = "/v1/zero-shot"
    lines = (request_line(name, [], url=url, body=body) for name, body in bodies.items())

    ended = await scene.ended(await scene.create(*lines, endpoint=url))

    (refused,) = await scene.lines_of(ended.error_file)
    assert refused["custom_id"] == "large"
    assert refused["response"]["status_code"] == 422
    assert refused["response"]["body"]["code"] == "expansion_too_large"
    assert [line["custom_id"] for line in await scene.lines_of(ended.output_file)] == ["small"]


async def test_a_cancelled_batch_keeps_what_is_done(scene: BatchScene, stub: StubBackend) -> None:
    full = refuse("overloaded")

    async def behave(stub: StubBackend, call: Call, reply: Reply) -> None:
        is_late = any(b"late" in item.body for item in call.items)
        await (full if is_late else answer)(stub, call, reply)

    stub.behaviour = behave
    lines = [request_line(f"{n}", ["late" if n >= 20 else f"{n}"]) for n in range(60)]
    batch = await scene.create(*lines)
    await scene.until(batch, lambda found: found.completed == 20)
    asked = await scene.batches.cancel(scene.caller, batch.id)
    with pytest.raises(Conflict, match=batch.id):
        await scene.files.delete(scene.caller, batch.input_file)
    ended = await scene.ended(batch)
    stub.behaviour = answer

    output = await scene.lines_of(ended.output_file)
    assert asked.status is BatchState.CANCELLING
    assert ended.status is BatchState.CANCELLED
    assert [line["custom_id"] for line in output] == [f"{n}" for n in range(20)]
    assert len(output) == ended.completed == 20


async def test_a_line_without_some_items_is_asked_again_and_billed_once(
    scene: BatchScene, stub: StubBackend
) -> None:
    """What lacks room or time may be answered yet; what fails is given as it is, and billed."""
    await bill(scene.settings)
    before = used(scene.ledger)
    failures = Counter({b"soon": 2, b"never": 99})

    async def behave(stub: StubBackend, call: Call, reply: Reply) -> None:
        for index, item in enumerate(call.items):
            word = bytes(item.body).split()[-1]
            if failures[word]:
                failures[word] -= 1
                status, code = (504, "deadline_exceeded") if word == b"soon" else (500, "odd")
                failed = Failed(index=index, status=status, code=code, detail="", retryable=False)
                await reply.send(failed)
            else:
                await reply.send(echo(call, index, stub.backend_id))
        await reply.end(stub.report)

    stub.behaviour = behave
    bodies = [
        {"model": "stub", "input": [f"partial {word}", f"{word} two"], "on_error": "continue"}
        for word in ("soon", "never")
    ]
    batch = await scene.create(*(request_line(f"{n}", [], body=b) for n, b in enumerate(bodies)))
    ended = await scene.ended(batch)
    stub.behaviour = answer
    await bill(scene.settings)

    output = await scene.lines_of(ended.output_file)
    results = [line["response"]["body"]["results"] for line in output]
    assert ["error" in result for line in results for result in line] == [False, False, True, False]
    after = used(scene.ledger)
    changes = {name: after[name] - before[name] for name in ("requests", "items", "failed")}
    assert changes == {"requests": 2, "items": 4, "failed": 1}


async def test_lines_that_need_more_than_a_request_may_take_get_it(
    scene: BatchScene, stub: StubBackend
) -> None:
    async def behave(stub: StubBackend, call: Call, reply: Reply) -> None:
        has_time = call.items[0].remaining > 1.5 * _LONGEST
        await (answer if has_time else hang)(stub, call, reply)

    stub.behaviour = behave
    ended = await scene.ended(await scene.create(request_line("slow", ["slow"])))
    stub.behaviour = answer

    assert (ended.completed, ended.failed) == (1, 0)


async def test_lines_that_have_no_time_left_are_in_the_errors_file(scene: BatchScene) -> None:
    file = await scene.upload(request_line("late", ["x"]) + request_line("too", ["y"]))
    now = scene.ledger.batches.now()
    template = await scene.create(request_line("x", ["x"]))
    batch = msgspec.structs.replace(
        template, id="batch_expired", input_file=file, created=now - 90_000, expires=now - 3_600
    )
    scene.ledger.batches.create(batch, most_open=9, most_bytes=1 << 30)
    ended = await scene.ended(batch)

    errors = await scene.lines_of(ended.error_file)
    assert (ended.status, ended.failed) == (BatchState.EXPIRED, 2)
    assert {line["error"]["code"] for line in errors} == {"batch_expired"}


async def test_a_batch_is_charged_to_quotas_and_to_no_rate(scene: BatchScene) -> None:
    (key,) = scene.ledger.accounts.keys("limited")
    limited = copy(scene)
    limited.caller = Principal(tenant=TenantId("limited"), key=KeyId(key.id))
    batch = await limited.create(*(request_line(f"{n}", [f"{n}"]) for n in range(5)))
    ended = await limited.ended(batch)

    errors = await limited.lines_of(ended.error_file)
    assert (ended.completed, ended.failed) == (3, 2)
    assert {line["response"]["status_code"] for line in errors} == {429}


async def test_old_files_are_removed(scene: BatchScene) -> None:
    storage = build_storage(scene.settings)
    kept, old = [await scene.upload(b"{}\n") for _ in range(2)]
    scene.ledger.files.finish(old, size=3, expires=1)

    FileRetention(
        files=scene.ledger.files, batches=scene.ledger.batches, storage=storage, keep=1000
    ).run_once()

    assert b"".join(storage.read(file_object(kept))) == b"{}\n"
    with pytest.raises(NotFound):
        list(storage.read(file_object(old)))
    with pytest.raises(NotFound):
        await scene.files.get(scene.caller, old)
