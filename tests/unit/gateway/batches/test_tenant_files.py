"""Nothing of a file is left that was deleted or refused."""

from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest
from typing_extensions import override

from sluicegate.gateway.batches.runner import FileRetention
from sluicegate.gateway.batches.tenant_files import FileBounds, TenantFiles
from sluicegate.gateway.dialects.openai_batches import expiry_of
from sluicegate.gateway.dialects.uploads import MultipartReader
from sluicegate.gateway.errors import DependencyUnavailable, InvalidRequest, NotFound, RateLimited
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.storage.disk import DiskStorage
from sluicegate.gateway.types import KeyId, Principal, TenantId
from tests.support.ledgers import Clock, open_ledger

pytestmark = pytest.mark.anyio
CALLER = Principal(tenant=TenantId("acme"), key=KeyId("key_1"))
BOUNDS = FileBounds(
    max_bytes=100, max_files=2, max_total_bytes=150, keep=86_400, upload_timeout=9.0
)


class StuckStorage(DiskStorage):
    """A disk from which nothing can be deleted while it `is_stuck`."""

    is_stuck = False

    @override
    def delete(self, name: str) -> None:
        if self.is_stuck:
            raise DependencyUnavailable("it is stuck")
        super().delete(name)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(tmp_path: Path, clock: Clock) -> Iterator[Ledger]:
    with open_ledger(tmp_path, clock) as opened:
        yield opened


@pytest.fixture
def storage(tmp_path: Path) -> StuckStorage:
    return StuckStorage(tmp_path / "stored")


@pytest.fixture
def files(ledger: Ledger, storage: StuckStorage) -> TenantFiles:
    return TenantFiles(ledger=ledger, storage=storage, bounds=BOUNDS)


def stored(folder: Path) -> list[Path]:
    return [path for path in (folder / "stored").rglob("*") if path.is_file()]


async def test_a_content_that_could_not_be_deleted_is_deleted_later(
    tmp_path: Path, ledger: Ledger, files: TenantFiles, storage: StuckStorage, clock: Clock
) -> None:
    async with files.uploading(CALLER, "lines.jsonl") as upload:
        await upload.write(b"secret")
    file = await files.finish(upload, expires_after=None)
    storage.is_stuck = True
    with pytest.raises(DependencyUnavailable):
        await files.delete(CALLER, file.id)
    with pytest.raises(NotFound):
        await files.get(CALLER, file.id)

    storage.is_stuck = False
    clock.advance(4000.0)
    retention = FileRetention(
        files=ledger.files, batches=ledger.batches, storage=storage, keep=86_400
    )
    retention.run_once()

    assert stored(tmp_path) == []
    assert ledger.files.expired() == []


async def test_uploads_set_room_aside_until_their_size_is_known(files: TenantFiles) -> None:
    async with files.uploading(CALLER, "one") as upload:
        with pytest.raises(RateLimited, match="150 bytes"):
            async with files.uploading(CALLER, "other"):
                pass
    await files.finish(upload, expires_after=None)

    async with files.uploading(CALLER, "other") as second:
        pass

    assert (await files.finish(second, expires_after=None)).size == 0


@pytest.mark.parametrize("seconds", ["soon", "5", "999999999", "-1", ""])
async def test_a_form_with_a_wrong_expiry_leaves_nothing(
    tmp_path: Path, ledger: Ledger, files: TenantFiles, clock: Clock, seconds: str
) -> None:
    fields = {"purpose": "batch", "expires_after[seconds]": seconds}
    form = "".join(
        f'--b\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    )
    form += (
        '--b\r\ncontent-disposition: form-data; name="file"; filename="x"\r\n\r\n{}\r\n--b--\r\n'
    )

    async def chunks() -> AsyncIterator[bytes]:
        yield form.encode()

    reader = MultipartReader(partial(files.uploading, CALLER), check=partial(expiry_of, files))
    with pytest.raises(InvalidRequest, match="expires_after"):
        await reader.receive("multipart/form-data; boundary=b", chunks())

    assert stored(tmp_path) == []
    clock.advance(1e6)
    assert ledger.files.expired() == []
