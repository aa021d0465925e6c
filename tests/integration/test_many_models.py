"""A backend with a bound of its models' memory loads models on demand and evicts others."""

import asyncio
import gc
import threading
import weakref
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import msgspec
import pytest

from sluicegate.backends.serving.residency import DeclaredEncoder, RunningEncoder
from sluicegate.wire.protocol import Done, Refusal, Task
from testing.model_repository import (
    DIMENSIONS,
    write_encoder,
    write_head,
    write_model,
    write_repository,
)
from testing.waiting import until
from tests.support.backend_calls import AsgiExchange, Backend, running_backend
from tests.support.executors import PacedExecutor
from tests.support.gate import Gate

pytestmark = pytest.mark.anyio
NAMES = ("first", "second", "third")
ROOM = 10**6


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A repository with three encoders."""
    root = tmp_path / "models"
    for name in NAMES:
        write_encoder(root, name, real=True, description=name)
    return root


def size(models: Path) -> int:
    return (models / "first" / "1" / "model.onnx").stat().st_size + 200


def records(models: Path) -> list[Path]:
    return list(models.glob("first/1/.loaded-*.json"))


async def qualified(models: Path) -> Path:
    """Return the repository after a first start has qualified all its models."""
    async with running_backend(models, model_memory_bytes=ROOM):
        return models


def states(backend: Backend) -> dict[str, str]:
    return dict(backend.engine.state().states)


def declared(backend: Backend, name: str) -> DeclaredEncoder:
    return next(each for each in backend.engine.model_set.encoders if each.name == name)


class WatchedLoads:
    """Counts the loads of a backend's encoders, and holds them until `open` is called."""

    def __init__(self, backend: Backend) -> None:
        self.counts: Counter[str] = Counter()
        self._opened = threading.Event()
        for each in backend.engine.model_set.encoders:
            self._watch(each)

    def _watch(self, encoder: DeclaredEncoder) -> None:
        load = encoder.load

        def watched() -> RunningEncoder:
            self.counts[encoder.name] += 1
            assert self._opened.wait(10.0), "nobody opened the gate"
            return load()

        encoder.load = watched

    def open(self) -> None:
        """Let all loads go on."""
        self._opened.set()


async def ask_all(backend: Backend, names: Sequence[str]) -> list[object]:
    return [await backend.answer(name, Task.EMBED, "good film") for name in names]


async def test_a_qualified_model_is_declared_and_loaded_by_its_first_call(models: Path) -> None:
    async with running_backend(models) as backend:
        expected = await backend.answer("first", Task.EMBED, "good film")
        revision = backend.info("first").revision
    async with running_backend(await qualified(models), model_memory_bytes=ROOM) as backend:
        before, info = states(backend), backend.info("first")

        answer = await backend.answer("first", Task.EMBED, "good film")

        assert before == dict.fromkeys(NAMES, "declared")
        assert info.revision == revision
        assert answer == expected
        assert states(backend) == {"first": "loaded", "second": "declared", "third": "declared"}


async def test_a_first_start_qualifies_all_models_and_keeps_what_fits(models: Path) -> None:
    async with running_backend(models, model_memory_bytes=2 * size(models)) as backend:
        assert Counter(states(backend).values()) == {"loaded": 2, "declared": 1}
        assert backend.engine.state().problems == {}
        assert len(backend.batchers) == 2


async def test_without_a_bound_all_models_are_loaded(models: Path) -> None:
    async with running_backend(models) as backend:
        assert len(backend.batchers) == 3
        assert states(backend) == {}
        assert not records(models)


async def test_the_least_used_model_makes_room(models: Path) -> None:
    room = 2 * size(models)
    async with running_backend(await qualified(models), model_memory_bytes=room) as backend:
        await ask_all(backend, ["first", "first", "first", "second", "third"])

        metrics = (await backend.get("/metrics")).body.decode()

        assert states(backend) == {"first": "loaded", "second": "declared", "third": "loaded"}
        assert backend.engine.residency.size_bytes <= room
        assert 'sluicegate_backend_model_evictions_total{model="second"} 1.0' in metrics
        assert 'sluicegate_backend_model_loads_total{outcome="loaded"} 3.0' in metrics
        assert "sluicegate_backend_model_load_duration_seconds_count 3.0" in metrics


async def test_an_evicted_model_is_loaded_again_and_answers_as_before(models: Path) -> None:
    room = size(models)
    async with running_backend(await qualified(models), model_memory_bytes=room) as backend:
        first, *_, again = await ask_all(backend, ["first", "second", "first"])

        assert again == first


async def test_the_counts_of_an_evicted_model_go_on(models: Path) -> None:
    room = size(models)
    async with running_backend(await qualified(models), model_memory_bytes=room) as backend:
        for text in ("good", "bad"):
            await backend.answer("first", Task.EMBED, text)
            await backend.answer("second", Task.EMBED, text)

        metrics = (await backend.get("/metrics")).body.decode()

        assert states(backend)["first"] == "declared"
        assert 'sluicegate_backend_rows_total{encoder="first"} 2.0' in metrics
        assert 'sluicegate_backend_releases_total{encoder="first",reason="idle"} 2.0' in metrics
        phase = 'encoder="first",phase="run"'
        assert f"sluicegate_backend_phase_duration_seconds_count{{{phase}}} 2.0" in metrics
        assert 'sluicegate_backend_queued_rows{encoder="first"} 0.0' in metrics


async def test_a_load_without_room_does_not_stop_later_loads(models: Path) -> None:
    write_encoder(models, "younger", real=True)
    for name in ("third", "younger"):
        write_head(models, f"z-{name}", ["a", "b"], encoder=name)
    both = {"algorithm": "ensemble", "uses": ["z-third", "z-younger"], "tasks": ["classify"]}
    write_model(models, "zz", {"kind": "algorithm"} | both)
    gate, room = Gate(), 2 * size(models)
    executor = PacedExecutor(gate, dimensions=DIMENSIONS)
    async with running_backend(models, executor, model_memory_bytes=room) as backend:
        loaded = [name for name in NAMES if states(backend)[name] == "loaded"]
        busy = asyncio.create_task(backend.answer(loaded[0], Task.EMBED, "good"))
        await until(lambda: gate.arrived > 0)

        large = asyncio.create_task(backend.answer("zz", Task.CLASSIFY, "good"))
        small = asyncio.create_task(backend.answer("third", Task.EMBED, "good"))
        await until(lambda: states(backend)["third"] == "loaded")

        assert states(backend)["younger"] == "declared"
        gate.open()
        await asyncio.gather(busy, large, small)


async def test_loads_that_wait_for_room_let_go_of_their_encoders(models: Path) -> None:
    write_encoder(models, "younger", real=True)
    write_pairs(models, [*NAMES, "younger"])
    gate = Gate()
    executor = PacedExecutor(gate, dimensions=DIMENSIONS)
    async with running_backend(models, executor, model_memory_bytes=2 * size(models)) as backend:
        encoders = sorted([*NAMES, "younger"], key=lambda name: states(backend)[name])
        one, other, *loaded = encoders
        busy = [asyncio.create_task(backend.answer(name, Task.EMBED, "good")) for name in loaded]
        await until(lambda: gate.arrived == len(loaded))
        both = [
            asyncio.create_task(backend.answer("-".join(sorted(pair)), Task.CLASSIFY, "good"))
            for pair in ((one, loaded[0]), (other, loaded[1]))
        ]
        await asyncio.wait(both, timeout=0.05)

        gate.open()

        await asyncio.gather(*busy)
        answers = await asyncio.gather(*both)
        assert [isinstance(answer, Refusal) for answer in answers] == [False, False]


async def test_later_loads_leave_room_for_one_that_has_waited(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluicegate.backends.serving.residency._PASSING_TIME", 0.0)
    write_encoder(models, "younger", real=True)
    write_encoder(models, "youngest", real=True)
    names = [*NAMES, "younger", "youngest"]
    write_pairs(models, names)
    gate = Gate()
    executor = PacedExecutor(gate, dimensions=DIMENSIONS)
    async with running_backend(models, executor, model_memory_bytes=2 * size(models)) as backend:
        small, one, other, *loaded = sorted(names, key=lambda name: states(backend)[name])
        busy = asyncio.create_task(backend.answer(loaded[0], Task.EMBED, "good"))
        await until(lambda: gate.arrived > 0)

        pair = "-".join(sorted([one, other]))
        large = asyncio.create_task(backend.answer(pair, Task.CLASSIFY, "good"))
        await asyncio.wait({large}, timeout=0.05)
        later = asyncio.create_task(backend.answer(small, Task.EMBED, "good"))
        await asyncio.wait({later}, timeout=0.05)

        assert states(backend)[small] == "declared"
        gate.open()
        await asyncio.gather(busy, large, later)


def write_pairs(models: Path, encoders: Sequence[str]) -> None:
    """Write an ensemble over each pair of encoders, named by both."""
    for name in encoders:
        write_head(models, f"z-{name}", ["a", "b"], encoder=name)
    for pair in combinations(sorted(encoders), 2):
        uses = [f"z-{name}" for name in pair]
        manifest = {"kind": "algorithm", "algorithm": "ensemble", "uses": uses}
        write_model(models, "-".join(pair), manifest | {"tasks": ["classify"]})


async def test_an_evicted_model_frees_its_graph_at_once(models: Path) -> None:
    room = size(models)
    async with running_backend(await qualified(models), model_memory_bytes=room) as backend:
        await backend.answer("first", Task.EMBED, "good film")
        (batcher,) = backend.batchers
        graph = weakref.ref(batcher.executor)
        del batcher

        gc.disable()  # reference counts alone must free it
        try:
            await backend.answer("second", Task.EMBED, "good film")
            await until(lambda: graph() is None)
        finally:
            gc.enable()


async def test_models_with_equal_tokenizers_share_one(models: Path) -> None:
    async with running_backend(models) as backend:
        tokenizers = [each.pipeline.tokenizer for each in backend.engine.model_set.encoders]

        await backend.answer("first", Task.EMBED, "good film")

        assert len({id(each.original) for each in tokenizers}) == 1
        assert len({id(each) for each in tokenizers}) == 3


async def test_models_with_equal_digests_share_no_rows(models: Path) -> None:
    write_encoder(models, "copy", real=True, description="first")
    async with running_backend(models) as backend:
        await ask_all(backend, ["first", "copy"])

        metrics = (await backend.get("/metrics")).body.decode()

        assert declared(backend, "copy").digest == declared(backend, "first").digest
        assert 'sluicegate_backend_rows_total{encoder="first"} 1.0' in metrics
        assert 'sluicegate_backend_rows_total{encoder="copy"} 1.0' in metrics


async def test_a_model_that_fails_its_checks_is_not_declared(models: Path) -> None:
    write_encoder(models, "first", real=True, max_tokens=10**6)  # more than its graph can read
    for _ in range(2):
        async with running_backend(models, model_memory_bytes=ROOM) as backend:
            assert "first" in backend.engine.state().problems
            assert "first" not in states(backend)


async def test_calls_for_one_cold_model_cause_one_load(models: Path) -> None:
    async with running_backend(await qualified(models), model_memory_bytes=ROOM) as backend:
        loads = WatchedLoads(backend)
        asked = [
            asyncio.create_task(backend.answer("first", Task.EMBED, f"text {number}"))
            for number in range(8)
        ]
        await until(lambda: loads.counts["first"] > 0)

        loading = states(backend)["first"]
        loads.open()
        await asyncio.gather(*asked)

        assert loading == "loading"
        assert loads.counts == {"first": 1}


async def test_warm_models_answer_while_another_one_loads(models: Path) -> None:
    async with running_backend(await qualified(models), model_memory_bytes=ROOM) as backend:
        await backend.answer("second", Task.EMBED, "good")
        loads = WatchedLoads(backend)
        waiting = asyncio.create_task(backend.answer("first", Task.EMBED, "good"))
        await until(lambda: loads.counts["first"] > 0)

        await backend.answer("second", Task.EMBED, "bad film")

        assert not waiting.done()
        loads.open()
        await waiting


async def test_a_call_with_too_little_time_is_told_when_to_come_back(models: Path) -> None:
    async with running_backend(await qualified(models), model_memory_bytes=ROOM) as backend:
        call = backend.call("first", Task.EMBED, ["good"], remaining=0.05)

        refused = await backend.exchange(call).run()
        refusal = msgspec.msgpack.decode(refused.body, type=Refusal)
        await until(lambda: states(backend)["first"] == "loaded")

        assert refused.status == 503
        assert refusal.code == "overloaded"
        assert refusal.retry_after is not None
        assert refusal.retry_after > 0
        await backend.answer("first", Task.EMBED, "good")


async def test_a_model_in_use_is_not_evicted(models: Path) -> None:
    gate = Gate()
    executor = PacedExecutor(gate, dimensions=DIMENSIONS)
    async with running_backend(models, executor, model_memory_bytes=size(models)) as backend:
        (busy,) = (name for name, state in states(backend).items() if state == "loaded")
        other = next(name for name in NAMES if name != busy)
        running = asyncio.create_task(backend.answer(busy, Task.EMBED, "good"))
        await until(lambda: gate.arrived > 0)

        waiting = asyncio.create_task(backend.answer(other, Task.EMBED, "good"))
        await asyncio.wait({waiting}, timeout=0.05)

        assert states(backend)[busy] == "loaded"
        gate.open()
        await asyncio.gather(running, waiting)
        assert states(backend)[other] == "loaded"


async def test_a_pinned_model_is_loaded_at_the_start_and_stays(models: Path) -> None:
    await qualified(models)
    room = 2 * size(models)
    async with running_backend(models, model_memory_bytes=room, pinned="first, x*") as backend:
        before = states(backend)
        await ask_all(backend, ["second", "second", "third", "second"])

        assert before["first"] == "loaded"
        assert states(backend)["first"] == "loaded"


async def test_a_model_that_can_never_fit_is_refused_at_the_start(models: Path) -> None:
    room = 2 * size(models)
    async with running_backend(models, model_memory_bytes=room, pinned="first,second") as backend:
        state = backend.engine.state()

        assert {info.name for info in state.models} == {"first", "second"}
        assert "raise `SLUICEGATE_BACKEND_MODEL_MEMORY_BYTES`" in state.problems["third"]


async def test_models_over_a_cold_encoder_load_it(tmp_path: Path) -> None:
    models = await qualified(write_repository(tmp_path / "models", real=True))
    async with running_backend(models, model_memory_bytes=ROOM) as backend:
        before = set(states(backend).values())

        await backend.answer("reviewer", Task.INFER, "good film")
        await backend.answer("mood", Task.CLASSIFY, "good film")

        assert before == {"declared"}
        assert set(states(backend).values()) == {"loaded"}


async def test_an_algorithm_holds_all_models_that_it_uses(models: Path) -> None:
    for name in ("first", "second"):
        write_head(models, f"over-{name}", ["a", "b"], encoder=name)
    write_model(
        models,
        "both",
        {
            "kind": "algorithm",
            "algorithm": "ensemble",
            "uses": ["over-first", "over-second"],
            "tasks": ["classify"],
        },
    )
    room = 2 * size(models)
    async with running_backend(await qualified(models), model_memory_bytes=room) as backend:
        for name in ("third", "both", "third", "both"):
            task = Task.EMBED if name == "third" else Task.CLASSIFY
            await backend.answer(name, task, f"good {name}")

        assert states(backend)["both"] == "loaded"


async def test_revisions_of_a_split_and_a_shadow_are_loaded_on_demand(models: Path) -> None:
    for number in (2, 3):
        write_encoder(models, "first", real=True, revision=number, description=f"{number}")
    (models / "first" / "serving.yaml").write_text(
        "revisions: {1: 1, 2: 1}\nshadow: {revision: 3}\n"
    )
    async with running_backend(await qualified(models), model_memory_bytes=ROOM) as backend:
        outcomes = await backend.ask("first", Task.EMBED, [f"text {n}" for n in range(20)])

        assert {each.arm for each in outcomes} == {"1", "2"}
        assert all(isinstance(each, Done) for each in outcomes)
        await until(lambda: bool(backend.engine.snapshot().shadows.outcomes))
        assert states(backend)["first@3"] == "loaded"


async def test_a_reload_keeps_a_loaded_model_loaded(models: Path) -> None:
    room = 2 * size(models)
    async with running_backend(await qualified(models), model_memory_bytes=room) as backend:
        await backend.answer("first", Task.EMBED, "good")
        old = {name: backend.call(name, Task.EMBED, ["good"]) for name in ("first", "second")}
        for name in ("first", "second"):
            write_encoder(models, name, real=True, revision=2, description="anew")

        await backend.reload()

        assert states(backend) == {"first": "loaded", "second": "declared", "third": "declared"}
        for call in old.values():  # the earlier revisions answer, loaded or not
            assert (await backend.exchange(call).run()).status == 200


async def test_a_model_that_cannot_be_loaded_falls_back_to_an_earlier_revision(
    models: Path,
) -> None:
    write_encoder(models, "first", real=True, revision=2, description="newer")
    async with running_backend(await qualified(models), model_memory_bytes=ROOM) as backend:
        newer = backend.info("first").revision
        (models / "first" / "2" / "model.onnx").write_bytes(b"broken")

        refused = await backend.exchange(backend.call("first", Task.EMBED, ["good"])).run()
        await until(lambda: backend.info("first").revision != newer)

        assert refused.status == 503
        assert "revision `1` is served instead" in backend.engine.state().problems["first"]
        await backend.answer("first", Task.EMBED, "good")


async def test_a_model_is_not_answered_in_another_precision(models: Path) -> None:
    async with running_backend(await qualified(models), model_memory_bytes=ROOM) as backend:
        encoder = declared(backend, "first")
        encoder.precision = "fp16"

        refused = await backend.exchange(backend.call("first", Task.EMBED, ["good"])).run()
        await until(lambda: declared(backend, "first") is not encoder)

        assert refused.status == 503
        assert b"declared in `fp16`, but loaded in `fp32`" in refused.body
        await backend.answer("first", Task.EMBED, "good")


async def test_backends_with_other_settings_keep_their_own_records(models: Path) -> None:
    await qualified(models)
    async with running_backend(models, model_memory_bytes=ROOM, wide="never"):
        pass

    async with running_backend(models, model_memory_bytes=ROOM) as backend:
        assert set(states(backend).values()) == {"declared"}
    async with running_backend(models, model_memory_bytes=ROOM, wide="never") as backend:
        assert set(states(backend).values()) == {"declared"}


async def test_a_pinned_model_with_a_wrong_record_starts_without_it(models: Path) -> None:
    (record,) = records(await qualified(models))
    right = record.read_bytes()
    wrong = right.replace(b'"fp32"', b'"bf16"')
    assert wrong != right
    record.write_bytes(wrong)

    async with running_backend(models, model_memory_bytes=ROOM, pinned="first") as backend:
        await backend.answer("first", Task.EMBED, "good")

        assert states(backend)["first"] == "loaded"
        assert backend.engine.state().problems == {}
    assert b"bf16" not in record.read_bytes()


async def test_calls_that_wait_for_a_load_are_refused_at_the_end(models: Path) -> None:
    async with running_backend(await qualified(models), model_memory_bytes=ROOM) as backend:
        loads = WatchedLoads(backend)
        asked = [
            asyncio.create_task(backend.exchange(backend.call(name, Task.EMBED, ["good"])).run())
            for name in ("first", "second")
        ]
        await until(lambda: loads.counts["first"] > 0)

        closing = asyncio.create_task(backend.engine.residency.close())
        refused = await asyncio.gather(*asked)
        loads.open()
        await closing

        assert [each.status for each in refused] == [503, 503]
        assert all(b"the backend is stopping" in each.body for each in refused)
        assert not any(each.users for each in backend.engine.model_set.encoders)


async def test_a_call_opened_before_an_eviction_uses_the_new_batcher(models: Path) -> None:
    room = size(models)
    async with running_backend(await qualified(models), model_memory_bytes=room) as backend:
        await backend.answer("first", Task.EMBED, "good")
        _, work = backend.engine.admit(backend.call("first", Task.EMBED, ["good"]))
        before = work.is_loaded
        await ask_all(backend, ["second", "first"])

        assert before
        assert not work.is_loaded


async def test_a_wrong_record_that_cannot_be_removed_is_not_read_again(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (record,) = records(await qualified(models))
    record.write_bytes(record.read_bytes().replace(b'"fp32"', b'"bf16"'))

    def refuse(path: Path, *, missing_ok: bool = False) -> None:
        raise PermissionError(path, missing_ok)

    async with running_backend(models, model_memory_bytes=ROOM) as backend:
        encoder = declared(backend, "first")
        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", refuse)
            refused = await backend.exchange(backend.call("first", Task.EMBED, ["good"])).run()
            await until(lambda: declared(backend, "first") is not encoder)

        assert refused.status == 503
        await backend.answer("first", Task.EMBED, "good")


async def test_a_load_that_ends_after_its_revision_is_discarded(models: Path) -> None:
    async with running_backend(await qualified(models), model_memory_bytes=ROOM) as backend:
        loads, encoder = WatchedLoads(backend), declared(backend, "first")
        asked = asyncio.create_task(
            backend.exchange(backend.call("first", Task.EMBED, ["good"])).run()
        )
        await until(lambda: loads.counts["first"] > 0)
        others = [each for each in backend.engine.model_set.encoders if each is not encoder]

        await backend.engine.residency.serve(others)
        await backend.engine.residency.keep(others)
        loads.open()

        assert (await asked).status == 409
        assert encoder.running is None
        assert backend.engine.residency.size_bytes == 0


async def test_only_so_many_calls_wait_for_loads(models: Path) -> None:
    async with running_backend(await qualified(models), model_memory_bytes=ROOM) as backend:
        loads, call = WatchedLoads(backend), backend.call("first", Task.EMBED, ["good"])
        asked = [asyncio.create_task(backend.exchange(call).run()) for _ in range(65)]
        await until(lambda: any(each.done() for each in asked))

        loads.open()
        statuses = Counter(each.status for each in await asyncio.gather(*asked))

        assert statuses == {200: 64, 503: 1}


async def test_a_drain_waits_for_calls_that_wait_for_a_load(models: Path) -> None:
    async with running_backend(await qualified(models), model_memory_bytes=ROOM) as backend:
        loads = WatchedLoads(backend)
        asked = asyncio.create_task(backend.answer("first", Task.EMBED, "good"))
        await until(lambda: loads.counts["first"] > 0)

        backend.engine.draining = True
        drain = asyncio.create_task(backend.engine.idle())
        loads.open()
        await drain

        assert backend.engine.calls_in_flight == 0
        assert await asked


async def test_a_caller_that_leaves_does_not_end_the_load(models: Path) -> None:
    async with running_backend(await qualified(models), model_memory_bytes=ROOM) as backend:
        loads = WatchedLoads(backend)
        exchange: AsgiExchange = backend.exchange(backend.call("first", Task.EMBED, ["good"]))
        answering = asyncio.create_task(exchange.run())
        await until(lambda: loads.counts["first"] > 0)

        exchange.leave()
        await answering
        loads.open()

        await until(lambda: states(backend)["first"] == "loaded")
        assert declared(backend, "first").users == 0


@pytest.mark.parametrize("room", [0, ROOM])
async def test_a_replaced_revision_leaves_the_memory(models: Path, room: int) -> None:
    async with running_backend(models, model_memory_bytes=room, retire_after=0.0) as backend:
        graphs = [weakref.ref(each.executor) for each in backend.batchers if each.name == "first"]
        write_encoder(models, "first", real=True, revision=2, description="anew")

        await backend.reload()

        await until(lambda: not any(gc.collect() >= 0 and graph() for graph in graphs))
        await backend.answer("first", Task.EMBED, "good")


async def test_an_earlier_revision_makes_room_for_the_present_one(models: Path) -> None:
    room = size(models)
    async with running_backend(await qualified(models), model_memory_bytes=room) as backend:
        await backend.answer("first", Task.EMBED, "good")
        write_encoder(models, "first", real=True, revision=2, description="anew")

        await backend.reload()

        assert states(backend)["first"] == "loaded"
        await ask_all(backend, ["first", "second", "first"])
