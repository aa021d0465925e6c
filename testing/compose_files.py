"""Merges compose.yaml with files of `deploy/compose`, by the rules of Docker Compose."""

from pathlib import Path
from typing import Any, Final  # a compose file has values of every type

import yaml

ROOT: Final = Path(__file__).resolve().parents[1]
HA: Final = ("ha",)
OBSERVED: Final = ("ha", "observability", "ha-observability")
_REPLACED: Final = ("command", "entrypoint", "test")
"""Lists that a later file replaces. All other lists are concatenated."""


class _Override(list[Any]):
    """A list tagged `!override`, which replaces the lists of earlier files."""


class _Loader(yaml.SafeLoader):
    """Knows the one tag of Docker Compose that this project uses."""


def _overriding(loader: yaml.SafeLoader, node: yaml.SequenceNode) -> _Override:
    return _Override(loader.construct_sequence(node, deep=True))


_Loader.add_constructor("!override", _overriding)


def compose_paths(files: tuple[str, ...], root: Path = ROOT) -> list[Path]:
    """Return the paths of compose.yaml and then of the overrides named `files`, in order."""
    return [root / "compose.yaml", *(root / "deploy/compose" / f"{each}.yaml" for each in files)]


def merged(files: tuple[str, ...] = (), *, root: Path = ROOT) -> dict[str, Any]:
    """Return compose.yaml merged with the overrides named `files`, in order."""
    made: dict[str, Any] = {}
    for path in compose_paths(files, root):
        text = path.read_text()
        made = _merge(made, yaml.load(text, _Loader))  # noqa: S506 - safe, with one more tag
    return made


def _merge(former: Any, latter: Any, name: str = "") -> Any:
    if name == "networks" and isinstance(former, dict) != isinstance(latter, dict):
        former, latter = _as_mapping(former), _as_mapping(latter)
    if isinstance(former, dict) and isinstance(latter, dict):
        added = {key: _merge(former.get(key), value, key) for key, value in latter.items()}
        return former | added
    if isinstance(former, list) and isinstance(latter, list) and name not in _REPLACED:
        if isinstance(latter, _Override):
            return list(latter)
        if name == "volumes":  # keyed by the mount's place in the container
            taken = {_target(each) for each in latter}
            former = [each for each in former if _target(each) not in taken]
        return [*former, *(each for each in latter if each not in former)]
    return list(latter) if isinstance(latter, _Override) else latter


def _as_mapping(found: Any) -> Any:
    return {name: {} for name in found} if isinstance(found, list) else found


def _target(volume: str) -> str:
    return volume.split(":")[1]
