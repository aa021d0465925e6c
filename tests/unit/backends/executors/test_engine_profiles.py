"""For which shapes TensorRT builds engines, and where these are kept."""

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from sluicegate.backends.device_defaults import BatchBounds
from sluicegate.backends.errors import ModelProblem
from sluicegate.backends.executors import engine_profiles as module
from sluicegate.backends.executors.buckets import Buckets
from sluicegate.backends.executors.device_info import DeviceInfo
from sluicegate.backends.executors.engine_profiles import (
    LIBRARIES,
    EngineProfile,
    engine_folder,
    engine_profiles,
    load_tensorrt,
    make_engine_folder,
)
from sluicegate.backends.executors.graph import GraphSource
from sluicegate.backends.types import OutputKind

GPU = BatchBounds(rows=256, tokens=32_768)
PROFILE = EngineProfile(rows=64, longest=512, usual=256)
SOURCE = GraphSource(
    path=Path("model.any-plain.onnx"),
    outputs={OutputKind.POOLED: "pooled"},
    dimensions=8,
    digest="0123456789abcdef",
    precision="fp16",
)
H100 = DeviceInfo(name="NVIDIA H100 80GB HBM3", memory_bytes=2**36, compute_capability="9.0")


@pytest.mark.parametrize(
    ("bounds", "max_tokens", "found"),
    [
        (GPU, 64, [(256, 64)]),
        (GPU, 128, [(256, 128)]),
        (GPU, 512, [(256, 128), (64, 512)]),
        (GPU, None, [(256, 128), (64, 512)]),
        (GPU, 8192, [(256, 128), (64, 512), (16, 2048), (4, 8192)]),
        # One row may be longer than a batch.
        (BatchBounds(rows=256, tokens=4096), 8192, [(256, 16), (64, 64), (16, 256), (4, 1024)]),
        (BatchBounds(rows=16, tokens=4096), 512, [(16, 256), (8, 512)]),
        (BatchBounds(rows=1, tokens=64), 512, [(1, 64), (1, 256), (1, 512)]),
    ],
)
def test_ranges_hold_all_lengths_and_as_many_rows_as_a_batch_has_tokens_for(
    bounds: BatchBounds, max_tokens: int | None, found: list[tuple[int, int]]
) -> None:
    profiles = engine_profiles(bounds, max_tokens, Buckets())

    shapes = [(each.rows, each.longest) for each in profiles]
    assert shapes[: len(found)] == found
    assert shapes[-1][1] == (max_tokens or 512)
    assert all(rows * longest <= bounds.tokens or rows == 1 for rows, longest in shapes)


@pytest.mark.parametrize("steps", [1, 2, 4, 8])
@pytest.mark.parametrize("rows", [1, 3, 13, 100, 256, 300])
def test_no_batch_is_rounded_out_of_its_range(rows: int, steps: int) -> None:
    """A batch runs in the shape of its bucket; for one beyond the range there is no engine."""
    buckets = Buckets(row_steps=steps, length_steps=steps)
    bounds = BatchBounds(rows=rows, tokens=4096)

    shortest = 1
    for profile in engine_profiles(bounds, 300, buckets):
        within = msgspec.structs.replace(buckets, max_length=profile.longest)
        for length in range(shortest, profile.longest + 1):
            for count in (1, profile.rows // 2 or 1, profile.rows):
                shape = within.fit(count, length)
                assert (shape.rows <= profile.rows, shape.length <= profile.longest) == (True, True)
        shortest = profile.longest + 1


def test_onnx_runtime_is_told_the_range_of_every_input() -> None:
    assert PROFILE.options(["input_ids", "attention_mask"]) == {
        "trt_profile_min_shapes": "input_ids:1x1,attention_mask:1x1",
        "trt_profile_opt_shapes": "input_ids:64x256,attention_mask:64x256",
        "trt_profile_max_shapes": "input_ids:64x512,attention_mask:64x512",
    }


def folder(source: GraphSource = SOURCE, profile: EngineProfile = PROFILE, **given: object) -> Path:
    known = {"device": H100, "tensorrt": "101303", "runtime": "1.31.1"} | given
    return engine_folder(Path("engines"), source, profile, **known)  # type: ignore[arg-type]


def test_an_engine_lies_by_all_that_it_depends_on() -> None:
    """What differs in one of these is built anew, and never used."""
    digest = msgspec.structs.replace(SOURCE, digest="fedcba9876543210")
    other = [
        folder(digest),
        folder(msgspec.structs.replace(SOURCE, precision="tf32")),
        folder(msgspec.structs.replace(SOURCE, path=Path("model.onnx"))),
        folder(profile=msgspec.structs.replace(PROFILE, rows=128)),
        folder(profile=msgspec.structs.replace(PROFILE, usual=128)),
        folder(device=msgspec.structs.replace(H100, name="NVIDIA L4")),
        folder(device=msgspec.structs.replace(H100, compute_capability="8.9")),
        folder(tensorrt="101200"),
        folder(runtime="1.32.0"),
    ]

    assert len({folder(), *other}) == len(other) + 1
    assert folder() == folder()
    assert folder().parent == Path("engines")
    assert str(folder().name).replace("-", "").replace("_", "").replace(".", "").isalnum()


def test_engines_are_built_at_each_start_where_nothing_can_be_kept(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert make_engine_folder(tmp_path / "file" / "engines") is None
    assert make_engine_folder(tmp_path / "a" / "b") == tmp_path / "a" / "b"


class Wheel:
    """Has the libraries that are not `missing`; each load is noted."""

    def __init__(self, missing: str = "") -> None:
        self.missing = missing
        self.loaded: list[str] = []

    def __call__(self, name: str) -> ctypes.CDLL:
        if self.missing and self.missing in name:
            raise OSError(f"{name}: cannot open shared object file")
        self.loaded.append(name)
        return cast(ctypes.CDLL, SimpleNamespace(getInferLibVersion=lambda: 101303))


def test_libraries_are_loaded_in_the_order_in_which_they_need_another() -> None:
    wheel = Wheel()

    assert load_tensorrt(wheel) == "101303"
    assert wheel.loaded == list(LIBRARIES)


def test_the_wheel_comes_before_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tensorrt_libs").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    wheel = Wheel()

    load_tensorrt(wheel)

    assert wheel.loaded == [str(tmp_path / "tensorrt_libs" / name) for name in LIBRARIES]


@pytest.mark.parametrize("missing", LIBRARIES)
def test_a_library_that_is_missing_is_a_sentence_and_what_to_do(missing: str) -> None:
    with pytest.raises(ModelProblem, match=rf"\({missing}: .*install the extra `tensorrt`, or"):
        load_tensorrt(Wheel(missing))


def test_a_machine_without_the_libraries_says_so() -> None:
    with pytest.raises(ModelProblem, match="TensorRT's libraries cannot be loaded"):
        module.load_tensorrt()
