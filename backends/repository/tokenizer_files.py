"""Refuses a `tokenizer_config.json` that contradicts its `tokenizer.json`.

The check is for folders that were copied into a repository. `models import` applies the options of
`tokenizer_config.json` to `tokenizer.json` instead.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from sluicegate.backends.errors import ModelProblem
from sluicegate.backends.repository.sentence_modules import Files, read_object
from sluicegate.backends.repository.tokenizer_class import GENERIC

CONFIG = "tokenizer_config.json"
# Options of a tokenizer class, and the names of the same options in BERT's normalizer.
_NORMALIZES: Mapping[str, str] = MappingProxyType(
    {
        "do_lower_case": "lowercase",
        "strip_accents": "strip_accents",
        "tokenize_chinese_chars": "handle_chinese_chars",
    }
)
_PREFIX = "add_prefix_space"


class _TokenizerFile(msgspec.Struct, frozen=True):
    """Holds the three fields that are compared; the decoder skips the large vocabulary."""

    truncation: dict[str, Any] | None = None
    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None

    def options(self) -> Iterator[tuple[str, Any]]:
        """Yield the name and value of each option of `tokenizer.json`.

        The names are those that `tokenizer_config.json` uses.
        """
        normalizer = self.normalizer or {}
        if normalizer.get("type") == "BertNormalizer":
            for field, ours in _NORMALIZES.items():
                yield field, normalizer.get(ours)
        first = self.pre_tokenizer or {}
        for each in first.get("pretokenizers", [first]):
            if each.get("type") == "ByteLevel":
                yield _PREFIX, each.get(_PREFIX)
            elif each.get("type") == "Metaspace" and "prepend_scheme" in each:
                yield _PREFIX, each["prepend_scheme"] == "always"


def check_tokenizer(files: Files, name: str, *, kind: str | None, truncates: bool) -> None:
    """Compare `tokenizer_config.json` with the tokenizer file `name`.

    `kind` is the tokenizer's class, or `None` if the class is unknown.

    Raises:
        ModelProblem: the files disagree, or one cannot be read.
    """
    path, config = files(CONFIG), read_object(files(CONFIG))
    try:
        tokenizer = msgspec.json.decode(files(name).read_bytes(), type=_TokenizerFile)
    except (OSError, UnicodeDecodeError, msgspec.DecodeError) as error:
        raise ModelProblem(f"{files(name)}: cannot be read as a tokenizer: {error}") from None
    if "AutoTokenizer" in (config.get("auto_map") or {}):
        raise ModelProblem(f"{path}: `auto_map` names custom code, which is not run; remove it")
    written = str((tokenizer.truncation or {}).get("direction", "right")).lower()
    side = config.get("truncation_side", written)
    if truncates and side != "right":
        raise ModelProblem(
            f"{path}: `truncation_side` is `{side}`, but texts are truncated at the end; set "
            "`truncate: false` in `model.yaml` to refuse texts that are too long"
        )
    if kind == GENERIC:
        return  # this class uses `tokenizer.json` unchanged
    for field, does in tokenizer.options():
        asked = config.get(field)
        if asked is not None and bool(asked) is not bool(does):
            raise ModelProblem(
                f"{path}: `{field}` is {str(asked).lower()}, and `{name}` does the opposite; "
                "import the folder with `models import`, which applies the option"
            )
