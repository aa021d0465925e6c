"""Reads the models of a repository directory: `<models>/<name>/<revision>/model.yaml`."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from sluicegate.backends.errors import ModelProblem, StartProblem
from sluicegate.backends.open_inference.address import RemoteModelServer, Servers
from sluicegate.backends.open_inference.client import fingerprint
from sluicegate.backends.repository.manifest import (
    GraphManifest,
    SplitManifest,
    as_saved,
    builds_on,
    is_as_saved,
)
from sluicegate.backends.repository.model import Model, read_model
from sluicegate.backends.repository.names import NAME
from sluicegate.backends.repository.serving import FILE, read_serving
from sluicegate.backends.repository.triton import FILE as TRITON, read_triton
from sluicegate.wire.plans import Serving, Shadow, is_assigned

_MOST_NAMED = 10


class Revisions(msgspec.Struct, frozen=True, kw_only=True):
    """Holds all revisions of a model.

    `shares` maps the revisions that answer calls to their traffic weights. It is empty if the file
    that selects these revisions cannot be read.
    """

    folder: Path
    numbers: list[str]
    shares: Mapping[str, int] = {}


class Catalogue(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the models of a repository in dependency order, and the repository's problems.

    A model comes after the models that it builds on. `blocked` has the models that cannot be served
    because of another model's problem. `waiting` has the models whose upstream server is not ready.
    `upstreams` has a digest of the metadata of each model that another server runs. The digest is
    empty while the server is not ready.
    """

    models: dict[str, Model]
    problems: dict[str, str]
    revisions: dict[str, Revisions] = {}
    blocked: set[str] = set()
    waiting: set[str] = set()
    upstreams: dict[RemoteModelServer, str] = {}


def read_catalogue(
    root: Path,
    servers: Servers | None = None,
    *,
    more: Path | None = None,
    pinned: Mapping[str, Mapping[str, int]] | None = None,
    plans: Mapping[str, Serving] | None = None,
    assigned: Collection[str] = ("*",),
) -> Catalogue:
    """Read the models of a repository.

    Only models that match a pattern in `assigned` are read, and the models that they build on. A
    broken model blocks only the models that build on it. If `root` and `more` have a model of the
    same name, the model in `root` is read.

    `pinned` maps a model to its revisions and their traffic weights. It takes precedence over
    `plans`. Both take precedence over the files in the model's folder.

    Raises:
        StartProblem: `root` or `more` is not a directory.
    """
    reader = _CatalogueReader(pinned or {}, plans or {})
    reader.read_assigned({each.name: each for each in _model_folders(root, more)}, assigned)
    reader.find_upstreams(servers or Servers())
    for name in reader.found:
        reader.resolve(name, ())
    return reader.catalogue


class _CatalogueReader:
    """Reads models into a catalogue; `found` holds the models whose own files are valid."""

    def __init__(
        self, pinned: Mapping[str, Mapping[str, int]], plans: Mapping[str, Serving]
    ) -> None:
        self.catalogue = Catalogue(models={}, problems={})
        self.found: dict[str, Model] = {}
        self._pinned = pinned
        self._plans = plans

    def read_assigned(self, folders: Mapping[str, Path], assigned: Collection[str]) -> None:
        """Read the models that match a pattern, and the models on which they build."""
        reading = [name for name in folders if is_assigned(name, assigned)]
        for name in reading:
            self.read(folders[name])
            own = [model for each, model in self.found.items() if base_name(each) == name]
            below = {base_name(each) for model in own for each in builds_on(model.manifest)}
            reading += sorted(below.difference(reading).intersection(folders))

    def read(self, folder: Path) -> None:
        """Read the model of a folder, and its revisions that have own names, such as `tiny@2`."""
        try:
            self._read(folder, _numbers(folder))
        except ModelProblem as error:
            self.catalogue.problems[folder.name] = str(error)
        except Exception as error:  # noqa: BLE001 - one broken model must not stop the others
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            self.catalogue.problems[folder.name] = f"{folder}: cannot be read: {reason}"

    def _read(self, folder: Path, numbers: list[str]) -> None:
        name, revisions = folder.name, self.catalogue.revisions
        revisions[name] = Revisions(folder=folder, numbers=numbers)
        triton = read_triton(folder)
        if name in self._pinned:
            serving = Serving(revisions=dict(self._pinned[name]))
        elif name in self._plans:
            serving = self._plans[name]
        else:
            serving = read_serving(folder) or (triton.serving(numbers) if triton else Serving())
        shares = serving.revisions or {max(numbers, key=int): 1}
        named_apart = [*serving.preload, *([serving.shadow.revision] if serving.shadow else [])]
        revisions[name] = Revisions(folder=folder, numbers=numbers, shares=shares)
        where = _source(folder, is_planned=name in self._plans)
        _check_revisions(where, numbers, shares, named_apart, serving.shadow)
        found: dict[str, Model] = {}
        for number in dict.fromkeys([*(shares if len(shares) > 1 else ()), *named_apart]):
            revision = f"{name}@{number}"
            try:
                found[revision] = read_model(revision, folder / number, triton)
            except ModelProblem as error:
                self.catalogue.problems[revision] = str(error)
        if len(shares) == 1:
            answering = read_model(name, folder / next(iter(shares)), triton)
        else:
            answering = _split(folder, shares)
        in_force = msgspec.structs.replace(serving, revisions=dict(shares))
        found[name] = msgspec.structs.replace(answering, serving=in_force)
        self.found |= found

    def find_upstreams(self, servers: Servers) -> None:
        """Find the models that other servers run, and add them to `upstreams`.

        If a model has no local graph, its digest includes a digest of the metadata on the server.
        So the model's digest changes when the server gets a new version of the model.
        """
        prints, problems = self.catalogue.upstreams, self.catalogue.problems
        for name, own in self.found.items():
            manifest = own.manifest
            if not isinstance(manifest, GraphManifest):
                continue
            name_there, version = own.folder.parent.name, own.folder.name
            upstream = servers.find(manifest.upstream, name=name_there, version=version)
            if upstream is None:
                continue
            if not upstream.url:
                problems[name] = (
                    f"{own.folder}: no server is named; set `url` under `upstream` in "
                    "`model.yaml`, or `SLUICEGATE_BACKEND_UPSTREAM_URL`"
                )
                continue
            if upstream not in prints:
                prints[upstream] = fingerprint(upstream, servers.token_for(upstream))
            if not prints[upstream]:
                problems[name] = f"{own.folder}: {upstream} is not ready"
                self.catalogue.waiting.add(name)
                continue
            digest = own.digest + ("" if manifest.graph else prints[upstream])
            self.found[name] = msgspec.structs.replace(own, digest=digest, upstream=upstream)

    def resolve(self, name: str, path: tuple[str, ...]) -> Model | None:
        """Put model `name` into the catalogue, after the models on which it builds.

        Return `None` if the model cannot be served.
        """
        models, problems = self.catalogue.models, self.catalogue.problems
        if name in models or name in problems or name not in self.found:
            return models.get(name)
        if name in path:
            problems[name] = f"it builds on itself: {' -> '.join((*path, name))}"
            return None
        own = self.found[name]
        digests = [own.digest]
        for needed in builds_on(own.manifest):
            model = self.resolve(needed, (*path, name))
            if model is None:
                self._note_missing(name, needed)
                return None
            digests.append(model.digest)
        digest = hashlib.blake2b("".join(digests).encode()).hexdigest()
        models[name] = msgspec.structs.replace(own, digest=digest)
        return models[name]

    def _note_missing(self, name: str, needed: str) -> None:
        catalogue = self.catalogue
        is_broken = needed in catalogue.problems
        state = "is broken" if is_broken else "is not in the repository"
        catalogue.problems.setdefault(name, f"it builds on `{needed}`, which {state}")
        if is_broken and base_name(needed) != name:
            catalogue.blocked.add(name)
        if needed in catalogue.waiting:
            catalogue.waiting.add(name)


def _model_folders(root: Path, more: Path | None) -> list[Path]:
    found: dict[str, Path] = {}
    for directory in (root, *([more] if more is not None else [])):
        if not directory.is_dir():
            raise StartProblem(
                f"the models directory `{directory}` does not exist; build or copy the models "
                "there, or name another directory"
            )
        for folder in sorted(directory.iterdir()):
            if folder.is_dir() and not folder.name.startswith("."):
                found.setdefault(folder.name, folder)
    return [found[name] for name in sorted(found)]


def _numbers(folder: Path) -> list[str]:
    if not NAME.fullmatch(folder.name):
        raise ModelProblem(
            f"{folder}: the folder's name is not a valid model name; use at most 64 lower-case "
            "letters, digits, `.`, `_` and `-`, beginning with a letter or digit"
        )
    numbers = [p.name for p in folder.iterdir() if p.is_dir() and p.name.isdecimal()]
    if not numbers and is_as_saved(folder):
        raise ModelProblem(as_saved(folder))
    if not numbers:
        raise ModelProblem(f"{folder}: it has no revision folder (`1`, `2`, ...)")
    return numbers


def _source(folder: Path, *, is_planned: bool) -> str:
    """Return the name of the file or plan that selects a model's revisions, for messages."""
    if is_planned:
        return f"the operators' plan of `{folder.name}`"
    return str(folder / (FILE if (folder / FILE).is_file() else TRITON))


def _check_revisions(
    where: str,
    numbers: Sequence[str],
    shares: Mapping[str, int],
    named_apart: Sequence[str],
    shadow: Shadow | None,
) -> None:
    for number in (*shares, *named_apart):
        if number not in numbers:
            newest = sorted(numbers, key=int)[-_MOST_NAMED:]
            raise ModelProblem(
                f"{where}: there is no revision `{number}`; choose from "
                + ", ".join(f"`{each}`" for each in newest)
            )
    if shadow is not None and shadow.revision in shares:
        raise ModelProblem(
            f"{where}: the `shadow` is revision `{shadow.revision}`, which serves answers too; "
            "take it out of `revisions`, or choose another shadow"
        )


def _split(folder: Path, shares: Mapping[str, int]) -> Model:
    # The order is fixed, because it decides which revision an item gets.
    weights = {f"{folder.name}@{number}": shares[number] for number in sorted(shares, key=int)}
    plan = hashlib.blake2b(repr(sorted(weights.items())).encode()).hexdigest()
    manifest = SplitManifest(weights=weights)
    return Model(name=folder.name, folder=folder, manifest=manifest, digest=plan)


def base_name(name: str) -> str:
    """Return a model's name without its revision: `base_name("tiny@2")` is `tiny`."""
    return name.partition("@")[0]
