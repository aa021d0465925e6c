"""Sends requests of five tenants to the routes of all dialects, and looks for mixed-up answers."""

import gzip
import random
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any  # Any: JSON

import click
import grpc
import msgspec
from typing_extensions import override

from loadtests.fuzz_dialects.backend import MODELS, SHARED
from loadtests.fuzz_dialects.routes import (
    EXTRACT,
    ROUTES,
    TENSOR_ROUTES,
    Asked,
    DialectRoute,
    infer,
    payload_of,
    tensor_message,
)
from loadtests.fuzz_http.bodies import NAMES, Caller
from loadtests.fuzz_http.command import Traffic, run_and_show
from loadtests.fuzz_http.expect import OVERLOADED, ExpectedResponse, UnexpectedResponse
from loadtests.fuzz_http.requests import Request
from loadtests.fuzz_http.script import Script, make_script, script
from loadtests.options import only, seed
from testing.raw_http import Response, post

_PIPELINED = (1, 1, 2, 4, 8, 16)
_KNOWN_TEXTS, _KNOWN_QUERIES, _KEYS = 24, 4, 40
_NAMES = ("sport", "trade", "art", "law")
_CALLS_AT_ONCE = 4
_BUSY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
_IN_USE = 409
# A busy machine causes these errors, or another request with the same key does.
_CODES = re.compile(rb'"code": ?"(overloaded|upstream_unavailable|idempotency_key_in_use)"')
_SCOPES = [f"tenant:{name}".encode() for name in NAMES]
_BY_TASK = {task: name for name, tasks in MODELS.items() for task in tasks}


class SentRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request with its caller, question and ids."""

    caller: Caller
    route: DialectRoute
    asked: Asked
    client_id: str
    key: str = ""
    """The request's idempotency key, if it has one."""


class DialectTraffic(Traffic):
    """Generates the scripts of connections, and keeps the ids of all answers.

    With `alternates`, half of the connections send unusual HTTP instead of dialects.
    """

    name = "dialects"

    def __init__(self, *, alternates: bool = False) -> None:
        self._alternates = alternates
        self._ids: dict[str, SentRequest] = {}
        self._named: list[tuple[str, SentRequest]] = []
        self.hits = 0
        """Answers over HTTP that were whole hits."""
        self.calls = 0
        """Answers over gRPC."""

    @override
    def script(self, seed: int, number: int, people: list[Caller]) -> Script:
        # Every second connection goes to the second gateway.
        if self._alternates and number // 2 % 2 == 0:
            return script(seed, number, people)
        chance = random.Random(f"{seed}/dialects/{number}")
        requests = [
            self._request(chance, seed, f"{number}-{place}", people)
            for place in range(chance.choice(_PIPELINED))
        ]
        last = None
        if chance.random() < 0.25:
            # This caller, and callers before it, may disconnect before their answers come.
            last = msgspec.structs.replace(
                self._request(chance, seed, f"{number}-last", people),
                resets=True,
                pace=(0, chance.choice([0.0, 0.001, 0.01, 0.05])),
            )
        return make_script(chance, number, requests, last, cuts=(0, 0, 0, 2))

    def _request(
        self, chance: random.Random, seed: int, unique: str, callers: list[Caller]
    ) -> Request:
        caller, key = chance.choice(callers), ""
        if chance.random() < 0.1:
            # All tenants use the same idempotency keys, each for requests of their own.
            key = f"key-{chance.randrange(_KEYS)}"
            again = random.Random(f"{seed}/{caller.tenant}/{key}")
            route, asked = question(again, caller, key)
        else:
            route, asked = question(chance, caller, unique)
        sent = SentRequest(
            caller=caller, route=route, asked=asked, client_id=f"own-{unique}", key=key
        )
        headers = {"X-Request-Id": sent.client_id}
        headers |= {"Idempotency-Key": key} if key else {}
        headers |= {"Accept-Encoding": "gzip"} if chance.random() < 0.3 else {}
        path = route.path.replace("{model}", asked.model)
        body = msgspec.json.encode(route.body(asked))
        expect = ExpectedResponse(
            name=route.name, statuses={200}, check=lambda response: self._check(sent, response)
        )
        return Request(post(path, body, key=caller.key, headers=headers), expect)

    def _check(self, sent: SentRequest, response: Response) -> int:
        """Return the status of the answer to `sent`; an overload is 503 in every dialect.

        Raises:
            UnexpectedResponse: the answer is not the right one.
        """
        status, headers, body = response.status, response.headers, response.body
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        wrong = self._wrong_ids(sent, headers)
        if not wrong and status == 200:
            self.hits += "; hit" in headers.get("cache-status", "")
            wrong = self._wrong_payload(sent, msgspec.json.decode(body))
        elif not wrong:
            is_known = _CODES.search(body) is not None and not any(s in body for s in _SCOPES)
            wrong = "" if is_known else f"{status}, {body!r}"
        if wrong:
            raise UnexpectedResponse(f"{sent.route.name} of {sent.caller.tenant}: {wrong}")
        return status if status in (200, _IN_USE) else OVERLOADED

    def _wrong_ids(self, sent: SentRequest, headers: Mapping[str, str]) -> str:
        """Return what is wrong with the ids in an answer's headers; empty if they are right."""
        id_ = headers["x-request-id"]
        known = self._ids.setdefault(id_, sent)
        if headers.get("idempotency-replayed") == "true":
            if (known.caller, known.key, known.asked) != (sent.caller, sent.key, sent.asked):
                return f"a replay of {known}"
        elif known is not sent and not (sent.key and known.key == sent.key):
            return f"the id {id_} of {known}"
        own = headers.get("x-client-request-id", "")
        return "" if own == sent.client_id else f"the caller's id is {own}, not {sent.client_id}"

    def _wrong_payload(self, sent: SentRequest, payload: Any) -> str:
        """Return what is wrong with a decoded answer; empty if it is right."""
        try:
            found = sent.route.read(payload, sent.asked)
        except (UnexpectedResponse, KeyError, TypeError, ValueError) as error:
            return f"{error!r} in {str(payload)[:500]}"
        if isinstance(payload, dict) and "id" in payload:
            self._named.append((str(payload["id"]).removeprefix("modr-"), sent))
        expected = sent.asked.expected(sent.route.task)
        return "" if found == expected else f"crossed: {found} in place of {expected}"

    @override
    def afterwards(self) -> list[str]:
        """Return the bodies that name a request of another tenant.

        The body of a hit may name the request that computed the answer. The answer to that request,
        which shows the request's id, may come later. So the check runs only at the end. If the
        caller of that request has disconnected, its id stays unknown and is not checked.
        """
        return [
            f"an answer to {sent.caller.tenant} names {id_} of {self._ids[id_].caller.tenant}"
            for id_, sent in self._named
            if id_ in self._ids and self._ids[id_].caller != sent.caller
        ]

    @override
    def call(self, address: str, people: list[Caller], calls: int) -> list[str]:
        findings = list[str]()

        def run(number: int) -> None:
            if not findings:
                findings.extend(self._call(channel, people, number))

        with grpc.insecure_channel(address) as channel, ThreadPoolExecutor(_CALLS_AT_ONCE) as pool:
            list(pool.map(run, range(calls)))
        return findings

    def _call(self, channel: grpc.Channel, people: list[Caller], number: int) -> Iterator[str]:
        """Send a call, which its caller may cancel; yield the findings."""
        chance, unique = random.Random(f"{people[0].key}/rpc/{number}"), f"rpc-{number}"
        caller = chance.choice(people)
        route, asked = question(chance, caller, unique, TENSOR_ROUTES)
        sent = SentRequest(caller=caller, route=route, asked=asked, client_id=unique)
        call = infer(channel, tensor_message(route, asked, unique), caller.key, unique)
        if chance.random() < 0.1:
            threading.Event().wait(chance.choice([0.0, 0.002, 0.02]))
            call.cancel()
            return
        wrong, error = "", call.exception()
        if error is None:
            answer = call.result()
            self.calls += 1
            wrong = self._wrong_ids(sent, dict(call.trailing_metadata()))
            wrong = wrong or self._wrong_payload(sent, payload_of(answer))
            if answer.id != unique:
                wrong = f"the id {answer.id} in place of {unique}"
        elif call.code() not in _BUSY:
            wrong = str(error)
        if wrong:
            yield f"{route.name} of {caller.tenant} over gRPC: {wrong}"


def question(
    chance: random.Random,
    caller: Caller,
    unique: str,
    routes: Sequence[DialectRoute] = ROUTES,
) -> tuple[DialectRoute, Asked]:
    """Return a random question of a caller, and a route for it."""
    route = chance.choice(routes)
    shared = SHARED if chance.random() < 0.3 and route.name != "openai moderations" else ""
    most = chance.choice([1, 1, 1, 2, 6, 40])
    texts = [_text(chance, f"{unique}.{place}") for place in range(chance.randint(1, most))]
    if "similarity" in route.name:
        texts.append(_text(chance, unique))
    if route.path == EXTRACT:
        texts = texts[:1]  # such a request has a single text
    has_dimensions = route.task.value == "embed" and "similarity" not in route.name
    return route, Asked(
        scope="shared" if shared else caller.scope,
        model=_BY_TASK[route.task] + shared,
        texts=texts,
        dimensions=chance.choice([None, None, 4, 64]) if has_dimensions else None,
        form=chance.choice(route.forms),
        query=f"query {chance.randrange(_KNOWN_QUERIES)}",
        names=chance.sample(_NAMES, k=chance.randint(2, 4)),
    )


def _text(chance: random.Random, unique: str) -> str:
    return f"new {unique}" if chance.random() < 0.1 else f"text {chance.randrange(_KNOWN_TEXTS)}"


@click.command("fuzz-dialects")
@click.option("--requests", default=100_000)
@seed
@only
def fuzz_dialects_command(*, requests: int, seed: int | None, only: int | None) -> None:
    """Send requests of several tenants to the routes of all dialects; find mixed-up answers."""
    dialects = DialectTraffic()
    try:
        run_and_show(dialects, requests=requests, seed=seed, only=only)
    finally:
        click.echo(f"{dialects.hits} answers over HTTP were whole hits; {dialects.calls} over gRPC")
