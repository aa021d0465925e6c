"""What a backend serves with: its endpoints, what runs below them, and how it is doing."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec

from backends.algorithms.base import Endpoint
from backends.batching.batcher import Batcher
from backends.batching.device import Device
from backends.batching.shared import SharedRows
from backends.errors import ModelNotFound, NotReady, Overloaded, RevisionMismatch
from backends.pipelines.ask import Pipeline
from backends.protocol import BackendState, Call, Report, encode_frame
from backends.types import EncoderStatistics, Snapshot

# A gateway predicts with these numbers; a batch takes longer than they live.
_REPORT_AGE = 0.005
# Bytes of text to a token, more than most have: a low guess refuses nothing that would be in time.
_TOKEN_BYTES = 6


class RunningEncoder(msgspec.Struct, frozen=True, kw_only=True):
    """An encoder's batcher and its rows."""

    name: str
    batcher: Batcher
    rows: SharedRows


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Who this backend is."""

    backend_id: str
    region: str


class Engine:
    """Admits calls and says what the backend has, how busy it is and what is wrong with it.

    It is ready while every encoder it loaded runs and it serves something; models that were
    broken when it started are named as missing and keep nobody from the others.
    """

    def __init__(
        self,
        *,
        identity: Identity,
        endpoints: Mapping[str, Endpoint],
        pipelines: Mapping[str, Pipeline],
        encoders: Sequence[RunningEncoder],
        problems: Mapping[str, str],
        clock: Callable[[], float] = time.monotonic,
        device: Device | None = None,
    ) -> None:
        self.pipelines = pipelines
        self._identity = identity
        self._endpoints = endpoints
        self._encoders = {encoder.name: encoder for encoder in encoders}
        self._problems = [f"{name}: {reason}" for name, reason in problems.items()]
        self._items: Counter[tuple[str, str, str]] = Counter()
        self._idle = asyncio.Event()
        self._idle.set()
        self.calls_in_flight = 0
        self.draining = False
        self._clock = clock
        self._device = device
        self._reported = -math.inf
        self._report_frame = b""

    def admit(self, call: Call) -> Endpoint:
        """Return the endpoint of a call.

        Raises:
            CallRefused: it is not served here, or not now.
            Overloaded: the queue of its encoder is full.
        """
        if self.draining:
            raise NotReady("the backend is stopping; try another one")
        endpoint = self._endpoints.get(call.model)
        if endpoint is None:
            raise ModelNotFound(f"model `{call.model}` is not served here")
        if call.task not in endpoint.algorithms:
            raise ModelNotFound(f"model `{call.model}` has no task `{call.task}`")
        info = endpoint.info
        if (call.revision, call.profile) != (info.revision, info.profile):
            raise RevisionMismatch(
                f"`{call.model}` runs here as `{info.revision}` in `{info.profile}`"
            )
        batcher = self._encoders[endpoint.encoder].batcher
        if batcher.failure is not None:
            raise NotReady(f"the encoder of `{call.model}` is broken: {batcher.failure}")
        if batcher.is_full():
            batcher.turn_away(len(call.items))
            raise Overloaded("the queue is full", retry_after=batcher.backlog())
        # Refused before its texts are tokenized if not even the shortest would be in time.
        shortest = min(len(item.body) for item in call.items) // _TOKEN_BYTES
        try:
            batcher.check_time(
                max(item.remaining for item in call.items),
                batcher.work(min(shortest, info.max_tokens)),
                lane=call.lane,
            )
        except Overloaded:
            batcher.turn_away(len(call.items))
            raise
        return endpoint

    def backlog(self, call: Call) -> float:
        """Return the seconds after which an admitted call, sent again, would find room."""
        return self._encoders[self._endpoints[call.model].encoder].batcher.backlog()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count a call as in flight."""
        self.calls_in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.calls_in_flight -= 1
            if not self.calls_in_flight:
                self._idle.set()

    async def idle(self) -> None:
        """Wait until no call is in flight."""
        await self._idle.wait()

    def count_item(self, call: Call, outcome: str) -> None:
        """Count an item's end; `outcome` is of a closed set."""
        self._items[call.model, call.task, outcome] += 1

    def failures(self) -> list[str]:
        """Return what was loaded and has died since."""
        return [
            f"{name}: {encoder.batcher.failure}"
            for name, encoder in self._encoders.items()
            if encoder.batcher.failure is not None
        ]

    def state(self) -> BackendState:
        """Return identity, readiness, models and load."""
        failures = self.failures()
        missing = [*failures, *self._problems]
        if self.draining:
            missing.append("the backend is stopping")
        if not self._endpoints:
            missing.append("no model is served")
        providers = {encoder.batcher.provider for encoder in self._encoders.values()}
        return BackendState(
            backend_id=self._identity.backend_id,
            region=self._identity.region,
            ready=bool(self._endpoints) and not failures and not self.draining,
            missing=missing,
            provider=", ".join(sorted(providers)) or "none",
            models=[endpoint.info for endpoint in self._endpoints.values()],
            report=self.report(),
        )

    def report_frame(self) -> bytes:
        """Return the report as the last frame of a reply, made anew every few milliseconds."""
        now = self._clock()
        if now - self._reported >= _REPORT_AGE:
            self._reported, self._report_frame = now, encode_frame(self.report())
        return self._report_frame

    def report(self) -> Report:
        """Return how busy the encoders are, taken together."""
        statistics = [encoder.batcher.statistics() for encoder in self._encoders.values()]
        tokens = sum(s.tokens for s in statistics)
        padded = sum(s.padded_tokens for s in statistics)
        return Report(
            queued_rows=sum(s.queued_rows for s in statistics),
            queued_tokens=sum(s.queued_tokens for s in statistics),
            rows_per_second=max((s.rows_per_second for s in statistics), default=0.0),
            tokens_per_second=max((s.tokens_per_second for s in statistics), default=0.0),
            padding_waste_ratio=1.0 - tokens / padded if padded else 0.0,
            queued_seconds=max((s.queued_seconds for s in statistics), default=0.0),
            device_busy_share=self._device.busy_share() if self._device else 0.0,
        )

    def snapshot(self) -> Snapshot:
        """Return the numbers the metrics are made of."""
        return Snapshot(
            ready=self.state().ready,
            calls_in_flight=self.calls_in_flight,
            device_busy_share=self._device.busy_share() if self._device else 0.0,
            items=dict(self._items),
            encoders=[
                EncoderStatistics(
                    name=name,
                    queue=encoder.batcher.statistics(),
                    rows=encoder.rows.statistics(),
                )
                for name, encoder in self._encoders.items()
            ],
        )
