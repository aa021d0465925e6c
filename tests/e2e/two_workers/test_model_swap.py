"""Tests a model swap under load: nothing fails, nothing old is served as new."""

import asyncio
import contextlib
import itertools
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from sluicegate.gateway.cli.root import main
from testing.system import ADMIN_KEY, System, pretty
from testing.waiting import wait_until
from tests.support.opposite_head import turn_head

pytestmark = pytest.mark.e2e
MODEL = "swapped"
HEAD = "head.npz"
# Asked again and again, so that the old answers are in every cache when the swap comes.
KNOWN = [f"a film of {number} good moments" for number in range(10)]
ASKERS = 4
_AT_LEAST = 60
# Seconds between the requests of an asker: the processor is for what changes meanwhile.
_PAUSE = 0.1


class Answer(msgspec.Struct, frozen=True):
    """An answer; `acknowledged` when it was asked for after the swap was."""

    acknowledged: bool
    text: str
    revision: str
    positive: float


@pytest.fixture
def repository(system: System, models: Path) -> Iterator[Path]:
    """The models; what a test wrote is taken away."""
    yield models
    shutil.rmtree(models / MODEL / "2")
    with system.admin() as admin:
        restored = admin.post("/admin/models/reload", timeout=60)
    assert restored.status_code == 200, pretty(restored)


def write_opposite(models: Path) -> None:
    """Write a revision whose head says the opposite."""
    draft = Path(shutil.copytree(models / MODEL / "1", models / MODEL / ".draft"))
    turn_head(draft)
    draft.rename(models / MODEL / "2")


_NAMES = itertools.count()


class Load:
    """Askers of known and of new texts, until they are stopped."""

    def __init__(self, system: System) -> None:
        self._system = system
        self.answers: list[Answer] = []
        self.failures: list[str] = []
        self.acknowledged = False
        self.enough = asyncio.Event()
        # Of texts that no other load asks for: those would be remembered.
        self._name, self._numbers = next(_NAMES), itertools.count()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Begin when there are enough answers; end when there are enough after the change."""
        async with asyncio.TaskGroup() as group:
            for _ in range(ASKERS):
                group.create_task(self.ask())
            await self.enough.wait()
            yield
            self.enough.clear()
            self.acknowledged = True

    async def ask(self) -> None:
        async with self._system.async_client() as client:
            while not (self.acknowledged and self.enough.is_set()):
                number = next(self._numbers)
                text = (
                    KNOWN[number // 2 % len(KNOWN)]
                    if number % 2
                    else f"a new film, {self._name} {number}"
                )
                after = self.acknowledged
                body = {"model": MODEL, "input": text}
                # On a busy machine even a body may take more than the seconds of a document.
                patience = {"x-request-timeout": "30"}
                response = await client.post("/v1/classify", json=body, headers=patience)
                if response.status_code != 200:
                    self.failures.append(pretty(response))
                    continue
                self._note(after, text, response.json())
                await asyncio.sleep(_PAUSE)

    def _note(self, after: bool, text: str, body: dict[str, object]) -> None:  # noqa: FBT001
        (result,) = msgspec.convert(body["results"], list[dict[str, list[dict[str, object]]]])
        scores = {label["label"]: label["score"] for label in result["labels"]}
        self.answers.append(
            Answer(
                acknowledged=after,
                text=text,
                revision=str(body["revision"]),
                positive=msgspec.convert(scores["positive"], float),
            )
        )
        if len([a for a in self.answers if a.acknowledged == self.acknowledged]) >= _AT_LEAST:
            self.enough.set()


@pytest.mark.anyio
async def test_a_model_is_swapped_under_load(system: System, repository: Path) -> None:
    with system.client() as client:
        before = client.get(f"/v1/models/{MODEL}").json()["revision"]
    load = Load(system)

    async with load.running():
        write_opposite(repository)
        with system.admin() as admin:
            swapped = await asyncio.to_thread(admin.post, "/admin/models/reload", timeout=60)

    assert swapped.status_code == 200, pretty(swapped)
    assert load.failures == []
    old = {a.text: a.positive for a in load.answers if a.revision == before}
    new = [a for a in load.answers if a.revision != before]
    assert {a.revision for a in load.answers if a.acknowledged}.isdisjoint({before})
    assert len({a.revision for a in new}) == 1
    both = [a for a in new if a.text in old]
    assert {a.text for a in both} == set(KNOWN)
    assert all(a.positive == pytest.approx(1 - old[a.text], abs=1e-5) for a in both)


def write_broken(models: Path) -> None:
    draft = Path(shutil.copytree(models / MODEL / "1", models / MODEL / ".draft"))
    (draft / HEAD).write_bytes(b"PK\x03\x04 and no more")
    draft.rename(models / MODEL / "2")


def reload_by_command(system: System) -> Result:
    command = ["models", "reload", "--data-dir", str(system.data_dir)]
    command += ["--admin-url", system.admin_url, "--admin-key", ADMIN_KEY]
    return CliRunner().invoke(main, command)


@pytest.mark.anyio
async def test_a_broken_revision_takes_nothing_away_under_load(
    system: System, repository: Path
) -> None:
    """Every region answers on, the reload says why, and a restarted backend serves the good one."""
    with system.client() as client:
        before = client.get(f"/v1/models/{MODEL}").json()["revision"]
    load = Load(system)

    async with load.running():
        write_broken(repository)
        with system.admin() as admin:
            refused = await asyncio.to_thread(admin.post, "/admin/models/reload", timeout=60)
        command = await asyncio.to_thread(reload_by_command, system)
        pid = system.kill("backend", region="eu")
        await asyncio.to_thread(
            wait_until,
            lambda: system.replaced("backend", pid, region="eu") and is_ready(system, "eu"),
            within=60,
            what="the backend is back",
        )

    problem = refused.json()
    assert (refused.status_code, problem["code"], problem["live"]) == (422, "models_broken", False)
    assert problem["backends"].keys() == {"eu-0", "us-0"}
    for backend in problem["backends"].values():
        assert backend["models"][MODEL] == {"old": before, "new": before}
        assert MODEL in backend["problems"]
    assert (command.exit_code, f"{MODEL} is broken" in command.stderr) == (1, True)
    assert load.failures == []
    assert {answer.revision for answer in load.answers} == {before}
    _check_who_is_told(system, repository)


def _check_who_is_told(system: System, models: Path) -> None:
    """Strangers are told of no path; operators are, in readiness and beside each backend."""
    with system.client() as client:
        stranger = client.get("/health/ready").text
    assert str(models) not in stranger
    with system.admin() as admin:
        assert str(models) in json.dumps(admin.get("/health/ready").json()["backends"])
        unknown = admin.get("/health/ready", headers={"authorization": ""})
        assert "backends" not in unknown.json()
        regions = json.dumps(admin.get("/admin/regions").json())
    assert HEAD in regions


def is_ready(system: System, region: str) -> bool:
    """Whether the region's backends say so themselves, and every worker as well."""
    if not system.is_backend_ready(region):
        return False
    with system.admin() as admin:
        regions = admin.get("/admin/regions").json()["regions"]
    (found,) = [each for each in regions if each["name"] == region]
    views = [view for backend in found["backends"] for view in backend["workers"].values()]
    return bool(views) and all(view["health"] == "ready" for view in views)
