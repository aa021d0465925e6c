"""Refuses a `tokenizer_config.json` that asks for what `tokenizer.json` alone does not do."""

from typing import Any

import msgspec

from backends.errors import ModelProblem
from backends.repository.sentence_modules import Files, read_object

CONFIG = "tokenizer_config.json"


class _TokenizerFile(msgspec.Struct, frozen=True):
    """Holds two fields; the vocabulary, of many megabytes, is skipped."""

    truncation: dict[str, Any] | None = None
    normalizer: dict[str, Any] | None = None


def check_tokenizer(files: Files, name: str, *, truncates: bool) -> None:
    """Compare both files of a tokenizer.

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
    normalizer, lowers = tokenizer.normalizer or {}, config.get("do_lower_case")
    is_bert = normalizer.get("type") == "BertNormalizer"
    if is_bert and lowers is not None and bool(normalizer.get("lowercase")) is not bool(lowers):
        raise ModelProblem(
            f"{path}: `do_lower_case` is {str(lowers).lower()}, and `{name}` does the opposite; "
            "save the tokenizer again with `save_pretrained`"
        )
