"""Moves each weight of a packed graph to a file of its own, which other models can share.

Models share weights if they were trained from one base, such as models with a merged adapter. If
several sessions map a file, the kernel keeps one copy in memory, also if the file has several
names.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np

from sluicegate.backends.wire_format import Span, write_field

# Field numbers of `onnx.proto`.
_MODEL_GRAPH, _GRAPH_INITIALIZER, _TENSOR_EXTERNAL, _ENTRY_KEY, _ENTRY_VALUE = 7, 5, 13, 1, 2
_LOCATION, _OFFSET, _LENGTH = "location", "offset", "length"
# A key of the kernel, and the offset, length and checksum of each packed buffer.
_PACKED = re.compile(r"[^|]+(\|\d+;\d+;\d+)+")
_BUFFER = re.compile(r"\|(\d+);(\d+);")
# The alignment in bytes that the widest vector loads need. ONNX Runtime 1.31 writes weights without
# alignment and maps the file, and its kernels crash the process when they load a misaligned weight.
_ALIGNMENT = 64
_new_digest = partial(hashlib.blake2b, digest_size=16)


def share_weights(graph: Path, weights: Path, others: Iterable[Path]) -> None:
    """Move the file `weights` of a packed `graph` to files that are named by their content.

    A file with the same content among the files `others` of other graphs gets a second name (a hard
    link) instead of a copy, if the file system has hard links.

    Raises:
        OSError: a file cannot be written, a subgraph (such as a branch of `If`) has weights, or
            this version of ONNX Runtime describes weights in another way.
    """
    known = {path.name: path for path in others}
    source = np.memmap(weights, dtype=np.uint8, mode="r").data

    def move(tensor: Span) -> bytes:
        stored = dict(_entry(each) for number, each in tensor if number == _TENSOR_EXTERNAL)
        if not stored:
            return tensor.content
        rest = [part.whole for number, part in tensor if number != _TENSOR_EXTERNAL]
        moved = _move(stored, source, graph.parent, known)
        return b"".join([*rest, *(_write_entry(*each) for each in moved.items())])

    content = graph.read_bytes()
    moved = _replace(
        Span(content, 0, len(content)),
        _MODEL_GRAPH,
        lambda part: _replace(part, _GRAPH_INITIALIZER, move),
    )
    if weights.name.encode() in moved:
        raise OSError(f"{graph}: a subgraph has weights")
    graph.write_bytes(moved)
    weights.unlink()


def _move(
    stored: Mapping[str, str], source: memoryview, folder: Path, known: Mapping[str, Path]
) -> dict[str, str]:
    """Write a tensor and its packed buffers to a file; return where they are now."""
    own = int(stored.get(_OFFSET, 0)), int(stored[_LENGTH])
    packed = {
        key: value for key, value in stored.items() if key not in (_LOCATION, _OFFSET, _LENGTH)
    }
    if not all(map(_PACKED.fullmatch, packed.values())):
        raise OSError(f"the packed weights have unknown fields: {', '.join(packed)}")
    buffers = [
        tuple(map(int, found)) for each in packed.values() for found in _BUFFER.findall(each)
    ]
    parts: list[bytes | memoryview] = []
    places, size = {}, 0
    for offset, length in (own, *buffers):
        padding = bytes(-size % _ALIGNMENT)
        places[offset] = size + len(padding)
        parts += [padding, source[offset : offset + length]]
        size += len(padding) + length
    moved = {
        key: _BUFFER.sub(lambda found: f"|{places[int(found[1])]};{found[2]};", value)
        for key, value in packed.items()
    }
    location = _store(parts, folder, known)
    return {_LOCATION: location, _OFFSET: str(places[own[0]]), _LENGTH: str(own[1]), **moved}


def _store(parts: Sequence[bytes | memoryview], folder: Path, known: Mapping[str, Path]) -> str:
    """Write or link a file in the folder; return its name."""
    name = _digest(parts)
    path, other = folder / name, known.get(name)
    if path.exists():
        return name
    # Another process may still be writing the other file. A second name of a symbolic link may lead
    # nowhere.
    if other is not None and not other.is_symlink() and _is_equal(other, name):
        with suppress(OSError):
            path.hardlink_to(other)
            return name
    with path.open("wb") as file:
        file.writelines(parts)
    return name


def _is_equal(path: Path, digest: str) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, _new_digest).hexdigest() == digest
    except OSError:
        return False


def _digest(parts: Iterable[bytes | memoryview]) -> str:
    digest = _new_digest()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _replace(message: Span, wanted: int, change: Callable[[Span], bytes]) -> bytes:
    """Return a message with other contents of the fields whose number is `wanted`."""
    return b"".join(
        write_field(number, change(part)) if number == wanted else part.whole
        for number, part in message
    )


def _entry(message: Span) -> tuple[str, str]:
    texts = {number: part.text() for number, part in message}
    return texts[_ENTRY_KEY], texts[_ENTRY_VALUE]


def _write_entry(key: str, value: str) -> bytes:
    texts = write_field(_ENTRY_KEY, key.encode()) + write_field(_ENTRY_VALUE, value.encode())
    return write_field(_TENSOR_EXTERNAL, texts)
