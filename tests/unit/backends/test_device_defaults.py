"""What a backend does on each kind of device without any setting."""

from pathlib import Path

import pytest

from sluicegate.backends.device_defaults import (
    batch_rows,
    batch_tokens,
    graph_rows,
    with_device_defaults,
)
from sluicegate.backends.settings import BackendSettings, Provider

GIB = 1024**3


def settings(provider: Provider = "cuda", **given: int) -> BackendSettings:
    return BackendSettings(provider=provider, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("provider", "rows", "tokens"),
    [
        ("cpu", 16, 4096),
        ("openvino", 16, 4096),
        ("open_inference", 16, 4096),
        ("paced", 16, 4096),
        ("cuda", 256, 32_768),
        ("tensorrt", 256, 32_768),
    ],
)
def test_batches_are_as_large_as_the_device_wants(
    provider: Provider, rows: int, tokens: int
) -> None:
    assert batch_rows(settings(provider)) == rows
    assert batch_tokens(settings(provider)) == tokens


@pytest.mark.parametrize("provider", ["cpu", "cuda"])
def test_a_setting_comes_before_a_tuning_and_that_before_the_device(provider: Provider) -> None:
    assert batch_rows(settings(provider, max_batch_rows=7), tuned=99) == 7
    assert batch_rows(settings(provider), tuned=99) == 99
    assert batch_tokens(settings(provider, max_batch_tokens=100)) == 100


@pytest.mark.parametrize(
    ("card", "encoders", "processes", "arena", "tokens"),
    [
        (80 * GIB, 1, 1, 36 * GIB, 32_768),
        (80 * GIB, 3, 3, 6 * GIB, 32_768),
        (24 * GIB, 3, 2, 27 * GIB // 10, 16_384),
        (8 * GIB, 1, 1, 36 * GIB // 10, 16_384),
        (8 * GIB, 7, 3, 3 * GIB // 10, 4096),
        # A card that serves nothing until a gateway assigns it something.
        (80 * GIB, 0, 1, 72 * GIB, 32_768),
        # The driver does not tell.
        (0, 2, 1, 0, 32_768),
    ],
)
def test_encoders_and_processes_share_the_memory_and_it_bounds_a_batch(
    card: int, encoders: int, processes: int, arena: int, tokens: int
) -> None:
    found = with_device_defaults(
        settings(), gpu_memory_bytes=card, encoders=encoders, processes=processes
    )

    assert (found.gpu_memory_bytes or 0) == pytest.approx(arena, abs=8)
    assert batch_tokens(found) == tokens


@pytest.mark.parametrize(("runs", "tokens"), [(1, 32_768), (2, 16_384), (3, 8192)])
def test_runs_in_flight_share_the_arena_of_an_encoder(runs: int, tokens: int) -> None:
    """As captured graphs they have sessions of their own, with a part of the arena each."""
    found = settings(gpu_memory_bytes=2 * GIB, gpu_runs=runs)

    assert batch_tokens(found) == tokens


def test_arenas_of_all_and_of_one_revision_more_leave_a_tenth() -> None:
    card, encoders, processes = 16 * GIB, 3, 2

    found = with_device_defaults(
        settings(), gpu_memory_bytes=card, encoders=encoders, processes=processes
    )

    assert (found.gpu_memory_bytes or 0) * (encoders + 1) * processes <= 0.9 * card


@pytest.mark.parametrize("given", [settings("cpu"), settings("cuda", gpu_memory_bytes=GIB)])
def test_memory_that_is_set_or_that_is_no_gpus_stays(given: BackendSettings) -> None:
    assert with_device_defaults(given, gpu_memory_bytes=GIB, encoders=1, processes=1) == given


@pytest.mark.parametrize(
    ("provider", "name", "rows"),
    [
        ("cuda", "model.cuda-heads.onnx", 4),
        ("cuda", "model.cuda-ranges-fp16.onnx", 4),
        ("cuda", "model.cuda-packed.onnx", 0),
        ("cuda", "model.cuda-packed-fp16.onnx", 0),
        ("cuda", "model.onnx", 0),
        ("tensorrt", "model.any-plain.onnx", 0),
    ],
)
def test_graphs_that_can_be_captured_are_captured(provider: Provider, name: str, rows: int) -> None:
    """Padding is left out of a packed graph by its values, which no captured graph reads anew."""
    assert graph_rows(settings(provider), Path(name)) == rows


@pytest.mark.parametrize("given", [0, 16])
def test_captured_rows_that_are_set_are_those_of_every_graph(given: int) -> None:
    for name in ("model.cuda-heads.onnx", "model.cuda-packed.onnx"):
        assert graph_rows(settings(gpu_graph_rows=given), Path(name)) == given
