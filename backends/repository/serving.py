"""Selects the revisions of a model that are served: by its `serving.yaml`, or the newest."""

from pathlib import Path
from typing import Annotated

import msgspec
import yaml

from backends.errors import ModelProblem

FILE = "serving.yaml"
Revision = Annotated[str, msgspec.Meta(pattern=r"^[0-9]+$")]
Weight = Annotated[int, msgspec.Meta(ge=1)]


class Shadow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Describes the revision that `share` per cent of the items are mirrored to.

    Answers are the same where no number of them is further apart than `tolerance`.
    """

    revision: Revision
    share: Annotated[float, msgspec.Meta(gt=0, le=100)] = 100.0
    tolerance: Annotated[float, msgspec.Meta(ge=0)] = 0.01


class Serving(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds the revisions that answer, with their shares, and others that are kept warm.

    Revisions that share, those in `preload` and the `shadow` are also models of their own,
    `name@revision`.
    """

    revisions: Annotated[dict[Revision, Weight], msgspec.Meta(min_length=1)] | None = None
    preload: list[Revision] = []
    shadow: Shadow | None = None


def read_serving(folder: Path) -> Serving | None:
    """Read the `serving.yaml` of a model's folder; `None` where there is none.

    Raises:
        ModelProblem: the file cannot be read, or has wrong fields.
    """
    path = folder / FILE
    try:
        # Numbers are names here: `1: 90` is what one writes.
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)  # noqa: S506 - makes texts only
        return msgspec.convert(document or {}, Serving, strict=False)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, yaml.YAMLError, msgspec.ValidationError) as error:
        raise ModelProblem(f"{path}: {' '.join(str(error).split())}") from None
