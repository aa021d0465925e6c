"""Tells the versions of the peers that are installed here."""

import re
import subprocess
from pathlib import Path

from loadtests.rivals import nginx

_ROOT = Path(__file__).parents[2]
_LIST = "requirements.txt"
_PIN = re.compile(r"^([\w.-]+)==([\w.+-]+)", re.MULTILINE)
# The packages of each environment that a figure depends on.
_PACKAGES = {
    "bentoml": ("bentoml", "onnxruntime"),
    "bettertransformer": ("infinity-emb", "optimum", "torch"),
    "infinity": ("infinity-emb", "litserve", "onnxruntime", "openvino", "torch"),
    "litellm": ("litellm",),
    "litserve": ("litserve", "onnxruntime"),
    "triton": ("nvidia-pytriton", "onnxruntime"),
}


def installed_versions() -> dict[str, str]:
    """Return the versions of nginx and of the packages in each peer's environment.

    They are those of the hashed lists, from which `make` installs.
    """
    versions = {"nginx": _nginx()} if nginx.is_installed() else {}
    for environment, packages in _PACKAGES.items():
        if not (_ROOT / ".venv-peers" / environment / ".installed").exists():
            continue
        pins = dict(_PIN.findall((Path(__file__).parent / environment / _LIST).read_text()))
        versions |= {f"{environment}: {name}": pins[name] for name in packages if name in pins}
    return versions


def _nginx() -> str:
    command = ["nginx", "-v"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr.rpartition("/")[2].strip()
