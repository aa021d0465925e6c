"""Fetches a model's files from the Hugging Face hub."""

from pathlib import Path

from sluicegate.backends.errors import StartProblem
from sluicegate.backends.model_tools.importing.wanted_files import WANTED


def fetch_from_hub(name: str, revision: str | None) -> tuple[Path, list[str]]:
    """Return the cached folder of a model on the hub, and the names of all of its files.

    Raises:
        StartProblem: the model does not exist, or the hub cannot be reached.
    """
    try:
        from huggingface_hub import model_info, snapshot_download  # noqa: PLC0415
        from huggingface_hub.utils.tqdm import disable_progress_bars  # noqa: PLC0415
    except ImportError:
        raise StartProblem(
            f"fetching `{name}` from the hub needs the package `huggingface_hub`: install it "
            "with `pip install huggingface_hub`, or import a folder"
        ) from None
    disable_progress_bars()
    try:
        path = Path(snapshot_download(name, revision=revision, allow_patterns=list(WANTED)))
        siblings = model_info(name, revision=revision).siblings or []
        return path, sorted(each.rfilename for each in siblings)
    except Exception as error:  # noqa: BLE001 - the hub's and the HTTP client raise many types
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise StartProblem(
            f"cannot fetch `{name}` from the hub: {reason[0]}; to import without the hub, copy the "
            "model's folder to this machine, and import that folder"
        ) from None
