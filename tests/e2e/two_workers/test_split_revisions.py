"""Tests revisions that share a model's items: moved and rolled back under load by one command."""

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from sluicegate.backends.algorithms.split import hash_fraction
from sluicegate.gateway.cli.root import main
from testing.system import ADMIN_KEY, System
from testing.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.anyio]
MODEL = "weighted"
SCOPE = "tenant:demo"
ASKERS = 2
TEXTS_PER_REQUEST = 25
ITEMS = 150
"""Items that are asked for between two changes."""
# Asked for again and again, so that results of every revision are in every cache.
_PAUSE = 0.02
KNOWN = [f"a film of {number} good moments" for number in range(TEXTS_PER_REQUEST)]


class Answer(msgspec.Struct, frozen=True):
    """An answer to an item.

    With the numbers of changes that were acknowledged before it was asked for, and that had begun
    when it came.
    """

    text: str
    revision: str
    positive: float
    acknowledged: int
    begun: int


def command(system: System, *arguments: str) -> Result:
    """Run `sluicegate models` as an operator does."""
    given = ["--admin-url", system.admin_url, "--admin-key", ADMIN_KEY]
    return CliRunner().invoke(main, ["models", *arguments, *given])


def readout(system: System) -> dict[str, Any]:
    with system.admin() as admin:
        found: dict[str, Any] = admin.get(f"/admin/models/{MODEL}/arms").json()
    return found


def revision_of(text: str, weights: Mapping[str, int]) -> str:
    """Return which revision has to answer a text."""
    place = hash_fraction("split", SCOPE, text) * sum(weights.values())
    for revision, weight in weights.items():
        place -= weight
        if place < 0:
            return revision
    raise AssertionError


class Load:
    """Askers of known and of new texts, until they are stopped."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._numbers = itertools.count()
        self._wanted = 0
        self._enough = asyncio.Event()
        self.answers: list[Answer] = []
        self.failures: list[str] = []
        self.revisions: list[str] = []
        """The revision of the model after each change that was acknowledged."""
        self.begun = 0
        self.is_over = False

    async def ask(self) -> None:
        async with self._system.async_client() as client:
            while not self.is_over:
                number = next(self._numbers)
                texts = KNOWN if number % 4 == 0 else new_texts(number)
                acknowledged = len(self.revisions)
                body = {"model": MODEL, "input": texts}
                response = await client.post("/v1/classify", json=body)
                if response.status_code != 200:
                    self.failures.append(response.text)
                    continue
                found = response.json()
                for text, result in zip(texts, found["results"], strict=True):
                    positive = positive_score(result)
                    answer = Answer(text, found["revision"], positive, acknowledged, self.begun)
                    self.answers.append(answer)
                if len(self.answers) >= self._wanted:
                    self._enough.set()
                # The rest of the machine is for what changes meanwhile.
                await asyncio.sleep(_PAUSE)

    async def more(self, items: int = ITEMS) -> None:
        """Wait until so many more items were answered."""
        self._wanted = len(self.answers) + items
        self._enough.clear()
        await self._enough.wait()

    def check_order(self) -> None:
        """Check that each answer is by a change that was acknowledged or begun meanwhile."""
        revisions = [self.answers[0].revision, *self.revisions]
        for answer in self.answers:
            assert answer.revision in revisions[answer.acknowledged : answer.begun + 1]


def new_texts(number: int) -> list[str]:
    return [f"a new film, {number} and {n}" for n in range(TEXTS_PER_REQUEST)]


def positive_score(result: dict[str, list[dict[str, Any]]]) -> float:
    scores = {label["label"]: label["score"] for label in result["labels"]}
    return float(scores["positive"])


def by_route(system: System, weights: Mapping[str, int]) -> None:
    """Change the shares as a program does."""
    with system.admin() as admin:
        changed = admin.put(f"/admin/models/{MODEL}/split", json={"revisions": weights})
    assert (changed.status_code, changed.json()["live"]) == (200, True), changed.text


def by_command(system: System, *arguments: str) -> None:
    """Change the shares as an operator does."""
    done = command(system, *arguments)
    assert done.exit_code == 0, done.output
    assert f"`{MODEL}` is served" in done.stdout


async def change(load: Load, system: System, make: Callable[..., None], *how: object) -> str:
    """Change the shares, and return the revision of the model since."""
    load.begun += 1
    await asyncio.to_thread(make, system, *how)
    with system.client() as client:
        revision = client.get(f"/v1/models/{MODEL}").json()["revision"]
    load.revisions.append(revision)
    await load.more()
    return str(revision)


async def test_shares_are_moved_and_rolled_back_under_load(system: System) -> None:
    load = Load(system)
    async with asyncio.TaskGroup() as group:
        for _ in range(ASKERS):
            group.create_task(load.ask())
        await load.more()
        first = await change(load, system, by_route, {"1": 90, "2": 10})
        second = await change(load, system, by_command, "split", MODEL, "1=50", "2=50")
        again = await change(load, system, by_command, "rollback", MODEL)
        load.is_over = True

    assert load.failures == []
    assert (again, first == second) == (first, False)
    load.check_order()
    alone = {a.text: a.positive for a in load.answers if a.revision not in {first, second}}
    weights = {first: {"1": 90, "2": 10}, second: {"1": 50, "2": 50}}
    for revision, shares in weights.items():
        check_revisions(load, alone, revision, shares)
    check_readout(system, load, first, weights[first])


def check_revisions(
    load: Load, alone: dict[str, float], revision: str, weights: Mapping[str, int]
) -> None:
    """Check that every item was answered by its revision, and that items are shared by weight."""
    answers = {a.text: a for a in load.answers if a.revision == revision}
    for text in KNOWN:
        expected = alone[text] if revision_of(text, weights) == "1" else 1 - alone[text]
        assert answers[text].positive == pytest.approx(expected, abs=1e-5)
    assert {revision_of(text, weights) for text in KNOWN} == {"1", "2"}


def check_readout(system: System, load: Load, revision: str, weights: Mapping[str, int]) -> None:
    """Check that every answered item is in the readout, with the revision that answered it."""
    texts = [a.text for a in load.answers if a.revision == revision]
    expected = Counter(revision_of(text, weights) for text in texts)
    found: dict[str, Any] = {}

    def is_billed() -> bool:
        found.update(readout(system))
        billed: int = sum(arm["items"] for arm in found["arms"])
        return billed >= len(texts)

    wait_until(is_billed, within=60, what="usage is billed")
    arms = {arm["arm"]: arm for arm in found["arms"]}
    assert {number: arm["items"] for number, arm in arms.items()} == expected
    printed = command(system, "split", MODEL).stdout
    for number, arm in arms.items():
        assert f"revision {number}: weight {weights[number]} ({weights[number]}.0%), " in printed
        assert arm["weight"] == weights[number]
        assert arm["hit"] > 0
        assert set(arm["answers"]["labels"]) <= {"negative", "positive"}
        assert arm["answers"]["latency"].keys() == {"p50", "p95", "p99"}
        assert arm["failed"] == 0


REFUSED = {
    "no such revision": ({"1": 50, "7": 50}, "there is no revision `7`"),
    "other labels": ({"1": 50, "3": 50}, "labels of `"),
    "broken": ({"1": 50, "4": 50}, "head.npz"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_what_cannot_be_served_is_refused_and_changes_nothing(
    system: System, case: str
) -> None:
    weights, message = REFUSED[case]
    with system.admin() as admin:
        before = readout(system)
        audited = admin.get("/admin/audit").json()
        refused = admin.put(f"/admin/models/{MODEL}/split", json={"revisions": weights})
        after = readout(system)
        assert admin.get("/admin/audit").json() == audited

    problem = refused.json()
    assert (refused.status_code, problem["code"]) == (422, "plan_refused")
    assert message in problem["detail"]
    assert [after[key] for key in ("revision", "serving", "planned", "others")] == [
        before[key] for key in ("revision", "serving", "planned", "others")
    ]


async def test_a_backend_that_starts_follows_before_it_is_given_work(system: System) -> None:
    with system.admin() as admin, system.client() as client:
        changed = admin.put(f"/admin/models/{MODEL}/split", json={"revisions": {"1": 1, "2": 1}})
        assert changed.status_code == 200, changed.text
        revision = client.get(f"/v1/models/{MODEL}").json()["revision"]
        pid = system.kill("backend", region="eu")
        seen = set()

        def is_back() -> bool:
            answer = client.post("/v1/classify", json={"model": MODEL, "input": "a new film"})
            assert answer.status_code == 200, answer.text
            seen.add(answer.json()["revision"])
            return system.replaced("backend", pid, region="eu") and "eu-0" in following(system)

        wait_until(is_back, within=60, what="the backend follows")

    assert seen == {revision}


def following(system: System) -> list[str]:
    backends: list[str] = readout(system)["backends"]
    return backends


async def test_a_shadow_is_compared_named_in_events_and_ended(system: System) -> None:
    with system.admin() as admin, system.client() as client:
        assert admin.delete(f"/admin/models/{MODEL}/split").status_code == 200
        plan = {"revision": "2", "share": 100}
        shadowed = admin.put(f"/admin/models/{MODEL}/shadow", json=plan)
        assert shadowed.json()["plan"]["revisions"] == {"1": 1}
        client.post("/v1/classify", json={"model": MODEL, "input": "a film for the shadow"})

        def is_compared() -> bool:
            (arm,) = readout(system)["arms"]
            return bool(arm["answers"]["shadows"]) and bool(arm["computed"])

        wait_until(is_compared, within=60, what="a comparison")
        (arm,) = readout(system)["arms"]
        ended = admin.delete(f"/admin/models/{MODEL}/shadow").json()["plan"]

    assert arm["answers"]["shadows"]["2"]["agreement"] == 0.0
    assert ended["shadow"] is None
    log = (system.data_dir / "requests.log").read_text().splitlines()
    named = [arm for line in log for arm in json.loads(line).get("arms", ())]
    assert {(arm["arm"], arm["shadow"]) for arm in named} >= {("1", ""), ("2", ""), ("1", "2")}
