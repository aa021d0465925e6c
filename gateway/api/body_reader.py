"""Decodes and validates request bodies, and caches the results of small ones."""

import asyncio
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from sluicegate.gateway.api.answers import failed_usage
from sluicegate.gateway.api.decode_errors import explain_decode_error
from sluicegate.gateway.api.error_handling import misfit
from sluicegate.gateway.api.inference_route import BodySource, InferenceRoute
from sluicegate.gateway.api.json_bounds import (
    MAX_UNCHECKED_BYTES,
    check_item_count,
    check_json_size,
)
from sluicegate.gateway.api.recent_cache import RecentCache
from sluicegate.gateway.api.request_size import SMALL_BYTES, size_of
from sluicegate.gateway.api.request_state import ParsedBody, RequestState
from sluicegate.gateway.errors import InvalidRequest
from sluicegate.gateway.http.body_decoding import without_mark
from sluicegate.gateway.inference.interfaces import ModelTable
from sluicegate.gateway.rate_limit.charges import charges_for
from sluicegate.gateway.runtime.runtime import Runtime
from sluicegate.gateway.types import Principal
from sluicegate.wire.protocol import Task

_MAX_CACHED_BYTES = 1024
_MAX_CACHED = 4096
_GZIP = b"\x1f\x8b"
_NONE: Mapping[str, str] = MappingProxyType({})
_Name = tuple[Principal | None, InferenceRoute, tuple[str, ...], tuple[bytes, ...], bytes]


class BodyReader:
    """Decodes bodies; its cache is cleared when the runtime changes."""

    def __init__(self, models: ModelTable) -> None:
        self._models = models
        self._large_lock = asyncio.Lock()
        self._runtime: Runtime | None = None
        self._cache: RecentCache[_Name, ParsedBody] = RecentCache(_MAX_CACHED)

    def read(self, state: RequestState, raw: bytes) -> ParsedBody:
        """Return the parsed body; equal bytes of one caller are parsed once.

        Raises:
            InvalidRequest: it is not JSON, or does not fit the route.
            PayloadTooLarge: it has more items, or values, than the document allows.
            ExpansionTooLarge: it expands to more, or would have a larger answer.
        """
        if state.runtime is not self._runtime:
            self._runtime = state.runtime
            self._cache.clear()
        route = state.route
        name = (state.principal, route, state.parameters, state.fields, raw)
        parsed = self._cache.newer.get(name)
        if parsed is None and name in self._cache.older:
            parsed = self._cache.get(name)
        if parsed is None:
            parsed = self._decode(state, raw)
            if len(raw) <= _MAX_CACHED_BYTES and not route.reads_models:
                self._cache.put(name, parsed)
        return parsed

    async def read_large(self, state: RequestState, raw: bytes) -> ParsedBody:
        """Return a large parsed body; it is parsed in a thread, one body at a time.

        Each step holds the GIL, so the event loop waits for one step and not for all of them.

        Raises:
            InvalidRequest: as `read`.
            PayloadTooLarge: as `read`.
        """
        async with self._large_lock:
            return await asyncio.to_thread(self._decode, state, raw)

    def _decode(self, state: RequestState, raw: bytes) -> ParsedBody:
        route, document = state.route, state.runtime.document
        parameters = _NONE
        if state.parameters:
            parameters = dict(zip(route.names, state.parameters, strict=True))
        bounds, length = document.request, len(raw)
        # What is as short as most bodies are has neither too many values nor slow numbers.
        if length > MAX_UNCHECKED_BYTES or length > bounds.max_values:
            check_json_size(route.json_part(raw, state.fields), max_values=bounds.max_values)
        caller = state.principal
        source = BodySource(raw, parameters, state.fields, document, self._models, caller)
        try:
            body = route.decode(source)
            items = body.items()
            if not 0 < len(items) <= bounds.max_items:
                check_item_count(items, bounds.max_items)
            request = body.request(parameters.get("model", ""))
            charged_items, held_bytes = len(items), 0
            if length > SMALL_BYTES or len(items) > 1 or request.task is Task.ZERO_SHOT:
                served, growth = self._models.model(request.model), route.answer_growth
                size = size_of(request, served, bounds=bounds, length=length, growth=growth)
                charged_items, held_bytes = size.charged_items(len(items)), size.held_bytes
        except (msgspec.MsgspecError, UnicodeError, RecursionError, OverflowError) as error:
            raise _decode_failure(raw, error) from error
        return ParsedBody(
            body=body,
            request=request,
            charges=()
            if caller is None
            else charges_for(
                caller,
                items=charged_items,
                model=request.model,
                default_tenant_rules=document.limits.tenant,
                default_key_rules=document.limits.key,
            ),
            length=length,
            held_bytes=held_bytes,
            failed=failed_usage(len(items)),
        )


def _decode_failure(raw: bytes, error: Exception) -> InvalidRequest:
    """Return the error of a body that the decoder, or the encoder of items, refused."""
    if raw.startswith(_GZIP):
        return InvalidRequest("The body is compressed; say so with `Content-Encoding`: `gzip`.")
    if not raw.strip():
        return InvalidRequest("The body is empty; send JSON.")
    # For these errors the decoder names a byte offset at most.
    is_unnamed = not isinstance(error, msgspec.ValidationError) or "out of range" in str(error)
    if is_unnamed and (clause := explain_decode_error(without_mark(raw))) is not None:
        return InvalidRequest(f"The body cannot be read: {clause}.")
    if isinstance(error, msgspec.ValidationError):
        return misfit(error)
    return InvalidRequest(f"The body is not valid JSON: {error}.")
