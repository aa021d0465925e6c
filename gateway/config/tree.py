"""Parses YAML text into plain values, and stores the line of each value."""

from collections.abc import Iterator
from typing import Any

import msgspec
import yaml

from sluicegate.gateway.config.sources import DocumentSource
from sluicegate.gateway.errors import ConfigurationError

Path = tuple[str | int, ...]
"""The keys and list indexes that lead from the top of the document to a value."""

MAX_NODES = 200_000
MAX_DEPTH = 100
"""The most levels of nested lists and mappings. A document needs fewer than ten."""
_PLAIN_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}"
    for name in ("null", "bool", "int", "float", "str", "timestamp", "seq", "map")
)
_TOO_DEEP = f"the document is nested more than {MAX_DEPTH} deep"
_MERGE_TAG = "tag:yaml.org,2002:merge"
_TIMESTAMP_TAG = "tag:yaml.org,2002:timestamp"


class SourcePosition(msgspec.Struct, frozen=True):
    """Identifies a line of a source, counted from 1."""

    file: str
    line: int


class Tree(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a parsed document: plain values, and the line of each value in the source."""

    values: dict[str, Any]  # Any: the types are checked later
    places: dict[Path, SourcePosition]

    def error(self, path: Path, detail: str) -> ConfigurationError:
        """Return an error that names the line of the value at `path`.

        If the value has no line, the error names the line of the value that contains it.
        """
        lengths = range(len(path), -1, -1)
        places = (self.places[path[:n]] for n in lengths if path[:n] in self.places)
        place = next(places, None)
        return ConfigurationError(
            detail,
            file=None if place is None else place.file,
            line=None if place is None else place.line,
            field=field_name(path),
        )


def field_name(path: Path) -> str:
    """Return `path` in the notation that operators see, such as `regions[0].pools[1].name`."""
    name = ""
    for part in path:
        if isinstance(part, int):
            name += f"[{part}]"
        else:
            name += f".{part}" if name else part
    return name


def parse(source: DocumentSource) -> Tree:
    """Return the values of `source`. Its top level must be a mapping, or empty.

    Raises:
        ConfigurationError: the text is not valid YAML, or uses YAML features that are not allowed.
    """
    try:
        _check_depth(source)
        node = yaml.compose(source.text, Loader=yaml.CSafeLoader)
    except yaml.YAMLError as error:
        raise _syntax_error(source, error) from error
    if node is None or (isinstance(node, yaml.ScalarNode) and not node.value):
        return Tree(values={}, places={(): SourcePosition(source.name, 1)})
    if not isinstance(node, yaml.MappingNode):
        raise ConfigurationError(
            "the top of the document must be a mapping such as `models:`",
            file=source.name,
            line=_line(node),
        )
    builder = _Builder(source.name)
    values = builder.build(node, ())
    return Tree(values=values, places=builder.places)


def _check_depth(source: DocumentSource) -> None:
    """Refuse a text that is nested too deeply. It would overflow the stack of the YAML library.

    Raises:
        ConfigurationError: the text is nested too deeply.
        yaml.YAMLError: the text is not valid YAML.
    """
    depth = 0
    for event in yaml.parse(source.text, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                mark = event.start_mark
                line = None if mark is None else mark.line + 1
                raise ConfigurationError(_TOO_DEEP, file=source.name, line=line)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


class _Builder:
    """Converts YAML nodes to values.

    Refuses duplicate keys, custom tags, and aliases that would multiply the size.
    """

    def __init__(self, file: str) -> None:
        self.places: dict[Path, SourcePosition] = {}
        self._file = file
        self._scalars = yaml.SafeLoader("")
        self._open: set[int] = set()
        self._nodes = 0

    def build(self, node: yaml.Node, path: Path) -> Any:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise self._error(node, path, "the document is too large once its aliases are expanded")
        if len(path) > MAX_DEPTH:
            raise self._error(node, (), _TOO_DEEP)
        if node.tag not in _PLAIN_TAGS:
            raise self._error(node, path, f"the tag `{node.tag}` is not allowed; use plain values")
        self.places.setdefault(path, SourcePosition(self._file, _line(node)))
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if id(node) in self._open:
            raise self._error(node, path, "the value contains itself through an alias")
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return {
                    key: self.build(value, (*path, key)) for key, value in self._pairs(node, path)
                }
            return [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
        finally:
            self._open.discard(id(node))

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> Any:
        if node.tag == _TIMESTAMP_TAG:
            return node.value  # a date stays text, with or without quotes
        try:
            return self._scalars.construct_object(node)
        except (yaml.YAMLError, ValueError) as error:
            raise self._error(node, path, f"`{node.value}` is not a valid value") from error

    def _pairs(self, node: yaml.MappingNode, path: Path) -> Iterator[tuple[str, yaml.Node]]:
        seen: set[str] = set()
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._error(key_node, path, "a key must be a string")
            if key_node.tag == _MERGE_TAG:
                raise self._error(
                    key_node, path, "merge keys (`<<`) are not supported; write the fields out"
                )
            key = key_node.value  # the text as it is written, so that `no` and `1` are names
            if key in seen:
                raise self._error(key_node, (*path, key), "the field is given twice")
            seen.add(key)
            self.places[(*path, key)] = SourcePosition(self._file, _line(key_node))
            yield key, value_node

    def _error(self, node: yaml.Node, path: Path, detail: str) -> ConfigurationError:
        return ConfigurationError(detail, file=self._file, line=_line(node), field=field_name(path))


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _syntax_error(source: DocumentSource, error: yaml.YAMLError) -> ConfigurationError:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    line = mark.line + 1 if mark is not None else None
    return ConfigurationError(f"not valid YAML: {problem}", file=source.name, line=line)
