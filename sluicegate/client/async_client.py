"""Implements the client for asyncio."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
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


def _method(
    make: Callable[P, Call[T]],
) -> Callable[Concatenate["AsyncSluicegate", P], Coroutine[Any, Any, T]]:
    async def method(self: "AsyncSluicegate", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.send(make(*args, **kwargs))

    return described(method, make)


class AsyncSluicegate(BaseClient):
    """Calls a gateway with an API key.

    Close the client after use, or use `async with`.

    `url` and `key` default to the environment variables `SLUICEGATE_URL` and `SLUICEGATE_KEY`.
    `http` may be your own `httpx.AsyncClient`, for example with certificates, proxies or a pool.
    You must close your own `httpx.AsyncClient` yourself.
    """

    def __init__(
        self,
        url: str = "",
        *,
        key: str = "",
        options: Options | None = None,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        self._http = http or httpx.AsyncClient(verify=has_certificate(url))
        super().__init__(self._http, is_own=http is None, url=url, key=key, options=options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        if self._is_own:
            await self._http.aclose()

    def with_options(self, **changes: Any) -> "AsyncSluicegate":
        """Return a client with changed options, which shares the connections of this client.

        `changes` are fields of `Options`.
        """
        options = msgspec.structs.replace(self.options, **changes)
        return AsyncSluicegate(self.url, key=self._key, options=options, http=self._http)

    async def send(self, call: Call[T]) -> T:
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
                    await asyncio.sleep(step)
                    outcome = None
                else:
                    outcome = await self._outcome(step)
        except StopIteration as done:
            answer: T = done.value
            return answer

    def in_parts(
        self,
        *,
        size: int = 100,
        concurrency: int = 4,
        progress: Callable[[Progress], None] | None = None,
    ) -> "AsyncPartedCalls":
        """Return an object whose methods send lists of any length in parts of `size` items.

        Up to `concurrency` parts are in flight. Results come in the order of the list, as soon as
        they are ready. `progress` is called after each part.
        """
        return AsyncPartedCalls(self, Parts(size=size, concurrency=concurrency, progress=progress))

    async def _outcome(self, request: httpx.Request) -> httpx.Response | httpx.RequestError:
        # The timeout of httpx is per read, so a slow response could take forever.
        longest = request.extensions["timeout"]["read"]
        try:
            async with asyncio.timeout(longest):
                return await self._http.send(request)
        except TimeoutError:
            return httpx.ReadTimeout("the response took too long", request=request)
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
) -> Callable[Concatenate["AsyncPartedCalls", str, Iterable[I], P], AsyncIterator[R]]:
    def method(
        self: "AsyncPartedCalls",
        model: str,
        items: Iterable[I],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> AsyncIterator[R]:
        return self.results(items, lambda part: make(model, part, *args, **kwargs))

    return described(method, make)


class AsyncPartedCalls:
    """Has the routes of a client, for lists of any length."""

    def __init__(self, client: AsyncSluicegate, parts: Parts) -> None:
        self._client = client
        self._parts = parts

    async def results(
        self, items: Iterable[I], make: Callable[[list[I]], Call[Answer[R]]]
    ) -> AsyncIterator[R]:
        """Yield the results of `items` in order.

        `make` returns the request for a part of the items.

        Raises:
            SluicegateError: a part failed. No further part is sent, and parts in flight are
                cancelled.
        """
        tally = Tally(self._parts, items)
        waiting: deque[tuple[int, asyncio.Task[Answer[R]]]] = deque()
        try:
            for first, part in self._parts.divide(items):
                if has_failed(waiting):
                    break
                waiting.append((first, asyncio.create_task(self._client.send(make(part)))))
                if len(waiting) == self._parts.concurrency:
                    for result in await _first_results(waiting, tally):
                        yield result
            while waiting:
                for result in await _first_results(waiting, tally):
                    yield result
        finally:
            for _, task in waiting:
                task.cancel()
            await asyncio.gather(*(task for _, task in waiting), return_exceptions=True)

    classify = _streaming(routes.classify)
    zero_shot = _streaming(routes.zero_shot)
    choose = _streaming(routes.choose)
    entities = _streaming(routes.entities)
    answer = _streaming(routes.answer)
    embed = _streaming(routes.embed)
    infer = _streaming(routes.infer)
    tokenize = _streaming(routes.tokenize)


async def _first_results(
    waiting: deque[tuple[int, asyncio.Task[Answer[R]]]], tally: Tally
) -> Sequence[R]:
    first, task = waiting[0]
    try:
        answer = await task
    except InvalidItem as error:
        shift_index(error, first)
        raise
    waiting.popleft()  # only now, so that the caller's `finally` cancels a pending task
    tally.count(answer)
    return answer.results
