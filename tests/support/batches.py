"""Makes files and batches of one tenant, and waits for what becomes of them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from sluicegate.gateway.auth.keys import hash_key
from sluicegate.gateway.batches.batch_access import open_batch_parts
from sluicegate.gateway.ledger.batch_types import RequestBatch
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.types import KeyId, Principal, Rule, TenantId
from testing.raw_http import KEY
from testing.stub_backend import StubBackend
from testing.waiting import eventually
from tests.support.worker import write_document


class BatchScene:
    """A tenant, its files and batches; `document` is the rest of one that names `stub`."""

    def __init__(
        self, settings: Settings, ledger: Ledger, stub: StubBackend, **document: Any
    ) -> None:
        self.settings = settings
        self.caller = add_caller(ledger, "acme", KEY)
        self.ledger = ledger
        self.files, self.batches = open_batch_parts(settings, ledger)
        write_document(settings.config, [(stub.backend_id, stub.region, stub.url)], document)

    async def upload(self, content: bytes) -> str:
        """Store a file; return its id."""
        async with self.files.uploading(self.caller, "lines.jsonl") as upload:
            await upload.write(content)
        return (await self.files.finish(upload, expires_after=None)).id

    async def create(self, *lines: bytes, endpoint: str = "/v1/classify") -> RequestBatch:
        """Create a batch of these lines."""
        return await self.batches.create(
            self.caller,
            endpoint=endpoint,
            input_file=await self.upload(b"".join(lines)),
            window="24h",
            metadata=None,
            output_expires_after=None,
        )

    async def until(
        self, batch: RequestBatch, is_so: Callable[[RequestBatch], bool]
    ) -> RequestBatch:
        """Wait until something is so; return the batch then."""
        found = batch

        async def look() -> bool:
            nonlocal found
            found = await self.batches.get(self.caller, batch.id)
            return is_so(found)

        await eventually(look, every=0.02)
        return found

    async def ended(self, batch: RequestBatch) -> RequestBatch:
        """Wait until a batch has ended."""
        return await self.until(batch, lambda found: not found.status.is_open)

    async def lines_of(self, file: str | None) -> list[dict[str, Any]]:
        """Return the lines of a file, none where there is no file."""
        if file is None:
            return []
        content = b"".join([chunk async for chunk in await self.files.content(self.caller, file)])
        return [msgspec.json.decode(line) for line in content.splitlines()]


def add_caller(ledger: Ledger, tenant: str, key: str, *rules: Rule) -> Principal:
    """Create a tenant with a key."""
    ledger.accounts.create_tenant(tenant, rules=rules)
    made = ledger.accounts.create_key(tenant, key_hash=hash_key(key))
    return Principal(tenant=TenantId(tenant), key=KeyId(made.id))


def batch_settings(folder: Path, url: str, **own: Any) -> Settings:
    """Return settings for batches in `folder`, over the Valkey at `url`, in small parts."""
    return Settings(
        data_dir=folder,
        config=folder / "config",
        cache_url=url,
        state_url=url,
        secret="of the gateways of a test",
        worker="batches",
        **{"batch_part_lines": 20, **own},
    )


def request_line(custom_id: str, texts: Sequence[str], **fields: Any) -> bytes:
    """Return a line that asks `stub` about texts."""
    body = {"model": "stub", "input": texts}
    line = {"custom_id": custom_id, "method": "POST", "url": "/v1/classify", "body": body}
    return msgspec.json.encode(line | fields) + b"\n"
