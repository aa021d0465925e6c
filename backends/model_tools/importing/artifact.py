"""Fetches a checkpoint from a registry: an artifact with one blob for each file."""

from contextlib import closing
from pathlib import Path
from typing import TypedDict

from sluicegate.backends.errors import StartProblem
from sluicegate.backends.model_tools.importing.wanted_files import wanted_among
from sluicegate.backends.model_tools.syncing.fetching import fetch_blob, fetch_manifest
from sluicegate.backends.model_tools.syncing.manifest import revision_of
from sluicegate.backends.model_tools.syncing.stores import open_store, read_source


class Fetched(TypedDict):
    """Holds a name for a model that was fetched, and the names of all of its files."""

    name: str
    files: list[str]


def fetch_artifact(source: str, target: Path) -> Fetched:
    """Fetch the files of an artifact that an import reads into the folder `target`.

    Each file is checked against its digest. The bounds of `models sync` apply.

    Raises:
        StartProblem: the artifact has no checkpoint, or a file is missing, altered or too slow.
    """
    place = read_source(source)
    with closing(open_store(place)) as store:
        _, manifest = fetch_manifest(store, place.reference)
        layers = {layer.title: layer for layer in manifest.layers if not layer.is_archive}
        if not layers or any(revision_of(path) for path in layers):
            raise StartProblem(
                f"`{source}` has a model repository or an image, not the files of a checkpoint; "
                f"copy it with `sluicegate models sync {source} DIR`"
            )
        blobs = target.parent / "blobs"
        blobs.mkdir(exist_ok=True)
        for path in wanted_among(layers):
            fetched = fetch_blob(store, layers[path], blobs, f"{source}: `{path}`")
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            fetched.rename(target / path)
    return Fetched(name=place.path.rpartition("/")[2].lower(), files=sorted(layers))
