"""Fetches a model's files from the Hugging Face hub."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sluicegate.backends.errors import StartProblem
from sluicegate.backends.model_tools.importing.setfit_head import HEADS
from sluicegate.backends.repository.sentence_settings import LIMIT_FILES, PROMPT_FILE

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# The files that an import reads. Weights of other frameworks are not fetched.
_FILES = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    *LIMIT_FILES,
    PROMPT_FILE,
    "modules.json",
    "[0-9]_*/config.json",
    "[0-9]_*/model.safetensors",
    "[0-9]_*/tokenizer.json",
    "adapter_config.json",
    "adapter_model.safetensors",
    "config_setfit.json",
    *HEADS,
    "model.safetensors",
    "model-*.safetensors",
    "model.safetensors.index.json",
    "model.onnx*",
    "onnx/model.onnx*",
)


class FoundFolder(NamedTuple):
    """Holds a local folder and, for a model on the hub, the names of all files, fetched or not."""

    path: Path
    files: Sequence[str] = ()


def find_folder(source: str, *, revision: str | None) -> FoundFolder:
    """Return the folder `source`, or the cached folder of a model on the hub (`owner/name`).

    Raises:
        StartProblem: the folder or model does not exist, or the hub cannot be reached.
    """
    folder = Path(source)
    if folder.is_dir():
        if revision is not None:
            raise StartProblem(f"`--revision` is only for the hub, but `{source}` is a folder")
        return FoundFolder(folder)
    if folder.is_file():
        raise StartProblem(f"`{source}` is a file; name its folder")
    if not _NAME.fullmatch(source):
        raise StartProblem(f"there is no folder `{source}`; a model on the hub is `owner/name`")
    return _fetch(source, revision)


def _fetch(name: str, revision: str | None) -> FoundFolder:
    try:
        from huggingface_hub import model_info, snapshot_download  # noqa: PLC0415
        from huggingface_hub.utils.tqdm import disable_progress_bars  # noqa: PLC0415
    except ImportError:
        raise StartProblem(
            f"there is no folder `{name}`; fetching it from the hub needs the package "
            "`huggingface_hub`: install it with `pip install huggingface_hub`"
        ) from None
    disable_progress_bars()
    try:
        path = Path(snapshot_download(name, revision=revision, allow_patterns=list(_FILES)))
        siblings = model_info(name, revision=revision).siblings or []
        return FoundFolder(path, sorted(each.rfilename for each in siblings))
    except Exception as error:  # noqa: BLE001 - the hub's and the HTTP client raise many types
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise StartProblem(
            f"there is no folder `{name}`, and the hub failed: {reason[0]}; to import without the "
            "hub, copy the model's folder to this machine"
        ) from None
