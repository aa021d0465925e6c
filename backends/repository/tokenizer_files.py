"""Refuses a `tokenizer_config.json` with options that `tokenizer.json` does not have.

An import applies such options. This check is for folders that were copied into a repository.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from backends.errors import ModelProblem
from backends.repository.sentence_modules import Files, read_object
from backends.repository.tokenizer_class import GENERIC

CONFIG = "tokenizer_config.json"
# Options of BERT's normalizer, by the names of their fields in tokenizer classes.
_NORMALIZES: Mapping[str, str] = MappingProxyType(
    {
        "do_lower_case": "lowercase",
        "strip_accents": "strip_accents",
        "tokenize_chinese_chars": "handle_chinese_chars",
    }
)
_PREFIX = "add_prefix_space"


class _TokenizerFile(msgspec.Struct, frozen=True):
    """Holds three fields; the vocabulary, of many megabytes, is skipped."""

    truncation: dict[str, Any] | None = None
    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None

    def options(self) -> Iterator[tuple[str, Any]]:
        """Yield the options that both files may set, by their names in `tokenizer_config.json`."""
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
    """Compare both files of a tokenizer of the class `kind`; `None` if the class is unknown.

    Raises:
        ModelProblem: they disagree, or one cannot be read.
    """
    path, config = files(CONFIG), read_object(files(CONFIG))
    try:
        tokenizer = msgspec.json.decode(files(name).read_bytes(), type=_TokenizerFile)
    except (OSError, UnicodeDecodeError, msgspec.DecodeError) as error:
        raise ModelProblem(f"{files(name)}: it is no tokenizer file: {error}") from None
    if "AutoTokenizer" in (config.get("auto_map") or {}):
        raise ModelProblem(f"{path}: `auto_map` names code of its own, which is not run")
    written = str((tokenizer.truncation or {}).get("direction", "right")).lower()
    side = config.get("truncation_side", written)
    if truncates and side != "right":
        raise ModelProblem(
            f"{path}: `truncation_side` is `{side}`, and texts are cut at their end here; write "
            "`truncate: false` in `model.yaml`, which refuses texts that are too long"
        )
    if kind == GENERIC:
        return  # this class takes `tokenizer.json` as it is
    for field, does in tokenizer.options():
        asked = config.get(field)
        if asked is not None and bool(asked) is not bool(does):
            raise ModelProblem(
                f"{path}: `{field}` is {str(asked).lower()}, and `{name}` does the opposite; have "
                "`models import` read the folder, which applies it"
            )
