"""Kills every process in turn during a batch job. Each line must be answered and billed once."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any  # lines of JSON

import httpx
import msgspec

from loadtests.faults.catalogue import Case, Fault, LoadSpec
from loadtests.faults.judge import Window
from loadtests.faults.model import MODEL, PATH, texts
from loadtests.faults.process_faults import kill
from loadtests.faults.processes import TWO_BY_TWO, Processes, Setup
from testing.waiting import wait_until

_LINES = 20_000
_BETWEEN = 6.0
"""Seconds between two kills."""
_LONGEST = 900.0
_PARTS = (
    *("worker", "batches", "billing", "request-log", "shipper", "admin"),
    *("cache", "state", "backend eu-0", "gateway"),
)


@contextmanager
def _kill_in_turn(topology: Processes, _: str) -> Iterator[None]:
    asked = list(islice(texts(1), _LINES))
    with topology.client() as client:
        batch = create_batch(client, asked)
        wait_until(lambda: lines_done(client, batch) > 0, within=300.0, what="the batch runs")
        for part in _PARTS:
            with kill(topology, part):
                time.sleep(1.0)
            time.sleep(_BETWEEN)
        yield
        wait_until(
            lambda: _status(client, batch)["status"] == "completed",
            within=_LONGEST,
            every=0.5,
            what="the batch ends",
        )
        ended = _status(client, batch)
        content = client.get(f"/v1/files/{ended['output_file_id']}/content").content
    topology.notes["batch"] = batch, ended, content.splitlines(), asked


def each_line_is_there_once(case: Case) -> Iterator[str]:
    """Find lines of the batch job that are lost, doubled, wrong, or not billed exactly once."""
    batch, ended, lines, asked = case.topology.notes["batch"]
    output = [msgspec.json.decode(line) for line in lines]
    times = Counter(line["custom_id"] for line in output)
    wrong = sum(
        not case.topology.oracle.are_right(
            [asked[int(line["custom_id"])]], msgspec.json.encode(line["response"]["body"])
        )
        for line in output[:: max(1, len(output) // 1000)]
    )
    billed = Counter[str]()
    query = "SELECT id, requests, items FROM usage_events WHERE batch = 1 AND status = 200"
    for id_, requests, items in case.topology.ask_ledger(query):
        if str(id_).startswith(f"{batch}-"):
            billed[str(id_)] += int(requests) if items == requests else 1000
    case.figures.update(lines=len(asked), completed=len(times), billed_lines=len(billed))
    counted = (
        (len(asked) - len(times), "lines are lost"),
        (ended["request_counts"]["failed"], "lines failed"),
        (sum(count > 1 for count in times.values()), "lines are there twice"),
        (wrong, "lines are wrong"),
        (abs(len(asked) - len(billed)), "lines are not billed"),
        (sum(count > 1 for count in billed.values()), "lines are billed twice"),
    )
    yield from (f"{count} {what}" for count, what in counted if count)


def create_batch(client: httpx.Client, asked: Sequence[str]) -> str:
    """Upload a file with a line for each text, start its batch job, and return the job's id."""
    usual = {"method": "POST", "url": PATH}
    lines = (
        usual | {"custom_id": str(number), "body": {"model": MODEL, "input": text}}
        for number, text in enumerate(asked)
    )
    files = {"file": ("lines.jsonl", msgspec.json.Encoder().encode_lines(lines))}
    file = client.post("/v1/files", data={"purpose": "batch"}, files=files).raise_for_status()
    body = {"input_file_id": file.json()["id"], "endpoint": PATH, "completion_window": "24h"}
    return str(client.post("/v1/batches", json=body).raise_for_status().json()["id"])


def _status(client: httpx.Client, batch: str) -> dict[str, Any]:
    """Return the batch job; ask again while the gateway is down."""
    while True:
        with suppress(httpx.TransportError):
            answer = client.get(f"/v1/batches/{batch}")
            if answer.is_success:
                found: dict[str, Any] = answer.json()
                return found
        time.sleep(0.5)


def lines_done(client: httpx.Client, batch: str) -> int:
    """Return how many lines of the job have ended."""
    counts = _status(client, batch)["request_counts"]
    return int(counts["completed"] + counts["failed"])


# Batches of many rows take little longer than small ones, so the machine's cores are the limit.
_FAST = tuple(
    msgspec.structs.replace(each, settings={"paced_token": "2e-5"}) for each in TWO_BY_TWO[::2]
)
FAULTS = (
    Fault("batch", f"kills every process in turn while a batch of {_LINES:,} lines runs",
          "supervisor and runner start each again", _kill_in_turn, ("every process",), hold=1.0,
          windows={"every": Window(is_open=True, after_end=3.0)},
          load=LoadSpec(rate=20.0, repeated=0.0), setup=Setup(batches=True, backends=_FAST),
          checks=(each_line_is_there_once,)),
)  # fmt: skip
