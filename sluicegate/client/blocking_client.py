"""Implements the blocking client."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import httpx
import msgspec

from sluicegate.client import routes
from sluicegate.client.base_client import BaseClient, described, has_certificate
from sluicegate.client.calls import Call, Outcome, exchange
from sluicegate.client.errors import InvalidItem
from sluicegate.client.options import Options
from sluicegate.client.parts import Parts, Progress, Tally, has_failed, shift_index
from sluicegate.client.results import Answer

I = TypeVar("I")  # noqa: E741 - an item, as R is a result
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def _method(make: Callable[P, Call[T]]) -> Callable[Concatenate["Sluicegate", P], T]:
    def method(self: "Sluicegate", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.send(make(*args, **kwargs))

    return described(method, make)


class Sluicegate(BaseClient):
    """Calls a gateway with an API key.

    Close the client after use, or use `with`. Several threads may use the client.

    `url` and `key` default to the environment variables `SLUICEGATE_URL` and `SLUICEGATE_KEY`.
    `http` may be your own `httpx.Client`, for example with certificates, proxies or a pool. You
    must close your own `httpx.Client` yourself.
    """

    def __init__(
        self,
        url: str = "",
        *,
        key: str = "",
        options: Options | None = None,
        http: httpx.Client | None = None,
    ) -> None:
        self._http = http or httpx.Client(verify=has_certificate(url))
        super().__init__(self._http, is_own=http is None, url=url, key=key, options=options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        if self._is_own:
            self._http.close()

    def with_options(self, **changes: Any) -> "Sluicegate":
        """Return a client with changed options, which shares the connections of this client.

        `changes` are fields of `Options`.
        """
        options = msgspec.structs.replace(self.options, **changes)
        return Sluicegate(self.url, key=self._key, options=options, http=self._http)

    def send(self, call: Call[T]) -> T:
        """Send `call`, with retries, and return its answer.

        Raises:
            SluicegateError: the gateway did not answer, or answered with an error.
        """
        steps = exchange(call, self.options, self._request)
        outcome: Outcome = None
        try:
            while True:
                step = steps.send(outcome)
                if isinstance(step, float):
                    time.sleep(step)
                    outcome = None
                else:
                    outcome = self._outcome(step)
        except StopIteration as done:
            answer: T = done.value
            return answer

    def in_parts(
        self,
        *,
        size: int = 100,
        concurrency: int = 4,
        progress: Callable[[Progress], None] | None = None,
    ) -> "PartedCalls":
        """Return an object whose methods send lists of any length in parts of `size` items.

        Up to `concurrency` parts are in flight. Results come in the order of the list, as soon as
        they are ready. `progress` is called after each part.
        """
        return PartedCalls(self, Parts(size=size, concurrency=concurrency, progress=progress))

    def _outcome(self, request: httpx.Request) -> httpx.Response | httpx.RequestError:
        try:
            return self._http.send(request)
        except httpx.RequestError as error:
            return error

    classify = _method(routes.classify)
    zero_shot = _method(routes.zero_shot)
    choose = _method(routes.choose)
    rerank = _method(routes.rerank)
    entities = _method(routes.entities)
    answer = _method(routes.answer)
    embed = _method(routes.embed)
    infer = _method(routes.infer)
    tokenize = _method(routes.tokenize)
    detokenize = _method(routes.detokenize)
    guard = _method(routes.guard)
    route = _method(routes.route)
    list_models = _method(routes.list_models)
    get_model = _method(routes.get_model)
    get_usage = _method(routes.get_usage)
    get_request = _method(routes.get_request)
    list_requests = _method(routes.list_requests)
    rotate_key = _method(routes.rotate_key)
    is_live = _method(routes.is_live)
    is_ready = _method(routes.is_ready)


def _streaming(
    make: Callable[Concatenate[str, list[I], P], Call[Answer[R]]],
) -> Callable[Concatenate["PartedCalls", str, Iterable[I], P], Iterator[R]]:
    def method(
        self: "PartedCalls", model: str, items: Iterable[I], /, *args: P.args, **kwargs: P.kwargs
    ) -> Iterator[R]:
        return self.results(items, lambda part: make(model, part, *args, **kwargs))

    return described(method, make)


class PartedCalls:
    """Has the routes of a client, for lists of any length."""

    def __init__(self, client: Sluicegate, parts: Parts) -> None:
        self._client = client
        self._parts = parts

    def results(
        self, items: Iterable[I], make: Callable[[list[I]], Call[Answer[R]]]
    ) -> Iterator[R]:
        """Yield the results of `items` in order.

        `make` returns the request for a part of the items.

        Raises:
            SluicegateError: a part failed. No further part is sent.
        """
        tally = Tally(self._parts, items)
        waiting: deque[tuple[int, Future[Answer[R]]]] = deque()
        with ThreadPoolExecutor(self._parts.concurrency, "sluicegate-part") as pool:
            try:
                for first, part in self._parts.divide(items):
                    if has_failed(waiting):
                        break
                    waiting.append((first, pool.submit(self._client.send, make(part))))
                    if len(waiting) == self._parts.concurrency:
                        yield from _first_results(waiting, tally)
                while waiting:
                    yield from _first_results(waiting, tally)
            finally:
                for _, future in waiting:
                    future.cancel()

    classify = _streaming(routes.classify)
    zero_shot = _streaming(routes.zero_shot)
    choose = _streaming(routes.choose)
    entities = _streaming(routes.entities)
    answer = _streaming(routes.answer)
    embed = _streaming(routes.embed)
    infer = _streaming(routes.infer)
    tokenize = _streaming(routes.tokenize)


def _first_results(waiting: deque[tuple[int, Future[Answer[R]]]], tally: Tally) -> Sequence[R]:
    first, future = waiting.popleft()
    try:
        answer = future.result()
    except InvalidItem as error:
        shift_index(error, first)
        raise
    tally.count(answer)
    return answer.results
