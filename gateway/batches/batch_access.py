"""Creates, shows and cancels the batches of tenants."""

import secrets
from collections.abc import Sequence
from typing import NamedTuple

from sluicegate.gateway.batches.tenant_files import FileBounds, TenantFiles, Threads
from sluicegate.gateway.errors import InvalidRequest
from sluicegate.gateway.ledger.batch_types import RequestBatch
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.storage.build import build_storage
from sluicegate.gateway.types import Principal

_WINDOW = "24h"
_SECONDS = 86_400
_MOST_METADATA = 16
_LONGEST_NAME = 64
_LONGEST_VALUE = 512


class BatchAccess:
    """The batches of all tenants; each call is about those of its caller."""

    def __init__(
        self, *, ledger: Ledger, files: TenantFiles, max_open: int, part_lines: int
    ) -> None:
        self._batches = ledger.batches
        self._files = files
        self._max_open = max_open
        self._part_lines = part_lines
        self._threads = Threads("batches")

    async def create(
        self,
        caller: Principal,
        *,
        endpoint: str,
        input_file: str,
        window: str,
        metadata: dict[str, str] | None,
        output_expires_after: int | None,
    ) -> RequestBatch:
        """Create a batch, which begins as soon as a process takes it.

        Raises:
            InvalidRequest: an argument does not fit.
            NotFound: there is no such file.
            RateLimited: the tenant has as many open batches, or bytes of files, as it may.
        """
        if window != _WINDOW:
            raise InvalidRequest(f"`completion_window` must be `{_WINDOW}`.")
        _check_metadata(metadata or {})
        if output_expires_after is not None:
            self._files.check_life(output_expires_after, "output_expires_after")
        await self._files.get(caller, input_file)
        now = self._batches.now()
        batch = RequestBatch(
            id=f"batch_{secrets.token_hex(7)}",
            tenant=caller.tenant,
            key=caller.key,
            endpoint=endpoint,
            input_file=input_file,
            created=now,
            expires=now + _SECONDS,
            part_lines=self._part_lines,
            metadata=metadata,
            output_expires_after=output_expires_after,
        )
        await self._threads.run(
            self._batches.create,
            batch,
            most_open=self._max_open,
            most_bytes=self._files.bounds.max_total_bytes,
        )
        return batch

    async def get(self, caller: Principal, batch: str) -> RequestBatch:
        """Return a batch.

        Raises:
            NotFound: there is none.
        """
        return await self._threads.run(self._batches.get, caller.tenant, batch)

    async def page(
        self, caller: Principal, *, limit: int, after: str | None
    ) -> Sequence[RequestBatch]:
        """Return at most `limit` batches, the newest first.

        Raises:
            NotFound: there is no batch `after`.
        """
        return await self._threads.run(self._batches.page, caller.tenant, limit=limit, after=after)

    async def cancel(self, caller: Principal, batch: str) -> RequestBatch:
        """Ask for the end of a batch; its results so far are kept.

        Raises:
            NotFound: there is none.
            Conflict: it has ended.
        """
        return await self._threads.run(self._batches.cancel, caller.tenant, batch)


class BatchParts(NamedTuple):
    """The files and batches of tenants."""

    files: TenantFiles
    batches: BatchAccess


def open_batch_parts(settings: Settings, ledger: Ledger) -> BatchParts:
    """Return access to the files and batches in `ledger`."""
    files = TenantFiles(
        ledger=ledger,
        storage=build_storage(settings),
        bounds=FileBounds(
            max_bytes=settings.file_max_bytes,
            max_files=settings.files_max,
            max_total_bytes=settings.files_max_bytes,
            keep=int(settings.files_keep),
            upload_timeout=settings.file_upload_timeout,
        ),
    )
    batches = BatchAccess(
        ledger=ledger,
        files=files,
        max_open=settings.batches_max_open,
        part_lines=settings.batch_part_lines,
    )
    return BatchParts(files, batches)


def _check_metadata(metadata: dict[str, str]) -> None:
    if len(metadata) > _MOST_METADATA:
        raise InvalidRequest(f"`metadata` may have {_MOST_METADATA} entries.")
    for name, value in metadata.items():
        if len(name) > _LONGEST_NAME or len(value) > _LONGEST_VALUE:
            raise InvalidRequest(
                f"`metadata` may have names of {_LONGEST_NAME} and values of {_LONGEST_VALUE}"
                " characters."
            )
