"""Chooses the settings that depend on the device, where nobody has set them.

A CPU wants batches of a few rows. A GPU is idle with these, and has a memory of its own to divide.
`docs/configuration.md` has a row with the reason for each of these defaults.
"""

import re
from pathlib import Path

import msgspec

from backends.gpus import GPU_PROVIDERS
from backends.settings import BackendSettings

_ROWS, _GPU_ROWS = 16, 256
_TOKENS, _GPU_TOKENS = 4096, 32_768
# What a token of a batch takes of the arena at most: activations in fp32 of a model of BERT-large's
# size at 512 tokens. Each run in flight has a batch.
_BYTES_PER_TOKEN = 64 * 1024
# Libraries, captured graphs and the CUDA context are outside every arena.
_RESERVE = 0.1
_GRAPH_ROWS = 4
# The forms whose shapes follow from those of their inputs alone: no other can be captured.
_CAPTURED = re.compile(r"\.cuda-(fused|heads|ranges)(-\w+)?\.onnx$")


class BatchBounds(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds a batch: its rows, and its tokens with padding."""

    rows: int = 16
    tokens: int = 4096


def with_device_defaults(
    settings: BackendSettings, *, gpu_memory_bytes: int, encoders: int, processes: int
) -> BackendSettings:
    """Return the settings with what follows from the memory of the device, where that is not set.

    `gpu_memory_bytes` is 0 where the driver does not tell. `processes` share the device, with
    `encoders` in each.
    """
    if settings.provider not in GPU_PROVIDERS or settings.gpu_memory_bytes:
        return settings
    # One more: a new revision is loaded while the one before it serves.
    shares = processes * (encoders + 1)
    arena = int(gpu_memory_bytes * (1 - _RESERVE)) // shares
    return msgspec.structs.replace(settings, gpu_memory_bytes=arena)


def batch_rows(settings: BackendSettings, tuned: int | None = None) -> int:
    """Return the rows of a batch: the setting, or else the `tuned` value."""
    if settings.max_batch_rows:
        return settings.max_batch_rows
    return tuned or (_GPU_ROWS if settings.provider in GPU_PROVIDERS else _ROWS)


def batch_tokens(settings: BackendSettings) -> int:
    """Return the tokens of a batch: on a GPU as many as a run's share of the arena holds."""
    if settings.max_batch_tokens:
        return settings.max_batch_tokens
    if settings.provider not in GPU_PROVIDERS:
        return _TOKENS
    if not settings.gpu_memory_bytes:
        return _GPU_TOKENS
    fitting = settings.gpu_memory_bytes // (_BYTES_PER_TOKEN * settings.gpu_runs)
    power = 1 << max(0, fitting.bit_length() - 1)
    return max(_TOKENS, min(power, _GPU_TOKENS))


def batch_bounds(settings: BackendSettings) -> BatchBounds:
    """Return what a batch holds at most, of a model that nobody has tuned."""
    return BatchBounds(rows=batch_rows(settings), tokens=batch_tokens(settings))


def graph_rows(settings: BackendSettings, graph: Path) -> int:
    """Return the rows up to which batches of a graph are captured; 0 is none.

    Without a setting, only forms are captured that can be, and by CUDA alone.
    """
    if settings.gpu_graph_rows is not None:
        return settings.gpu_graph_rows
    is_captured = settings.provider == "cuda" and _CAPTURED.search(graph.name)
    return _GRAPH_ROWS if is_captured else 0
