"""Chooses defaults of settings that depend on the device.

A CPU is fastest with batches of a few rows. A GPU needs larger batches, and its memory must be
divided among models. `docs/configuration.md` gives the reason for each default.
"""

import re
from pathlib import Path

import msgspec

from sluicegate.backends.settings import BackendSettings
from sluicegate.wire.gpus import GPU_PROVIDERS

_ROWS, _GPU_ROWS = 16, 256
_TOKENS, _GPU_TOKENS = 4096, 32_768
# The arena memory per token of a batch: the fp32 activations of BERT-large at 512 tokens.
_BYTES_PER_TOKEN = 64 * 1024
# The fraction of device memory for libraries, captured graphs and the CUDA context.
_RESERVE = 0.1
_GRAPH_ROWS = 4
# Matches the device graphs that CUDA can capture, because the shapes of all their tensors depend
# only on the shapes of their inputs.
_CAPTURED = re.compile(r"\.cuda-(fused|heads|ranges)(-\w+)?\.onnx$")


class BatchBounds(msgspec.Struct, frozen=True, kw_only=True):
    """Limits a batch: its rows, and its tokens with padding."""

    rows: int = 16
    tokens: int = 4096


def with_device_defaults(
    settings: BackendSettings, *, gpu_memory_bytes: int, encoders: int, processes: int
) -> BackendSettings:
    """Return the settings with a default for the setting `gpu_memory_bytes`.

    The setting is the size of one model's memory arena. The argument `gpu_memory_bytes` is the
    memory of the whole device, or 0 if the driver does not report it. `processes` processes with
    `encoders` encoders each share the device.
    """
    if settings.provider not in GPU_PROVIDERS or settings.gpu_memory_bytes:
        return settings
    # Count one more encoder, because a new revision is loaded while the old one serves.
    shares = processes * (encoders + 1)
    arena = int(gpu_memory_bytes * (1 - _RESERVE)) // shares
    return msgspec.structs.replace(settings, gpu_memory_bytes=arena or None)


def batch_rows(settings: BackendSettings, tuned: int | None = None) -> int:
    """Return the maximum rows of a batch: the setting, else the `tuned` value, else the default."""
    if settings.max_batch_rows:
        return settings.max_batch_rows
    return tuned or (_GPU_ROWS if settings.provider in GPU_PROVIDERS else _ROWS)


def batch_tokens(settings: BackendSettings) -> int:
    """Return the maximum tokens of a batch: the setting, or a default that the arena can hold."""
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
    """Return the limits of a batch of a model without tuned values."""
    return BatchBounds(rows=batch_rows(settings), tokens=batch_tokens(settings))


def graph_rows(settings: BackendSettings, graph: Path) -> int:
    """Return the maximum rows of batches that run as captured CUDA graphs; 0 disables capture.

    By default, only the provider `cuda` captures batches, and only of graphs that CUDA can capture.
    """
    if settings.gpu_graph_rows is not None:
        return settings.gpu_graph_rows
    is_captured = settings.provider == "cuda" and _CAPTURED.search(graph.name)
    return _GRAPH_ROWS if is_captured else 0
