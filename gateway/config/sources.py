"""Reads the YAML texts of a configuration document from a folder."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from sluicegate.gateway.errors import ConfigurationError

MAX_SOURCE_BYTES = 4 * 1024 * 1024


class DocumentSource(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a YAML text. Errors refer to it by `name`, which is the path of a file."""

    name: str
    text: str


Sources = Sequence[DocumentSource]
"""The texts of one document, ordered by name."""


def read_folder(folder: Path) -> tuple[DocumentSource, ...]:
    """Return every `*.yaml` file of `folder`, ordered by name.

    Raises:
        ConfigurationError: the folder does not exist or has no such file, or a file is unreadable.
    """
    if not folder.is_dir():
        raise ConfigurationError(
            f"`{folder}` is not a folder; choose a folder with `*.yaml` files", file=str(folder)
        )
    paths = sorted(path for path in folder.glob("*.yaml") if path.is_file())
    if not paths:
        raise ConfigurationError(
            f"`{folder}` has no `*.yaml` file; add one, or choose another folder", file=str(folder)
        )
    return tuple(read_source(path) for path in paths)


def read_source(path: Path) -> DocumentSource:
    """Return the text of one file.

    Raises:
        ConfigurationError: the file is unreadable, not UTF-8 or too large.
    """
    name = str(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"the file cannot be read: {error.strerror or error}", file=name
        ) from error
    if len(content) > MAX_SOURCE_BYTES:
        raise ConfigurationError(f"the file is larger than {MAX_SOURCE_BYTES} bytes", file=name)
    try:
        return DocumentSource(name=name, text=content.decode())
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigurationError("the file is not UTF-8", file=name, line=line) from error
