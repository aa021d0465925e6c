"""Lets an operator change everything under mixed load, and finds processes that grow (the soak)."""

import itertools
import random
import re
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import msgspec

from loadtests.faults.catalogue import Case, Fault, LoadSpec
from loadtests.faults.judge import LIMITED
from loadtests.faults.mixed import MixedOracle
from loadtests.faults.model import MODEL, PATH, write_revision
from loadtests.faults.processes import Processes, Setup, repeating
from loadtests.process_resources import resources_of
from testing.loopback import no_authorities

_EVERY, _LOOK = 5.0, 2.0
"""Seconds between changes, and between samples of resources."""
_LONG = 120.0
"""Seconds. A shorter soak does not judge growth."""
_MIB = 1 << 20
_SHARE, _MEMORY, _FILES = 0.05, 4 * _MIB, 8
"""How far a resource may rise after the first third: 5 %, and 4 MiB or 8 of the others."""
_TASKS = re.compile(r"^sluicegate_tasks (\S+)$", re.MULTILINE)
_MOST_LOG_BYTES = 32 * _MIB


class Operator:
    """Makes a change at each `next`, in turns. `failed` counts changes without their effect."""

    def __init__(self, topology: Processes, every: float = _EVERY) -> None:
        self._topology = topology
        self._every = every
        self._document = topology.gateway.settings.config / "gateway.yaml"
        self._text = self._document.read_text()
        self._numbers = itertools.count(2)
        self.made, self.failed = Counter[str](), Counter[str]()
        self._turns = itertools.cycle(
            (
                self.reload,
                self.key,
                self.purge_tenant,
                self.revision,
                self.broken_document,
                self.limits,
                self.purge_model,
            )
        )

    def next(self) -> float:
        """Make the next change; return the seconds until the one after it."""
        change: Callable[[httpx.Client], bool] = next(self._turns)
        name = change.__name__
        self.made[name] += 1
        with self._topology.admin() as admin:
            try:
                self.failed[name] += not change(admin)
            except httpx.HTTPError:
                self.failed[name] += 1
        return self._every

    def reload(self, admin: httpx.Client) -> bool:
        """Publish another document."""
        document = msgspec.json.decode(self._text)
        document["cache"] |= {"ttl_jitter": random.choice((0.1, 0.2))}
        self._document.write_bytes(msgspec.json.encode(document))
        return admin.post("/admin/config/reload").is_success

    def broken_document(self, admin: httpx.Client) -> bool:
        """Publish an invalid document, which must be refused."""
        document = msgspec.json.decode(self._text) | {"no_such_section": 1}
        self._document.write_bytes(msgspec.json.encode(document))
        return admin.post("/admin/config/reload").is_client_error

    def key(self, admin: httpx.Client) -> bool:
        """Use a key, revoke it, and use it again."""
        made = admin.post("/admin/keys", json={"tenant": "north", "name": "soak"}).json()
        before = self._try(made["key"])
        revoked = admin.delete(f"/admin/keys/{made['id']}")
        return revoked.is_success and (before, self._try(made["key"])) == (400, 401)

    def limits(self, admin: httpx.Client) -> bool:
        """Change the limit of a tenant."""
        capacity = random.randrange(20, 40)
        rules = [{"name": "narrow", "unit": "requests", "capacity": capacity, "window": 2.0}]
        return admin.put(f"/admin/tenants/{LIMITED}0/limits", json=rules).is_success

    def purge_tenant(self, admin: httpx.Client) -> bool:
        """Forget the cached results of a tenant."""
        return admin.post("/admin/cache/purge", json={"tenant": "north"}).is_success

    def purge_model(self, admin: httpx.Client) -> bool:
        """Forget the cached results of a model."""
        return admin.post("/admin/cache/purge", json={"model": MODEL}).is_success

    def revision(self, admin: httpx.Client) -> bool:
        """Publish another revision, which gives other answers."""
        number = next(self._numbers)
        for backend in self._topology.backends.values():
            write_revision(backend.models, number)
        self._topology.oracle.learn()
        return admin.post("/admin/models/reload").is_success

    def _try(self, key: str) -> int:
        """Send a request that is not billed with a key; return its status."""
        ((host, port),) = self._topology.addresses
        headers = {"authorization": f"Bearer {key}"}
        url = f"http://{host}:{port}{PATH}"
        return httpx.post(url, json={}, headers=headers, verify=no_authorities()).status_code


class Resources:
    """Samples memory, files and threads of processes, workers' tasks, and event logs."""

    def __init__(self, topology: Processes) -> None:
        self._topology = topology
        self.samples = defaultdict[tuple[str, str], list[tuple[float, float]]](list)
        """Times and amounts by process and resource."""
        self.log_bytes = 0

    def look(self) -> float:
        """Take a sample; return the seconds until the next."""
        at = time.monotonic()
        for name, pid in self._topology.pids().items():
            for resource, amount in resources_of(pid).items():
                self.samples[name, resource].append((at, amount))
        with self._topology.admin() as admin:
            found = _TASKS.search(admin.get("/metrics").raise_for_status().text)
        if found is not None:
            self.samples["workers", "tasks"].append((at, float(found[1])))
        folder = self._topology.gateway.settings.events_dir
        self.log_bytes = max(self.log_bytes, size_of(folder))
        return _LOOK


def size_of(folder: Path) -> int:
    """Return the bytes on the disk of the files below a folder."""
    found = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # billed, and removed meanwhile
            found += path.stat().st_blocks * 512
    return found


def rise(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the median of the amounts after the first third, and by how much their line rises."""
    if len(points) < 9:
        return 0.0, 0.0
    first, last = points[0][0], points[-1][0]
    warm = [point for point in points if point[0] >= first + (last - first) / 3]
    times, amounts = [at for at, _ in warm], [amount for _, amount in warm]
    slope, _ = statistics.linear_regression(times, amounts)
    return statistics.median(amounts), slope * (times[-1] - times[0])


@contextmanager
def change_everything(topology: Processes, _: str, *, every: float = _EVERY) -> Iterator[None]:
    """Sample resources while an operator makes changes at regular intervals."""
    operator = topology.notes["operator"] = Operator(topology, every)
    resources = topology.notes["resources"] = Resources(topology)
    with repeating(operator.next), repeating(resources.look):
        yield


def changes_worked(case: Case) -> Sequence[str]:
    """Find changes without their effect."""
    operator: Operator = case.topology.notes["operator"]
    case.figures["changes"] = operator.made.total()
    failed = {name: count for name, count in operator.failed.items() if count}
    return [f"changes did not work: {failed}"] if failed else []


def nothing_grows(case: Case) -> Sequence[str]:
    """Find processes whose memory, files or threads rise, and event logs that are too large."""
    resources: Resources = case.topology.notes["resources"]
    found = []
    for (name, resource), points in resources.samples.items():
        median, risen = rise(points)
        room = _MEMORY if resource == "memory" else _FILES
        if resource == "memory":
            case.figures[f"{name} MiB"] = f"{median / _MIB:.0f} {risen / _MIB:+.1f}"
        if case.ended - case.begun >= _LONG and risen > _SHARE * median + room:
            found.append(f"{name}: {resource} rose by {risen:.0f} from {median:.0f}")
    unseen = {"memory", "files", "threads", "tasks"} - {name for _, name in resources.samples}
    if unseen:
        found.append(f"nobody looked at {', '.join(sorted(unseen))}")
    case.figures["event_log_bytes"] = resources.log_bytes
    if resources.log_bytes > _MOST_LOG_BYTES:
        found.append(f"event logs took {resources.log_bytes} bytes")
    return found


FAULTS = (
    Fault(
        name="soak",
        what="changes configuration, keys, limits, caches or models every 5 s, under mixed load",
        undo="changes stay",
        hold=900.0,
        load=LoadSpec(rate=60.0, repeated=0.5, hasty=0.02),
        setup=Setup(
            limited=1,
            oracle=MixedOracle,
            # So small that it is full before the first third of the time has passed.
            document={"cache": {"memory_bytes": 4 * _MIB}},
        ),
        act=change_everything,
        parts=("operator",),
        checks=(changes_worked, nothing_grows),
    ),
)
