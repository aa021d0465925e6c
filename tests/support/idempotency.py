"""Stands for an idempotency key that every request has, and that nobody else claims."""

from typing_extensions import override

from sluicegate.gateway.api.idempotent_requests import IdempotentRequests
from sluicegate.gateway.idempotency.store import StoredKey


class NotedKey(StoredKey):
    """Notes the answer that retries would get."""

    def __init__(self) -> None:
        self.stored: bytes | None = None
        """`None` while the key is claimed, empty if the next retry runs again."""

    @override
    async def finish(self, answer: bytes = b"") -> None:
        self.stored = answer if self.stored is None else self.stored


class AlwaysKeyed(IdempotentRequests):
    """Claims `key` for every request."""

    def __init__(self, key: NotedKey) -> None:
        self._key = key

    @override
    async def claim(self, request: object, body: object, runtime: object) -> NotedKey:
        return self._key
