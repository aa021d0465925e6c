"""Says which names models have, and which files of a model's folder are part of the model."""

import re
from typing import Annotated

import msgspec

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
Name = Annotated[str, msgspec.Meta(pattern=f"^{NAME.pattern}$")]
# The name of a model, or of one of its revisions: `tiny@2`.
Reference = Annotated[str, msgspec.Meta(pattern=f"^{NAME.pattern}(@[0-9]+)?$")]


def is_hidden(path: str) -> bool:
    """Return whether a file in a model's folder is not part of the model.

    Hidden files, files in hidden folders and Python bytecode are not part of the model.
    """
    return any(part.startswith(".") or part == "__pycache__" for part in path.split("/"))
