"""Decides which traces are recorded, with the rules of the OpenTelemetry SDK's samplers.

The SDK's own sampler is not used, because a decision takes 2 µs, which is a seventh of the time
that a cache hit takes.
"""

import sys
from math import log, log1p
from random import getrandbits, random
from typing import Final

from opentelemetry.sdk.trace.sampling import Decision, ParentBased, Sampler, TraceIdRatioBased

from sluicegate.gateway.telemetry.trace_context import ODD

_ALL: Final = 1 << 64


class HeadSampler:
    """Decides whether to record a request, from its trace context.

    `sampler` is one of the samplers that `OTEL_TRACES_SAMPLER` can name. It records a trace if the
    last 64 bits of the trace's id are below a bound. But if there is a parent span, a parent-based
    sampler follows the parent's decision.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._follows_parent = isinstance(sampler, ParentBased)
        # The SDK has no public attribute for the bound.
        root: Sampler = getattr(sampler, "_root", sampler)
        if isinstance(root, TraceIdRatioBased):
            self.bound = root.bound
        else:
            decision = root.should_sample(None, 0, "").decision
            self.bound = _ALL if decision is Decision.RECORD_AND_SAMPLE else 0
        self.is_off = self.bound == 0 and not self._follows_parent
        """Whether no request is ever recorded."""

    def samples(self, context: str) -> bool:
        """Return whether to record a request with the trace context `context`."""
        if not context:
            return getrandbits(64) < self.bound
        if self._follows_parent:
            return context[54] in ODD  # this is the code of `is_sampled`, inlined to save a call
        return int(context[19:35], 16) < self.bound

    def gap(self) -> int:
        """Return a random number n: the n-th of the next requests is recorded.

        Only requests without a trace context count. The caller counts the number down with each of
        these requests. This takes half as long as drawing random bits for each request, and records
        each request with the same probability.
        """
        if not 0 < self.bound < _ALL:
            return 1 if self.bound else sys.maxsize
        return 1 + int(log(1.0 - random()) / log1p(-self.bound / _ALL))  # noqa: S311 - no secret

    def new_trace_id(self) -> int:
        """Return the id of a new trace that is recorded.

        Samplers of other services with the same ratio record a trace with this id, too.
        """
        low = (getrandbits(64) * (self.bound or _ALL)) >> 64
        return getrandbits(64) << 64 | low or 1
