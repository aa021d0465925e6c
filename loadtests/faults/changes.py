"""Makes every change that an operator can make, under mixed load, and finds leaks.

A process leaks if its memory, open files or threads keep rising.
"""

import itertools
import random
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import httpx
import msgspec

from loadtests.faults.catalogue import Case, Fault, LoadSpec
from loadtests.faults.judge import LIMITED
from loadtests.faults.model import MODEL, PATH, write_revision
from loadtests.faults.processes import WITH_A_LIMIT, Processes, Setup
from loadtests.faults.topology import counted, repeating
from loadtests.process_resources import resources_of

_EVERY, _LOOK = 5.0, 2.0
"""Seconds between two changes, and between two samples of resources."""
_LONG = 120.0
"""Seconds. A soak that is shorter than this does not judge growth."""
_MIB = 1 << 20
_SHARE, _MEMORY, _FILES = 0.05, 4 * _MIB, 8
"""How far a resource may rise after the first third of the time: by 5 %, plus 4 MiB of memory, or 8
files or threads."""
_MOST_LOG_BYTES = 32 * _MIB


class Operator:
    """Makes one change, in rotation, at each `next`; `failed` counts the changes without effect."""

    def __init__(self, topology: Processes, every: float) -> None:
        self._topology = topology
        self._every = every
        self._document = topology.gateway.settings.config / "gateway.yaml"
        self._former = msgspec.json.decode(self._document.read_bytes())
        self._numbers = itertools.count(2)
        self.made, self.failed = Counter[str](), Counter[str]()
        changes: Mapping[str, Callable[[httpx.Client], bool]] = {
            "document": self._publish_document,
            "key": self._revoke_key,
            "tenant's cache": partial(_purge, tenant="north"),
            "revision": self._publish_revision,
            "broken document": self._publish_broken_document,
            "limits": _change_limits,
            "model's cache": partial(_purge, model=MODEL),
        }
        self._turns = itertools.cycle(changes.items())

    def next(self) -> float:
        """Make the next change. Return how many seconds to wait before the following change."""
        name, change = next(self._turns)
        self.made[name] += 1
        has_worked = False
        with self._topology.admin() as admin, suppress(httpx.HTTPError):
            has_worked = change(admin)
        self.failed[name] += not has_worked
        return self._every

    def _publish_document(self, admin: httpx.Client) -> bool:
        cache = self._former["cache"] | {"ttl_jitter": random.choice((0.1, 0.2))}
        self._document.write_bytes(msgspec.json.encode(self._former | {"cache": cache}))
        return admin.post("/admin/config/reload").is_success

    def _publish_broken_document(self, admin: httpx.Client) -> bool:
        """Publish an invalid document, which must be refused."""
        self._document.write_bytes(msgspec.json.encode(self._former | {"no_such_section": 1}))
        return admin.post("/admin/config/reload").is_client_error

    def _revoke_key(self, admin: httpx.Client) -> bool:
        """Use a key for a request that is not billed, revoke the key, and try to use it again."""
        made = admin.post("/admin/keys", json={"tenant": "north", "name": "soak"}).json()
        headers = {"authorization": f"Bearer {made['key']}"}
        with self._topology.client() as client:
            before = client.post(PATH, json={}, headers=headers)
            revoked = admin.delete(f"/admin/keys/{made['id']}")
            after = client.post(PATH, json={}, headers=headers)
        return revoked.is_success and (before.status_code, after.status_code) == (400, 401)

    def _publish_revision(self, admin: httpx.Client) -> bool:
        """Publish another revision, which gives different answers."""
        number = next(self._numbers)
        for backend in self._topology.backends.values():
            write_revision(backend.models, number)
        self._topology.oracle.learn()
        return admin.post("/admin/models/reload").is_success


def _change_limits(admin: httpx.Client) -> bool:
    capacity = random.randrange(20, 40)
    rules = [{"name": "narrow", "unit": "requests", "capacity": capacity, "window": 2.0}]
    return admin.put(f"/admin/tenants/{LIMITED}0/limits", json=rules).is_success


def _purge(admin: httpx.Client, **chosen: str) -> bool:
    """Purge the cached results of a tenant or a model."""
    return admin.post("/admin/cache/purge", json=chosen).is_success


class Resources:
    """Samples processes' memory, files and threads, the tasks of workers, and the event logs."""

    def __init__(self, topology: Processes) -> None:
        self._topology = topology
        self.samples = defaultdict[tuple[str, str], list[tuple[float, float]]](list)
        """Times and amounts by process and resource."""
        self.log_bytes = 0

    def look(self) -> float:
        """Take a sample; return the seconds until the next sample."""
        at = time.monotonic()
        for name, pid in self._topology.pids().items():
            for resource, amount in resources_of(pid).items():
                self.samples[name, resource].append((at, amount))
        with self._topology.admin() as admin:
            tasks = counted(admin, {"tasks": "tasks"})["tasks"]
        if tasks:
            self.samples["workers", "tasks"].append((at, tasks))
        self.log_bytes = max(self.log_bytes, _size(self._topology.gateway.settings.events_dir))
        return _LOOK


def _size(folder: Path) -> int:
    """Return the bytes that the files below a folder occupy on the disk."""
    found = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # the file was removed after its billing
            found += path.stat().st_blocks * 512
    return found


def rise(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the median of the values after the first third, and the rise of their trend line."""
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


def changes_worked(case: Case) -> Iterator[str]:
    """Find changes that had no effect."""
    operator: Operator = case.topology.notes["operator"]
    case.figures["changes"] = operator.made.total()
    failed = {name: count for name, count in operator.failed.items() if count}
    if failed:
        yield f"changes did not work: {failed}"


def nothing_grows(case: Case) -> Iterator[str]:
    """Find processes whose memory, files or threads rise, and event logs that are too large."""
    resources: Resources = case.topology.notes["resources"]
    for (name, resource), points in resources.samples.items():
        median, risen = rise(points)
        room = _MEMORY if resource == "memory" else _FILES
        if resource == "memory":
            case.figures[f"{name} MiB"] = f"{median / _MIB:.0f} {risen / _MIB:+.1f}"
        if case.ended - case.begun >= _LONG and risen > _SHARE * median + room:
            yield f"{name}: {resource} rose by {risen:.0f} from {median:.0f}"
    unseen = {"memory", "files", "threads", "tasks"} - {name for _, name in resources.samples}
    if unseen:
        yield f"nobody looked at {', '.join(sorted(unseen))}"
    case.figures["event_log_bytes"] = resources.log_bytes
    if resources.log_bytes > _MOST_LOG_BYTES:
        yield f"event logs took {resources.log_bytes} bytes"


FAULTS = (
    Fault("soak",
          "changes configuration, keys, limits, caches or models every 5 s, under mixed load",
          "changes stay", change_everything, ("operator",), hold=900.0,
          load=LoadSpec(rate=60.0, repeated=0.5, hasty=0.02),
          # The cache is so small that it is full before the first third of the time has passed.
          setup=Setup(tenants=WITH_A_LIMIT, is_mixed=True,
                      document={"cache": {"memory_bytes": 4 * _MIB}}),
          checks=(changes_worked, nothing_grows)),
)  # fmt: skip
