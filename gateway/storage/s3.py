"""Stores files in a bucket of Amazon S3 or of a compatible server."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from sluicegate.gateway.errors import ConfigurationError, DependencyUnavailable, NotFound
from sluicegate.gateway.storage.base import Write
from sluicegate.gateway.storage.free_space import check_free_space
from sluicegate.wire.installing import install_command

_CHUNK: Final = 256 * 1024
_IN_MEMORY: Final = 1 << 20
_MISSING: Final = frozenset({"NoSuchKey", "404", "NotFound"})


class S3Storage:
    """Implements `FileStorage` in `bucket`, with names below `prefix`.

    The AWS library reads credentials, region and endpoint from the environment.

    Raises:
        ConfigurationError: the library is not installed.
    """

    def __init__(self, bucket: str, prefix: str = "") -> None:
        try:
            import boto3  # noqa: PLC0415 - an extra
            from botocore.config import Config  # noqa: PLC0415
        except ImportError as error:
            raise ConfigurationError(
                f"a file storage in S3 needs the library boto3: run {install_command('gateway,s3')}"
            ) from error
        own = Config(connect_timeout=5, read_timeout=30, retries={"max_attempts": 4})
        self._client: Any = boto3.client("s3", config=own)
        self._bucket = bucket
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[Write]:
        """Write an object; see `FileStorage`."""
        with tempfile.SpooledTemporaryFile(_IN_MEMORY) as file, _translated(name):

            def write(content: bytes) -> None:
                check_free_space(Path(tempfile.gettempdir()))
                file.write(content)

            yield write
            file.seek(0)
            self._client.upload_fileobj(file, self._bucket, self._prefix + name)

    def read(self, name: str, start: int = 0) -> Iterator[bytes]:
        """Yield the content; see `FileStorage`."""
        with _translated(name):
            # S3 reports an error if a range is requested from an empty object.
            own = {"Range": f"bytes={start}-"} if start else {}
            found = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name, **own)
            yield from found["Body"].iter_chunks(_CHUNK)

    def delete(self, name: str) -> None:
        """Delete an object; see `FileStorage`."""
        with _translated(name):
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + name)

    def delete_below(self, folder: str) -> None:
        """Delete objects; see `FileStorage`."""
        with _translated(folder):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=f"{self._prefix}{folder}/"
            )
            for page in pages:
                if found := [{"Key": each["Key"]} for each in page.get("Contents", ())]:
                    self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": found})


@contextlib.contextmanager
def _translated(name: str) -> Iterator[None]:
    from boto3.exceptions import Boto3Error  # noqa: PLC0415 - an extra
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

    try:
        yield
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        if code in _MISSING:
            raise NotFound(f"The content of `{name}` does not exist any more.") from error
        raise DependencyUnavailable(
            f"the file storage refuses the request: {code}", retry_after=5.0
        ) from error
    except (BotoCoreError, Boto3Error, OSError) as error:
        raise DependencyUnavailable(
            f"the file storage cannot be reached: {type(error).__name__}", retry_after=5.0
        ) from error
