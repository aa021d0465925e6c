"""Caches parsed request heads, and whole requests that were memory hits, by a keyed digest.

Callers send the same head many times. The digest is keyed, so the cache holds no API key. A change
of keys or of the configuration document clears the cache.
"""

import secrets
from hashlib import blake2b
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from sluicegate.gateway.api.cross_origin import CrossOrigin
from sluicegate.gateway.api.incoming_request import IncomingRequest
from sluicegate.gateway.api.inference_route import InferenceRoutes, RouteMatch
from sluicegate.gateway.api.recent_cache import RecentCache
from sluicegate.gateway.api.request_headers import RequestOptions
from sluicegate.gateway.api.request_processor import RequestProcessor
from sluicegate.gateway.api.request_state import HitReplay, ParsedBody
from sluicegate.gateway.auth.key_ring import KeyRing
from sluicegate.gateway.errors import AuthenticationFailed, GatewayError
from sluicegate.gateway.http.request_head import (
    NO_ID,
    CallerId,
    echo_line,
    split_caller_id,
    split_length,
)
from sluicegate.gateway.runtime.runtime import Runtime
from sluicegate.gateway.runtime.store import RuntimeStore
from sluicegate.gateway.telemetry.trace_context import MARK, MOST_LINES
from sluicegate.gateway.types import CacheDirectives, Principal
from sluicegate.wire.http.refusals import Refusal
from sluicegate.wire.http.request_head import MAX_FIELDS
from sluicegate.wire.http.request_parser import RequestHead, RequestParser

_LONGEST = 4096
_MOST = 4096
_KEYED = b"idempotency-key"
_NAMED = b"request-id:"
_NAME_PART = b"equest-"
_TAKEN_OUT = b"\0"
# A body with one of these does not end where its declared length says, or is not to be read yet.
_UNUSUAL = (b"transfer-encoding", b"expect", b"upgrade", b"content-encoding")


class CachedHead(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The decisions about a request by its head. `length` is the length of the first body."""

    match: RouteMatch
    fields: tuple[bytes, ...]
    length: int
    principal: Principal
    options: RequestOptions
    wants_timing: bool
    is_plain: bool
    """Whether no header of the request changes the answer of a memory hit."""
    coding: str
    """The content coding for a large answer. Empty means no compression."""
    own_lines: bytes
    """Header lines of answers to this caller."""
    caller_id: CallerId
    """The caller's own id of the request."""
    context: str
    """The trace context, if `split_context` does not take out its form."""


class RepeatedRequest(NamedTuple):
    """The head and parsed body of a whole request that a tier other than memory answered.

    An equal request is looked up in this tier again, without parsing.
    """

    head: CachedHead
    parsed: ParsedBody


class FoundHead(msgspec.Struct, frozen=True, gc=False):
    """The decisions about a request. `head` lacks the trace context."""

    known: CachedHead
    head: bytes
    context: str
    length: int


class RequestHeadCache:
    """Holds the recent heads of a worker's requests that the fast path may answer."""

    def __init__(
        self,
        *,
        processor: RequestProcessor,
        keys: KeyRing,
        runtimes: RuntimeStore,
        cross_origin: CrossOrigin,
        routes: InferenceRoutes,
    ) -> None:
        self._processor = processor
        self._split = processor.tracer.contexts.split
        self._keys = keys
        self._runtimes = runtimes
        self._cross_origin = cross_origin
        # Copied for each digest: to begin with the key anew would cost a round of it.
        self._keyed = blake2b(digest_size=16, key=secrets.token_bytes(32))
        self._heads: RecentCache[bytes, CachedHead | Literal[False]] = RecentCache(_MOST)
        """The decisions by head. `False` means that the application answers."""
        self._requests: RecentCache[bytes, HitReplay | RepeatedRequest] = RecentCache(_MOST)
        self._runtime: Runtime | None = None
        self._max_body_bytes = 0
        self._generation = -1
        self._is_closed = False
        self._routes = routes

    def find(self, head: bytes) -> FoundHead | None:
        """Return the decisions about `head`, which ends with its empty line.

        Return `None` if the application answers the request. Heads that differ only in the trace
        context, the length of the body or the caller's id are parsed once.
        """
        if self._runtimes.current is not self._runtime or self._keys.generation != self._generation:
            self._forget()
        context, caller_id = "", NO_ID
        if MARK in head:
            context, head = self._split(head)
        whole = head
        if _NAME_PART in head:
            caller_id, head = split_caller_id(head)
        length, rest = split_length(head)
        if length > self._max_body_bytes:
            return None
        # The marker tells a head whose length was taken out from one that never had a length.
        hasher = self._keyed.copy()
        hasher.update(rest + _TAKEN_OUT if length else rest)
        digest = hasher.digest()
        known = self._heads.newer.get(digest) or self._heads.get(digest)
        if known is None:
            known = self._read_new(head, digest)
        if not known:
            return None
        if caller_id is not NO_ID:
            known = _named(known, caller_id)
        return FoundHead(known, whole, context or known.context, length or known.length)

    def find_replayable(self, request: bytes) -> HitReplay | RepeatedRequest | None:
        """Return what is known of a whole request that was a hit before."""
        if self._runtimes.current is not self._runtime or self._keys.generation != self._generation:
            self._forget()
        if len(request) > _LONGEST:
            return None
        hasher = self._keyed.copy()
        hasher.update(request)
        digest = hasher.digest()
        requests = self._requests
        found = requests.newer.get(digest)
        return requests.get(digest) if found is None and digest in requests.older else found

    def add_replayable(self, request: bytes, known: HitReplay | RepeatedRequest) -> None:
        """Store a whole request, head and body."""
        if len(request) <= _LONGEST and not self._is_closed:
            hasher = self._keyed.copy()
            hasher.update(request)
            self._requests.put(hasher.digest(), known)

    def close(self) -> None:
        """Clear the cache and store nothing more. Every request then goes to the application."""
        self._is_closed = True
        self._forget()

    def _forget(self) -> None:
        self._heads.clear()
        self._requests.clear()
        self._runtime = self._runtimes.current
        self._max_body_bytes = self._runtime.document.request.max_body_bytes
        self._generation = self._keys.generation

    def _read_new(self, head: bytes, digest: bytes) -> CachedHead | Literal[False]:
        """Return the decisions about a new head, and store them unless the head is unique."""
        lowered = head.lower()
        if len(head) > _LONGEST or _KEYED in lowered or self._is_closed:
            return False
        try:
            known: CachedHead | Literal[False] = self._read(head) or False
        except AuthenticationFailed:
            return False  # not stored: a key that is added does not clear the cache
        if _NAMED not in lowered:
            self._heads.put(digest, known)
        return known

    def _read(self, head: bytes) -> CachedHead | None:
        parsed = _parsed(head)
        if parsed is None or not _is_plain(parsed):
            return None
        match = self._routes.find(parsed.path)
        if match is None:
            return None
        request = IncomingRequest("POST", parsed.path, parsed.headers, keys=self._keys)
        if any(name in request.fields for name in _UNUSUAL):
            return None
        context = self._processor.tracer.contexts.read(parsed.headers)
        state = self._processor.new_state(match)
        try:
            self._cross_origin.answer_early(request)
            self._processor.read_head(state, request)
        except AuthenticationFailed:
            raise
        except GatewayError:
            return None
        if state.principal is None:
            return None
        lines = state.own_lines + request.added_lines
        return CachedHead(
            match=match,
            fields=state.fields,
            length=int(request.fields[b"content-length"]),
            principal=state.principal,
            options=state.options,
            wants_timing=state.wants_timing,
            is_plain=not (state.wants_timing or context or lines)
            and state.options.directives == CacheDirectives(),
            coding=state.coding,
            own_lines=lines,
            caller_id=state.caller_id,
            context=context,
        )


def _named(known: CachedHead, caller_id: CallerId) -> CachedHead:
    """Return the decisions about a head for a request with an id of its caller."""
    lines = echo_line(caller_id) + known.own_lines
    return replace(known, caller_id=caller_id, own_lines=lines, is_plain=False)


def _parsed(data: bytes) -> RequestHead | None:
    """Return a head as the server reads it, if a body and nothing else has to follow."""
    found: list[RequestHead] = []
    parser = RequestParser(on_head=found.append, on_body=lambda _: None, on_end=lambda _: None)
    try:
        parser.feed(data)
    except Refusal:
        return None
    return found[0] if found and parser.is_in_body else None


def _is_plain(head: RequestHead) -> bool:
    """Tell whether it is a POST over HTTP/1.1 with a declared body, on a connection that stays."""
    lengths = [value for name, value in head.headers if name == b"content-length"]
    return (
        # Less those of a trace context and two ids, which were taken out.
        len(head.headers) < MAX_FIELDS - MOST_LINES - 1
        and (head.method, head.version) == ("POST", "1.1")
        and head.keeps_alive
        and head.target == head.path.encode()  # without a query, or anything that was decoded
        and len(lengths) == 1
        and lengths[0].isdigit()
    )
