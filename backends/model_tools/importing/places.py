"""Finds the folder of a model to import: on this machine, or on another one.

    PATH                           a folder
    hf://owner/name[@revision]     a model on the Hugging Face hub; `owner/name` is short for it
    oci://registry/name:tag        an artifact with the files of a checkpoint, as `oras push` writes
    mlflow://name/version          a version of a registered model; `name@alias` is one, too

Files of other machines are fetched into the hub's cache, or into a temporary folder.
"""

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from sluicegate.backends.errors import StartProblem
from sluicegate.backends.model_tools.importing.hub import fetch_from_hub

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)", re.DOTALL)
_SCHEMES = ("hf", "oci", "mlflow")


class FoundFolder(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a local folder, a name for its model, and the names of all files, fetched or not.

    `files` is empty if all files are in the folder.
    """

    path: Path
    name: str
    files: Sequence[str] = ()


@contextmanager
def open_place(source: str, *, revision: str | None = None) -> Iterator[FoundFolder]:
    """Yield the folder of a source; a temporary folder is removed at the end.

    Raises:
        StartProblem: the folder or model does not exist, or cannot be fetched.
    """
    found = _SCHEME.fullmatch(source)
    if found is None:
        yield _find_folder(source, revision)
        return
    scheme, rest = found.groups()
    if scheme not in _SCHEMES:
        raise StartProblem(
            f"`{scheme}://` is not a place of checkpoints; import a folder, or one of "
            f"{', '.join(f'`{known}://`' for known in _SCHEMES)}. `sluicegate models sync` copies "
            "a whole model repository"
        )
    if revision is not None and (scheme != "hf" or "@" in rest):
        raise StartProblem(
            f"`--revision` does not go with `{source}`; write the revision once, as in "
            "`hf://owner/name@revision`"
        )
    if scheme == "hf":
        name, _, named = rest.partition("@")
        if not _NAME.fullmatch(name):
            raise StartProblem(
                f"`{source}` is not a model on the hub; write `hf://owner/name@revision`"
            )
        yield _on_hub(name, named or revision)
        return
    with ExitStack() as stack:
        try:
            temporary = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="sluicegate-import-")
            )
            target = Path(temporary) / "checkpoint"
            target.mkdir()
            fetched = _fetch(scheme, source, target)
        except OSError as error:  # for example, the disk is full
            raise StartProblem(f"`{source}` cannot be fetched: {error.strerror}") from None
        try:
            yield fetched
        except StartProblem as error:  # the temporary folder is gone when a person reads this
            raise StartProblem(str(error).replace(str(target), source)) from None


def _fetch(scheme: str, source: str, target: Path) -> FoundFolder:
    # Imported late, because they need a library.
    if scheme == "oci":
        from sluicegate.backends.model_tools.importing.artifact import (  # noqa: PLC0415
            fetch_artifact,
        )

        return FoundFolder(path=target, **fetch_artifact(source, target))
    from sluicegate.backends.model_tools.importing.mlflow import (  # noqa: PLC0415
        fetch_registered,
    )

    return FoundFolder(path=target, **fetch_registered(source, target))


def _find_folder(source: str, revision: str | None) -> FoundFolder:
    folder = Path(source)
    try:
        is_folder, is_file = folder.is_dir(), folder.is_file()
    except OSError as error:  # for example, a folder above it may not be entered
        raise StartProblem(f"`{source}` cannot be read: {error.strerror}") from None
    if is_folder:
        if revision is not None:
            raise StartProblem(f"`--revision` is only for the hub, but `{source}` is a folder")
        return FoundFolder(path=folder, name=folder.resolve().name.lower())
    if is_file:
        raise StartProblem(f"`{source}` is a file; name its folder")
    if not _NAME.fullmatch(source):
        raise StartProblem(
            f"there is no folder `{source}`; a model on the hub is `hf://owner/name`"
        )
    return _on_hub(source, revision)


def _on_hub(name: str, revision: str | None) -> FoundFolder:
    path, files = fetch_from_hub(name, revision)
    return FoundFolder(path=path, name=name.partition("/")[2].lower(), files=files)
