"""Keeps the files of tenants: who has which in the ledger, their contents in the storage.

Calls run in threads of their own, so that a ledger or a disk that does not answer blocks nothing.
"""

import asyncio
import secrets
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from sluicegate.gateway.errors import InvalidRequest, PayloadTooLarge
from sluicegate.gateway.ledger.batch_types import StoredFile
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.storage.base import FileStorage
from sluicegate.gateway.storage.build import file_object
from sluicegate.gateway.types import Principal

PURPOSES: Final = ("batch",)
_THREADS: Final = 8
_SHORTEST_LIFE: Final = 3600
T = TypeVar("T")
WriteLater = Callable[[bytes], Awaitable[object]]
"""Stores the next bytes of a file."""


class FileBounds(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on files: bytes of one, a tenant's files and bytes, seconds kept and of an upload."""

    max_bytes: int
    max_files: int
    max_total_bytes: int
    keep: int
    upload_timeout: float


class Threads:
    """Runs blocking calls in a few threads."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix=name)

    async def run(self, call: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Return what `call` returns."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, partial(call, *arguments, **named))


class Upload:
    """Receives a file: `write` takes its content, `finish` what else is known of it."""

    def __init__(self, files: "TenantFiles", file: StoredFile, write: WriteLater) -> None:
        self.file = file
        self.size = 0
        self._bounds = files.bounds
        self._write = write

    async def write(self, content: bytes) -> None:
        """Store the next bytes.

        Raises:
            PayloadTooLarge: the file is larger than allowed.
        """
        self.size += len(content)
        if self.size > self._bounds.max_bytes:
            raise PayloadTooLarge(
                f"The file is larger than {self._bounds.max_bytes} bytes; send several."
            )
        await self._write(content)


class TenantFiles:
    """The files of all tenants; each call is about those of its caller."""

    def __init__(self, *, ledger: Ledger, storage: FileStorage, bounds: FileBounds) -> None:
        self._files = ledger.files
        self._now = ledger.batches.now
        self._storage = storage
        self.bounds = bounds
        self._threads = Threads("files")

    @asynccontextmanager
    async def uploading(self, caller: Principal, filename: str) -> AsyncIterator[Upload]:
        """Return the upload of a new file, which nobody sees before `finish`.

        Raises:
            RateLimited: the tenant has as many files as it may.
        """
        now = self._now()
        file = StoredFile(
            id=f"file-{secrets.token_hex(12)}",
            tenant=caller.tenant,
            purpose=PURPOSES[0],
            filename=filename,
            size=self.bounds.max_bytes,  # so much is set aside, until it is known
            created=now,
            expires=now + self.bounds.keep,
        )
        run = self._threads.run
        most, most_bytes = self.bounds.max_files, self.bounds.max_total_bytes
        await run(self._files.begin, file, most=most, most_bytes=most_bytes)
        context = self._storage.writing(file_object(file.id))
        try:
            write = await run(context.__enter__)
            try:
                yield Upload(self, file, partial(run, write))
            except BaseException:  # also cancellation: nothing half-written may stay
                await asyncio.shield(run(context.__exit__, *sys.exc_info()))
                raise
            await run(context.__exit__, None, None, None)
        except BaseException:  # as above: it counts among the tenant's files
            await asyncio.shield(run(self._files.forget, file.id))
            raise

    async def finish(self, upload: Upload, *, expires_after: int | None) -> StoredFile:
        """Make an upload, whose context has ended, a file.

        Raises:
            InvalidRequest: it is to expire too early or too late.
        """
        file = msgspec.structs.replace(upload.file, size=upload.size)
        if expires_after is not None:
            self.check_life(expires_after)
            file = msgspec.structs.replace(file, expires=file.created + expires_after)
        await self._threads.run(self._files.finish, file.id, size=file.size, expires=file.expires)
        return file

    def check_life(self, seconds: int, field: str = "expires_after") -> None:
        """Check for how long a file is to be kept, as `field` says.

        Raises:
            InvalidRequest: it is too short or too long.
        """
        if not _SHORTEST_LIFE <= seconds <= self.bounds.keep:
            raise InvalidRequest(
                f"`{field}` must be {_SHORTEST_LIFE} to {self.bounds.keep} seconds."
            )

    async def get(self, caller: Principal, file: str) -> StoredFile:
        """Return a file.

        Raises:
            NotFound: there is none.
        """
        return await self._threads.run(self._files.get, caller.tenant, file)

    async def page(
        self,
        caller: Principal,
        *,
        limit: int,
        after: str | None,
        purpose: str | None,
        is_ascending: bool,
    ) -> Sequence[StoredFile]:
        """Return at most `limit` files.

        Raises:
            NotFound: there is no file `after`.
        """
        return await self._threads.run(
            self._files.page,
            caller.tenant,
            limit=limit,
            after=after,
            purpose=purpose,
            is_ascending=is_ascending,
        )

    async def delete(self, caller: Principal, file: str) -> None:
        """Delete a file.

        Raises:
            NotFound: there is none.
            Conflict: a batch reads it.
        """
        await self._threads.run(self._files.hide, caller.tenant, file)
        # The row last: `FileRetention` goes on where this ends early.
        await self._threads.run(self._storage.delete, file_object(file))
        await self._threads.run(self._files.forget, file)

    async def content(self, caller: Principal, file: str) -> AsyncIterator[bytes]:
        """Return the content of a file.

        Raises:
            NotFound: there is none.
        """
        await self.get(caller, file)
        chunks = self._storage.read(file_object(file))
        first = await self._threads.run(next, chunks, b"")

        async def rest() -> AsyncIterator[bytes]:
            content = first
            while content:
                yield content
                content = await self._threads.run(next, chunks, b"")

        return rest()
