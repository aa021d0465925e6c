"""Reads Triton's layout: a `config.pbtxt` beside numbered folders.

Only the graph file, the version policy and the labels are read from `config.pbtxt`. Batching and
the number of instances are not read, because a backend chooses them itself.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from sluicegate.backends.errors import ModelProblem
from sluicegate.backends.repository.text_proto import Message, read_text_proto
from sluicegate.wire.plans import Serving

FILE = "config.pbtxt"
_GRAPH = "model.onnx"
_SERVED = {"onnxruntime", "onnxruntime_onnx"}


class TritonConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the fields of a `config.pbtxt`: manifest fields, and the versions that are served."""

    declared: dict[str, Any]
    policy: str
    newest: int
    versions: list[str]

    def serving(self, numbers: Sequence[str]) -> Serving:
        """Return the revisions that Triton's version policy selects for serving.

        The model's name stands for the newest of these revisions. The other revisions have names
        such as `tiny@2`.
        """
        ordered = sorted(numbers, key=int)
        chosen = {
            "all": ordered,
            "latest": ordered[-self.newest :],
            "specific": sorted(self.versions, key=int),
        }[self.policy]
        return Serving(revisions={chosen[-1]: 1}, preload=chosen[:-1])


def read_triton(folder: Path) -> TritonConfig | None:
    """Read the `config.pbtxt` of a model's folder; return `None` if there is none.

    Raises:
        ModelProblem: the file cannot be read, or describes a model that cannot be served.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        config = read_text_proto(path.read_text(encoding="utf-8"))
        kind = _text(config, "backend") or _text(config, "platform") or "onnxruntime"
        if kind in _SERVED:
            policy, newest, versions = _policy(config)
            graph = _text(config, "default_model_filename") or _GRAPH
            declared = {"graph": graph, **_labels(config, folder)}
            return TritonConfig(declared=declared, policy=policy, newest=newest, versions=versions)
    except OSError as error:
        raise ModelProblem(f"{path}: cannot read `{error.filename}`: {error.strerror}") from None
    except ValueError as error:
        raise ModelProblem(f"{path}: {error}") from None
    raise ModelProblem(
        f"{path}: models of the backend `{kind}` cannot be served; export the model to ONNX, or "
        "describe it as an algorithm over other models"
    )


def _policy(config: Message) -> tuple[str, int, list[str]]:
    policies = _messages(config, "version_policy")
    policy = policies[-1] if policies else {}
    if not policy.keys() <= {"all", "latest", "specific"}:
        raise ValueError("`version_policy` must be `all`, `latest` or `specific`")
    if "all" in policy:
        return "all", 1, []
    if "specific" in policy:
        parts = _messages(policy, "specific")
        versions = [str(number) for part in parts for number in part.get("versions", [])]
        if not versions or not all(map(str.isdecimal, versions)):
            raise ValueError("`version_policy` names no `versions`")
        return "specific", 1, versions
    newest = [n for part in _messages(policy, "latest") for n in part.get("num_versions", [])]
    if not all(isinstance(number, int) and number > 0 for number in newest):
        raise ValueError("`num_versions` must be a positive integer")
    return "latest", newest[-1] if newest else 1, []


def _labels(config: Message, folder: Path) -> dict[str, Any]:
    """Return the labels, and the name of the output with these labels; empty if there are none."""
    for output in _messages(config, "output"):
        name = _text(output, "label_filename")
        if name:
            labels = (folder / Path(name).name).read_text(encoding="utf-8").rstrip().splitlines()
            return {
                "kind": "classifier",
                "output": _text(output, "name"),
                "labels": [label.strip() for label in labels],
            }
    return {}


def _messages(message: Message, field: str) -> list[Message]:
    found = message.get(field, [])
    if not all(isinstance(value, dict) for value in found):
        raise ValueError(f"`{field}` must be a message")
    return found


def _text(message: Message, field: str) -> str:
    value = (message.get(field) or [""])[-1]
    if isinstance(value, str):
        return value
    raise ValueError(f"`{field}` must be a string")
