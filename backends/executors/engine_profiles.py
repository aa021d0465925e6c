"""Loads TensorRT, and defines the shapes and the cache folders of its engines."""

import ctypes
import importlib.util
import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from sluicegate.backends.device_defaults import BatchBounds
from sluicegate.backends.errors import ModelProblem
from sluicegate.backends.executors.buckets import Buckets
from sluicegate.backends.executors.device_info import DeviceInfo
from sluicegate.backends.executors.graph import GraphSource

_log = logging.getLogger(__name__)
# The libraries of the TensorRT version to which ONNX Runtime's provider is linked. Each library
# comes after the libraries on which it depends.
LIBRARIES: Final = ("libnvinfer.so.10", "libnvinfer_plugin.so.10", "libnvonnxparser.so.10")
_PACKAGE: Final = "tensorrt_libs"
# The ratio of the longest rows of neighbouring profiles. A larger ratio saves memory, a smaller
# ratio saves time.
_GROWTH = 4
_LONGEST = 512


class EngineProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the batches of one engine: up to `rows` rows of up to `longest` tokens.

    TensorRT chooses the kernels that are fastest for rows of `usual` tokens.
    """

    rows: int
    longest: int
    usual: int

    def options(self, inputs: Sequence[str]) -> dict[str, str]:
        """Return ONNX Runtime's profile options for a graph with these inputs."""
        shapes = {
            "min": (1, 1),
            "opt": (self.rows, self.usual),
            "max": (self.rows, self.longest),
        }
        return {
            f"trt_profile_{kind}_shapes": ",".join(f"{name}:{rows}x{n}" for name in inputs)
            for kind, (rows, n) in shapes.items()
        }


def engine_profiles(
    bounds: BatchBounds, max_tokens: int | None, buckets: Buckets
) -> list[EngineProfile]:
    """Return the profiles of a graph, from the shortest to the longest rows.

    A profile allows as many rows of its longest length as fit into `bounds.tokens`, but at least
    one. The rows of the first profile are so short that `bounds.rows` of them fit into a batch.
    """
    most = max_tokens or _LONGEST
    longest = [min(most, max(1, bounds.tokens // bounds.rows))]
    while longest[-1] < most:
        longest.append(min(most, longest[-1] * _GROWTH))
    return [
        EngineProfile(
            rows=buckets.most_rows(min(bounds.rows, max(1, bounds.tokens // length))),
            longest=length,
            usual=max(1, length // 2),
        )
        for length in longest
    ]


def engine_folder(
    root: Path,
    source: GraphSource,
    profile: EngineProfile,
    *,
    device: DeviceInfo,
    tensorrt: str,
    runtime: str,
) -> Path:
    """Return the cache folder of an engine.

    The folder's name depends on everything that the engine depends on, such as the device and
    versions. So a changed device or version leads to a new folder and a new engine.
    """
    words = (
        source.digest,
        source.path.stem,
        device.name or "unknown",
        device.compute_capability,
        f"tensorrt{tensorrt}",
        f"onnxruntime{runtime}",
        source.precision,
        f"{profile.rows}x{profile.usual}x{profile.longest}",
    )
    return root / "-".join(re.sub(r"[^A-Za-z0-9._]+", "_", word) for word in words if word)


def make_engine_folder(folder: Path) -> Path | None:
    """Create a missing folder and return it; return `None` if the folder cannot be created."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _log.warning(
            "cannot write the engine cache; TensorRT builds its engines at every start",
            extra={"folder": str(folder), "why": error.strerror},
        )
        return None
    return folder


def load_tensorrt(
    load: Callable[[str], ctypes.CDLL] = lambda name: ctypes.CDLL(name, ctypes.RTLD_GLOBAL),
) -> str:
    """Load TensorRT's libraries from a wheel or from system folders; return their version.

    Raises:
        ModelProblem: the libraries are missing.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    folders = list(spec.submodule_search_locations or []) if spec is not None else []
    try:
        first, *_ = [load(str(Path(folders[0], n)) if folders else n) for n in LIBRARIES]
    except OSError as error:
        raise ModelProblem(
            f"TensorRT's libraries cannot be loaded ({error}): install the extra `tensorrt`, or "
            "NVIDIA's packages of TensorRT 10, or set the provider to `cuda`"
        ) from None
    return str(first.getInferLibVersion())
