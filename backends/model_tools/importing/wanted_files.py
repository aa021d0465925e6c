"""Names the files that an import reads. Only these are fetched from another machine."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from sluicegate.backends.model_tools.importing.gliner import FILE as GLINER
from sluicegate.backends.model_tools.importing.gliner2 import ENCODER_FILE
from sluicegate.backends.model_tools.importing.ranking import TEMPLATE_FILE
from sluicegate.backends.model_tools.importing.setfit_head import HEADS
from sluicegate.backends.model_tools.importing.source import COLBERT_HEAD, SPARSE_HEAD
from sluicegate.backends.model_tools.trials.card import FILE as CARD
from sluicegate.backends.repository.sentence_settings import LIMIT_FILES, PROMPT_FILE

# Pickles, and weights of other frameworks, are not among them.
WANTED = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    TEMPLATE_FILE,
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
    GLINER,
    ENCODER_FILE,
    SPARSE_HEAD,
    COLBERT_HEAD,
    "model.safetensors",
    "model-*.safetensors",
    "model.safetensors.index.json",
    "model.onnx*",
    "onnx/model.onnx*",
    "model.yaml",
    CARD,
)


def wanted_among(paths: Iterable[str]) -> list[str]:
    """Return the paths of files to fetch.

    A path that leads out of the folder, or that cannot be printed, is none of them.
    """
    return [
        path
        for path in paths
        if ".." not in PurePosixPath(path).parts
        and "\\" not in path
        and path.isprintable()
        and any(fnmatchcase(path, pattern) for pattern in WANTED)
    ]
