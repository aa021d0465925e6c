"""Chooses the storage of files that the settings name."""

from pathlib import Path

from gateway.errors import ConfigurationError
from gateway.settings import Settings
from gateway.storage.base import FileStorage
from gateway.storage.disk import DiskStorage


def build_storage(settings: Settings) -> FileStorage:
    """Return the storage at `files_url`.

    Raises:
        ConfigurationError: there is none of that kind.
    """
    url = settings.files_url
    if not url:
        return DiskStorage(settings.data_dir.absolute() / "files")
    if "://" not in url:
        return DiskStorage(Path(url).absolute())
    raise ConfigurationError(
        "`SLUICEGATE_FILES_URL` must be a folder, which all gateways of a ledger share"
    )


def file_object(file: str) -> str:
    """Return the name of the object with the content of a file."""
    return f"files/{file}"
