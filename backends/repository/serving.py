"""Reads `serving.yaml`, which selects the revisions of a model that are served."""

from pathlib import Path

import msgspec
import yaml

from sluicegate.backends.errors import ModelProblem
from sluicegate.wire.plans import Serving

FILE = "serving.yaml"


def read_serving(folder: Path) -> Serving | None:
    """Read the `serving.yaml` of a model's folder; return `None` if there is none.

    Raises:
        ModelProblem: the file cannot be read, or has wrong fields.
    """
    path = folder / FILE
    try:
        # `BaseLoader` reads `1: 90` with a string as its key, because revisions are names.
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)  # noqa: S506 - it builds strings only
        return msgspec.convert(document or {}, Serving, strict=False)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, yaml.YAMLError, msgspec.ValidationError) as error:
        raise ModelProblem(f"{path}: {' '.join(str(error).split())}") from None
