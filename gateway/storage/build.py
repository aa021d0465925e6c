"""Builds the file storage that the settings name."""

from pathlib import Path
from urllib.parse import urlsplit

from sluicegate.gateway.errors import ConfigurationError
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.storage.base import FileStorage
from sluicegate.gateway.storage.disk import DiskStorage
from sluicegate.gateway.storage.s3 import S3Storage


def build_storage(settings: Settings) -> FileStorage:
    """Return the file storage that the setting `files` names.

    Raises:
        ConfigurationError: the setting is invalid, or a library is missing.
    """
    url = settings.files
    if not url:
        return DiskStorage(settings.data_dir.absolute() / "files")
    if "://" not in url:
        return DiskStorage(Path(url).absolute())
    parts = urlsplit(url)
    if parts.scheme == "s3" and parts.netloc:
        return S3Storage(parts.netloc, parts.path)
    raise ConfigurationError("`SLUICEGATE_FILES` must be a folder, or `s3://bucket/prefix`")


def file_object(file: str) -> str:
    """Return the name of the object that holds the content of a file."""
    return f"files/{file}"
