"""Stores objects in an S3 bucket."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from backends.model_tools.syncing.layout import ObjectMissing
from backends.model_tools.syncing.manifest import SyncProblem
from wire.installing import install_command

# The library yields only whole chunks. With small chunks, a slow download is noticed sooner.
_CHUNK = 64 << 10
_MISSING = frozenset({"NoSuchKey", "404", "NotFound"})


class _BeyondTheEnd(Exception):
    """A read begins after the last byte of an object."""


class S3Objects:
    """Implements `Objects` with the objects below `prefix` in `bucket`.

    Credentials, region and endpoint come from the environment, as for other AWS programs.

    Raises:
        SyncProblem: boto3 is not installed.
    """

    def __init__(self, bucket: str, prefix: str) -> None:
        try:
            import boto3  # noqa: PLC0415 - an extra
            from botocore.config import Config  # noqa: PLC0415
        except ImportError as error:
            raise SyncProblem(
                f"models in S3 need the package `{error.name}`; run {install_command('models')}"
            ) from None
        own = Config(connect_timeout=5, read_timeout=30, retries={"max_attempts": 4})
        self._bucket = bucket
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self.where = f"s3://{bucket}/{self._prefix}".rstrip("/")
        with self._translated(""):
            self._client: Any = boto3.client("s3", config=own)

    def read(self, name: str, start: int = 0) -> Iterator[bytes]:
        """Yield an object; see `Objects`."""
        with contextlib.suppress(_BeyondTheEnd), self._translated(name):
            # An empty object has no byte range, so a read from byte 0 asks for no range.
            own = {"Range": f"bytes={start}-"} if start else {}
            found = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name, **own)
            yield from found["Body"].iter_chunks(_CHUNK)

    def size(self, name: str) -> int | None:
        """Return the size of an object; see `Objects`."""
        try:
            with self._translated(name):
                found = self._client.head_object(Bucket=self._bucket, Key=self._prefix + name)
        except ObjectMissing:
            return None
        return int(found["ContentLength"])

    def write(self, name: str, content: bytes | Path) -> None:
        """Store an object; see `Objects`."""
        with self._translated(name):
            if isinstance(content, Path):
                self._client.upload_file(str(content), self._bucket, self._prefix + name)
            else:
                self._client.put_object(Bucket=self._bucket, Key=self._prefix + name, Body=content)

    def close(self) -> None:
        """Close the connections; see `Objects`."""
        self._client.close()

    @contextlib.contextmanager
    def _translated(self, name: str) -> Iterator[None]:
        from boto3.exceptions import Boto3Error  # noqa: PLC0415 - as above
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

        where = f"{self.where}/{name}".rstrip("/")
        try:
            yield
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            if code in _MISSING:
                raise ObjectMissing(name) from None
            if code == "InvalidRange":
                raise _BeyondTheEnd from None
            raise SyncProblem(f"{where}: the storage refused the request: {code}") from None
        except (BotoCoreError, Boto3Error, OSError) as error:
            reason = type(error).__name__
            raise SyncProblem(f"{where}: the storage cannot be reached: {reason}") from None
