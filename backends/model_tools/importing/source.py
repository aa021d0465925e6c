"""Reads a Hugging Face folder for an import."""

import json
from pathlib import Path
from typing import Any

import msgspec

from backends.errors import StartProblem
from backends.model_tools.graphs.weights import Weights, WeightsError, read_safetensors
from backends.repository.manifest_defaults import POOLINGS
from backends.types import Pooling

_GRAPHS = ("model.onnx", "onnx/model.onnx")
_WEIGHTS, _SHARDS = "model.safetensors", "model.safetensors.index.json"
_POOLING = "1_Pooling/config.json"


class CheckpointFolder(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a folder of `save_pretrained`; `graph` is its ONNX file, if any."""

    folder: Path
    config: dict[str, Any]
    graph: Path | None

    def weights(self) -> Weights:
        """Return the weights, of one file or several.

        Raises:
            StartProblem: there are none, or they cannot be read.
        """
        try:
            if (self.folder / _WEIGHTS).is_file():
                return read_safetensors(self.folder / _WEIGHTS)
            if (self.folder / _SHARDS).is_file():
                shards = set(read_json(self.folder / _SHARDS)["weight_map"].values())
                return {
                    name: tensor
                    for shard in sorted(shards)
                    for name, tensor in read_safetensors(self.folder / shard).items()
                }
        except (WeightsError, KeyError, AttributeError) as error:
            raise StartProblem(str(error)) from None
        raise StartProblem(
            f"`{self.folder}` holds neither `model.onnx` nor `{_WEIGHTS}`; save the model with "
            "`save_pretrained(folder, safe_serialization=True)`, or export it to ONNX"
        )

    def pooling(self) -> Pooling:
        """Return how sentence transformers pool this encoder; the mean where nothing says it.

        Raises:
            StartProblem: in a way that no graph here computes.
        """
        if not (self.folder / _POOLING).is_file():
            return "mean"
        config = read_json(self.folder / _POOLING)
        if config.get("pooling_mode") in POOLINGS.values():
            mode: Pooling = config["pooling_mode"]
            return mode
        modes = [mode for name, mode in POOLINGS.items() if config.get(name)]
        others = [n for n, on in config.items() if n.startswith("pooling_mode_") and on is True]
        if len(modes) == 1 and len(others) == 1:
            return modes[0]
        raise StartProblem(f"`{self.folder / _POOLING}`: only `mean`, `cls` or `max` are computed")


def open_source(folder: Path) -> CheckpointFolder:
    """Return what a folder holds.

    Raises:
        StartProblem: it is no folder of a model; the message says what is missing.
    """
    for name, remedy in (
        ("config.json", "it is no Hugging Face model"),
        (
            "tokenizer.json",
            "save it with `AutoTokenizer.from_pretrained(...).save_pretrained(...)`",
        ),
    ):
        if not (folder / name).is_file():
            raise StartProblem(f"`{folder}` has no `{name}`: {remedy}")
    graphs = [folder / name for name in _GRAPHS if (folder / name).is_file()]
    return CheckpointFolder(
        folder=folder,
        config=read_json(folder / "config.json"),
        graph=graphs[0] if graphs else None,
    )


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a file.

    Raises:
        StartProblem: it cannot be read, or is none.
    """
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise StartProblem(f"cannot read `{path}`: {error}") from None
    if not isinstance(document, dict):
        raise StartProblem(f"`{path}` is no JSON object")
    return document
