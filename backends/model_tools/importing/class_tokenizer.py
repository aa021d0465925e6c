"""Builds the tokenizer that `transformers` would load from a folder.

The tokenizer classes of `transformers` read only the vocabulary and the added tokens from
`tokenizer.json`. The normalizer, the pre-tokenizer and the template follow from the class and from
`tokenizer_config.json`. The rules are those of `transformers` 5.23.0 (Apache-2.0),
`src/transformers/models/*/tokenization_*.py`.
"""

import base64
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from sluicegate.backends.errors import StartProblem
from sluicegate.backends.repository.sentence_modules import read_object
from sluicegate.backends.repository.tokenizer_class import CLASSES, GENERIC, find_class, sends_types
from sluicegate.backends.repository.tokenizer_files import CONFIG

_ROLES = (
    *("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"),
)
_SPACE = "▁"
# The built tokenizer applies these fields, so they are removed from `tokenizer_config.json`.
_APPLIED = {
    *("do_lower_case", "strip_accents", "tokenize_chinese_chars", "keep_accents"),
    *("add_prefix_space", "split_by_punct", "trim_offsets", "unk_id", "added_tokens_decoder"),
    *("additional_special_tokens", "extra_special_tokens", "add_bos_token", "add_eos_token"),
    "extra_ids",
}
_CLIP_WORDS = (
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d"
    r"|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
)
_TYPES = "token_type_ids"
_INPUTS = ["input_ids", _TYPES, "attention_mask"]
# The sections of `tokenizer.json` that decide which tokens a text has.
_PARTS = ("normalizer", "pre_tokenizer", "model", "post_processor", "added_tokens")
_REMEDY = (
    f'; if `transformers` should use that file unchanged, set `"tokenizer_class": "{GENERIC}"` in '
    f"`{CONFIG}`"
)
# Classes whose template is that of `tokenizer.json`.
_KEEP_TEMPLATES = {"AlbertTokenizer", "Qwen2Tokenizer", "GemmaTokenizer", "Siglip2Tokenizer"}
_PUNCTUATION = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_Token = str | AddedToken
# A token as it is written in a tokenizer's files.
_Written = str | dict[str, Any]


class ClassTokenizer(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the `tokenizer.json` that a class builds, and the matching `tokenizer_config.json`.

    The class is the tokenizer's class in `transformers`. `changed` lists the sections that differ
    from the folder's `tokenizer.json`. `types` says whether the tokenizer returns token types; it
    is `None` if no file says this. `padding` is the id of the padding token, if it is known.
    """

    text: str
    config: dict[str, Any] | None
    types: bool | None
    name: str | None = None
    changed: tuple[str, ...] = ()
    padding: int | None = None

    def check_types(self, known: int) -> None:
        """Check that the model has embeddings for the token types of this tokenizer.

        `known` is the number of token types that the model knows.

        Raises:
            StartProblem: a token type is too large, or is not 0 for a text outside a pair.
        """
        if not self.types:
            return
        tokenizer = self.load()
        largest = max(tokenizer.encode("0", "0").type_ids, default=0)
        if largest >= known:
            raise StartProblem(
                f"the tokenizer gives pairs the token types 0 to {largest}, but `type_vocab_size` "
                f"is {known}; remove `{_TYPES}` from `model_input_names` in `{CONFIG}`"
            )
        if any(tokenizer.encode("0").type_ids):
            raise StartProblem("the tokenizer gives a single text token types other than 0")

    def load(self) -> Tokenizer:
        """Return the tokenizer, without padding and truncation."""
        tokenizer = Tokenizer.from_str(self.text)
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return tokenizer


def build_tokenizer(folder: Path, file: str, config: Mapping[str, Any]) -> ClassTokenizer:
    """Return the tokenizer of a folder; `config` is the content of its `config.json`.

    Raises:
        StartProblem: the tokenizer's class, or its kind of vocabulary, is not supported.
    """
    path, fields = folder / file, read_object(folder / CONFIG)
    try:
        text = path.read_text(encoding="utf-8")
        own = Tokenizer.from_str(text)
    except Exception as error:  # noqa: BLE001 - tokenizers raises bare Exceptions
        raise StartProblem(f"`{path}`: cannot be read as a tokenizer: {error}") from None
    name, types = find_class(config, fields), sends_types(config, fields)
    if name is None:
        return ClassTokenizer(text=text, config=None, types=types)
    if name not in CLASSES:
        raise StartProblem(
            f"`{folder / CONFIG}`: the tokenizer class `{name}` is not supported{_REMEDY}"
        )
    try:
        given = _read_given(folder, json.loads(text), fields, own, name)
        built = _build(given, own, name)
    except Exception as error:  # noqa: BLE001 - tokenizers raises bare Exceptions
        raise StartProblem(f"`{path}`: cannot build a `{name}`: {error}{_REMEDY}") from None
    before, after = json.loads(Tokenizer.from_str(text).to_str()), json.loads(built.to_str())
    changed = tuple(part for part in _PARTS if before[part] != after[part])
    kept = {field: value for field, value in fields.items() if field not in _APPLIED}
    inputs = [each for each in _INPUTS if types or each != _TYPES]
    return ClassTokenizer(
        text=built.to_str() if changed else text,
        config={**kept, "tokenizer_class": GENERIC, "model_input_names": inputs},
        types=types,
        name=name,
        changed=changed,
        padding=built.token_to_id(str(given.tokens.get("pad_token"))),
    )


class _Given(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the content of the tokenizer's files.

    `tokens` maps roles, such as `pad_token`, to tokens. `added` are the added tokens in the order
    of their ids.
    """

    model: dict[str, Any]
    normalizer: dict[str, Any] | None
    fields: dict[str, Any]
    tokens: dict[str, _Token]
    extra: list[_Token]
    added: list[AddedToken]

    def token(self, role: str) -> str:
        """Return the text of the token with a role.

        Raises:
            ValueError: no token has the role.
        """
        if f"{role}_token" not in self.tokens:
            raise ValueError(f"`{role}_token` is null")
        return str(self.tokens[f"{role}_token"])

    def vocabulary(self, kind: str) -> Any:
        """Return the vocabulary in the form that the models of `tokenizers` take.

        Raises:
            ValueError: the file's vocabulary is of another kind.
        """
        found = self.model.get("type") or _guess_kind(self.model)
        if found != kind:
            raise ValueError(f"the vocabulary is {found}, but the class needs {kind}")
        words = self.model["vocab"]
        return words if isinstance(words, dict) else [(piece, score) for piece, score in words]

    def merges(self) -> list[tuple[str, str]]:
        """Return the merges of byte pairs."""
        merges = self.model["merges"]
        return [tuple(each.split(" ") if isinstance(each, str) else each) for each in merges]

    def charsmap(self) -> bytes | None:
        """Return SentencePiece's table of normalizations, if there is one."""
        normalizer = self.normalizer or {}
        for each in normalizer.get("normalizers", [normalizer]):
            if each.get("type") == "Precompiled" and each.get("precompiled_charsmap"):
                return base64.b64decode(each["precompiled_charsmap"])
        return None


def _guess_kind(model: Mapping[str, Any]) -> str:
    """Return the kind of vocabulary in an old file that does not name the kind."""
    if "merges" in model:
        return "BPE"
    return "WordPiece" if isinstance(model["vocab"], dict) else "Unigram"


def _read_given(
    folder: Path, document: dict[str, Any], fields: dict[str, Any], own: Tokenizer, name: str
) -> _Given:
    found = dict(fields)
    if "added_tokens_decoder" in found:
        added = {int(n): AddedToken(**t) for n, t in found["added_tokens_decoder"].items()}
    else:
        found |= read_object(folder / "special_tokens_map.json")
        added = _older_tokens(folder, document, found)
    by_text = {str(token): token for token in added.values()}
    extra = _extra_tokens(found, name)
    roles = {field: value for field, value in found.items() if field.endswith("_token")}
    if isinstance(extra, dict):
        roles, extra = roles | extra, []
    if name == GENERIC and own.padding is not None:
        roles = {"pad_token": own.padding["pad_token"], **roles}
    tokens = {role: _token(value) for role, value in _SPECS[name].tokens.items()}
    for role, value in roles.items():
        if value is None:
            tokens.pop(role, None)
        elif isinstance(value, str | dict):
            token = _token(value)
            tokens[role] = by_text.get(str(token), token)
    ordered = [*_ROLES, *(role for role in tokens if role not in _ROLES)]
    return _Given(
        model=document["model"],
        normalizer=document.get("normalizer"),
        fields=found,
        tokens={role: tokens[role] for role in ordered if role in tokens},
        extra=[_token(each) for each in extra],
        added=[added[number] for number in sorted(added)],
    )


def _extra_tokens(found: Mapping[str, Any], name: str) -> Any:
    """Return the special tokens without a role, or a mapping of more roles to tokens."""
    fields = ("extra_special_tokens", "additional_special_tokens")
    if not {*fields} & set(found):
        if name == "CamembertTokenizer":
            return ["<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"]
        if name == "T5Tokenizer":
            return [f"<extra_id_{place}>" for place in range(found.get("extra_ids", 100))]
    return next((found[field] for field in fields if found.get(field)), [])


def _older_tokens(
    folder: Path, document: Mapping[str, Any], found: Mapping[str, Any]
) -> dict[int, AddedToken]:
    """Return the added tokens of a folder whose `tokenizer_config.json` does not list any."""
    special = {str(_token(found[role])) for role in _ROLES if found.get(role)}
    added = {}
    for text, number in read_object(folder / "added_tokens.json").items():
        is_special = text in special
        added[number] = AddedToken(text, normalized=not is_special, special=is_special)
    for each in document.get("added_tokens") or []:
        added[each["id"]] = AddedToken(**{k: v for k, v in each.items() if k != "id"})
    return added


def _token(value: _Written) -> _Token:
    if isinstance(value, str):
        return value
    known = {field: each for field, each in value.items() if field not in {"__type", "id"}}
    return AddedToken(**{"special": True, **known})


def _build(given: _Given, own: Tokenizer, name: str) -> Tokenizer:
    spec = _SPECS[name]
    built = own if spec.build is None else spec.build(given)
    if name == "AlbertTokenizer":
        built.post_processor = _bert_template(given, built, "[CLS]", "[SEP]")
    if name in _KEEP_TEMPLATES and own.post_processor is not None:
        built.post_processor = own.post_processor
    _add_tokens(built, given)
    if spec.template is not None:
        built.post_processor = spec.template(given, built)
    return built


def _add_tokens(built: Tokenizer, given: _Given) -> None:
    """Add the tokens of all files; new tokens get ids in the same order as in `transformers`."""
    adding: list[_Token] = list(given.added)
    known = {str(token) for token in built.get_added_tokens_decoder().values()}
    known |= {str(token) for token in adding}
    for token in given.tokens.values():
        if str(token) not in known and token not in adding:
            adding.append(token)
    for token in given.extra:
        if str(token) not in known and token not in adding:
            adding.append(token)
    named = {str(token) for token in given.tokens.values()}
    whole = []
    for each in adding:
        token = AddedToken(each, special=True) if isinstance(each, str) else each
        if str(token) in named:
            token.special = True
        whole.append(token)
    if whole:
        built.add_tokens(whole)


def _word_pieces(given: _Given) -> Tokenizer:
    unknown = given.token("unk")
    built = Tokenizer(models.WordPiece(given.vocabulary("WordPiece"), unk_token=unknown))
    built.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=given.fields.get("tokenize_chinese_chars", True),
        strip_accents=given.fields.get("strip_accents"),
        lowercase=given.fields.get("do_lower_case", True),
    )
    built.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    built.decoder = decoders.WordPiece(prefix="##")
    return built


def _byte_pairs(given: _Given) -> Tokenizer:
    built = Tokenizer(
        models.BPE(
            vocab=given.vocabulary("BPE"),
            merges=given.merges(),
            continuing_subword_prefix="",
            end_of_word_suffix="",
            fuse_unk=False,
        )
    )
    spaced = bool(given.fields.get("add_prefix_space"))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=spaced)
    built.decoder = decoders.ByteLevel()
    return built


def _clip(given: _Given) -> Tokenizer:
    words, merges = given.vocabulary("BPE"), given.model["merges"]
    pairs = [tuple(each.split(" ") if isinstance(each, str) else each) for each in merges]
    built = Tokenizer(
        models.BPE(
            vocab=words,
            merges=pairs,
            continuing_subword_prefix="",
            end_of_word_suffix="</w>",
            fuse_unk=False,
            unk_token=given.token("unk"),
        )
    )
    built.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    split = pre_tokenizers.Split(Regex(_CLIP_WORDS), behavior="removed", invert=True)
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.pre_tokenizer = pre_tokenizers.Sequence([split, plain])
    built.decoder = decoders.ByteLevel()
    return built


def _clip_template(given: _Given, built: Tokenizer) -> Any:
    start, end = given.token("bos"), given.token("eos")
    return processors.RobertaProcessing(
        (end, _id(built, end)), (start, _id(built, start)), False, False
    )


def _qwen(given: _Given) -> Tokenizer:
    built = _byte_pairs(given)
    built.normalizer = normalizers.NFC()
    spaced = bool(given.fields.get("add_prefix_space"))
    words = pre_tokenizers.Split(Regex(_QWEN_WORDS), behavior="isolated", invert=False)
    letters = pre_tokenizers.ByteLevel(add_prefix_space=spaced, use_regex=False)
    built.pre_tokenizer = pre_tokenizers.Sequence([words, letters])
    return built


def _gemma(given: _Given) -> Tokenizer:
    built = Tokenizer(
        models.BPE(
            vocab=given.vocabulary("BPE"),
            merges=given.merges(),
            unk_token=given.token("unk"),
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    built.normalizer = normalizers.Replace(" ", _SPACE)
    built.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous", invert=False)
    built.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return built


def _siglip2(given: _Given) -> Tokenizer:
    built = _gemma(given)
    built.normalizer = normalizers.Sequence([normalizers.Lowercase(), built.normalizer])
    return built


def _siglip(given: _Given) -> Tokenizer:
    """Build what `SiglipTokenizer` does with SentencePiece; only a text's start gets a space."""
    words, unknown = given.vocabulary("Unigram"), given.token("unk")
    place = [piece for piece, _ in words].index(unknown)
    built = Tokenizer(models.Unigram(vocab=words, unk_id=place, byte_fallback=False))
    charsmap = given.charsmap()
    built.normalizer = normalizers.Sequence(
        [
            *([normalizers.Lowercase()] if given.fields.get("do_lower_case", True) else []),
            # The space remains, because `tokenizers` adds none to a start that is removed.
            normalizers.Replace(Regex(rf"\A({_PUNCTUATION}|\s)+"), " "),
            normalizers.Replace(Regex(_PUNCTUATION), ""),
            normalizers.Replace(Regex(r"\s+"), " "),
            normalizers.Strip(left=False, right=True),
            *([] if charsmap is None else [normalizers.Precompiled(charsmap)]),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    )
    fields = {**given.fields, "add_prefix_space": False}
    _add_metaspace(msgspec.structs.replace(given, fields=fields), built, [], without="first")
    return built


def _siglip_template(given: _Given, built: Tokenizer) -> Any:
    end = given.token("eos")
    return processors.TemplateProcessing(
        single=["$A", end], pair=["$A", end, "$B", end], special_tokens=[(end, _id(built, end))]
    )


def _xlm_roberta(given: _Given) -> Tokenizer:
    return _sentence_pieces(given, unknown=3)


def _camembert(given: _Given) -> Tokenizer:
    words, unknown = given.vocabulary("Unigram"), given.token("unk")
    places = (place for place, (piece, _) in enumerate(words) if piece == unknown)
    return _sentence_pieces(given, unknown=next(places, 0))


def _sentence_pieces(given: _Given, *, unknown: int) -> Tokenizer:
    words = given.vocabulary("Unigram")
    built = Tokenizer(models.Unigram(vocab=words, unk_id=unknown, byte_fallback=False))
    charsmap = given.charsmap()
    if charsmap is not None:
        built.normalizer = normalizers.Precompiled(charsmap)
    _add_metaspace(given, built, [pre_tokenizers.WhitespaceSplit()], without="never")
    return built


def _t5(given: _Given) -> Tokenizer:
    fields = {**given.fields, "add_prefix_space": True}
    return _sentence_pieces(msgspec.structs.replace(given, fields=fields), unknown=2)


def _albert(given: _Given) -> Tokenizer:
    words = given.vocabulary("Unigram")
    built = Tokenizer(models.Unigram(vocab=words, unk_id=1, byte_fallback=False))
    steps: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not given.fields.get("keep_accents", False):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if given.fields.get("do_lower_case", True):
        steps.append(normalizers.Lowercase())
    charsmap = given.charsmap()
    if charsmap is not None:
        steps.append(normalizers.Precompiled(charsmap))
    built.normalizer = normalizers.Sequence(steps)
    _add_metaspace(given, built, [pre_tokenizers.WhitespaceSplit()], without="never")
    return built


def _deberta(given: _Given) -> Tokenizer:
    words, unknown = given.vocabulary("Unigram"), (given.token("unk"), 0.0)
    place = words.index(unknown) if unknown in words else given.fields.get("unk_id", 1)
    built = Tokenizer(models.Unigram(vocab=words, unk_id=place, byte_fallback=False))
    steps: list[Any] = [normalizers.Lowercase()] if given.fields.get("do_lower_case") else []
    steps += [
        normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " "),
        normalizers.NFC(),
        normalizers.Strip(left=False, right=True),
    ]
    built.normalizer = normalizers.Sequence(steps)
    split = given.fields.get("split_by_punct", False)
    first = [pre_tokenizers.Punctuation(behavior="isolated")] if split else []
    _add_metaspace(given, built, first, without="first")
    return built


def _add_metaspace(given: _Given, built: Tokenizer, first: list[Any], *, without: str) -> None:
    scheme = "always" if given.fields.get("add_prefix_space", True) else without
    marked = pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme=scheme)
    built.pre_tokenizer = pre_tokenizers.Sequence([*first, marked])
    built.decoder = decoders.Metaspace(replacement=_SPACE, prepend_scheme=scheme)


def _id(built: Tokenizer, token: str) -> int:
    number = built.token_to_id(token)
    if number is None:
        raise ValueError(f"the vocabulary has no `{token}`")
    return number


def _bert_template(given: _Given, built: Tokenizer, start: str = "", end: str = "") -> Any:
    """Return BERT's template.

    ALBERT has other tokens at the start and the end of a row: `start` and `end`.
    """
    cls, sep = given.token("cls"), given.token("sep")
    start, end = start or cls, end or sep
    return processors.TemplateProcessing(
        single=f"{start}:0 $A:0 {end}:0",
        pair=f"{start}:0 $A:0 {end}:0 $B:1 {end}:1",
        special_tokens=[(start, _id(built, cls)), (end, _id(built, sep))],
    )


def _roberta_template(given: _Given, built: Tokenizer) -> Any:
    trims, spaced = given.fields.get("trim_offsets", True), given.fields.get("add_prefix_space")
    return _doubled(given, built, trims, bool(spaced))


def _mpnet_template(given: _Given, built: Tokenizer) -> Any:
    return _doubled(given, built, True, False)


def _doubled(given: _Given, built: Tokenizer, *flags: bool) -> Any:
    cls, sep = given.token("cls"), given.token("sep")
    return processors.RobertaProcessing((sep, _id(built, sep)), (cls, _id(built, cls)), *flags)


def _xlm_template(given: _Given, built: Tokenizer) -> Any:
    start, end = given.token("bos"), given.token("eos")
    return processors.TemplateProcessing(
        single=[start, "$A", end],
        pair=[start, "$A", end, end, "$B", end],
        special_tokens=[(start, _id(built, start)), (end, _id(built, end))],
    )


def _t5_template(given: _Given, built: Tokenizer) -> Any:
    return processors.TemplateProcessing(
        single=["$A", "</s>"],
        pair=["$A", "</s>", "$B", "</s>"],
        special_tokens=[("</s>", _id(built, given.token("eos")))],
    )


class _Spec(msgspec.Struct, frozen=True):
    """Describes a tokenizer class: its special tokens, and the function that builds a tokenizer."""

    tokens: Mapping[str, _Written]
    build: Callable[[_Given], Tokenizer] | None = None
    template: Callable[[_Given, Tokenizer], Any] | None = None


def _angled(unk: str, mask: _Written) -> dict[str, _Written]:
    ends: dict[str, _Written] = {"bos_token": "<s>", "eos_token": "</s>"}
    between: dict[str, _Written] = {"cls_token": "<s>", "sep_token": "</s>"}
    return {**ends, **between, "unk_token": unk, "pad_token": "<pad>", "mask_token": mask}


_SPACED_MASK = {"content": "<mask>", "lstrip": True}
_BRACKETS: Mapping[str, _Written] = MappingProxyType(
    {"unk_token": "[UNK]", "sep_token": "[SEP]", "cls_token": "[CLS]", "mask_token": "[MASK]"}
)
_BERT = _Spec({**_BRACKETS, "pad_token": "[PAD]"}, _word_pieces, _bert_template)
_ENDS: Mapping[str, _Written] = MappingProxyType({"bos_token": "[CLS]", "eos_token": "[SEP]"})
_GEMMA: Mapping[str, _Written] = MappingProxyType(
    {f"{role}_token": f"<{role}>" for role in ("bos", "eos", "unk", "pad", "mask")}
)
_SPECS: Mapping[str, _Spec] = MappingProxyType(
    {
        GENERIC: _Spec({}),
        "BertTokenizer": _BERT,
        "DistilBertTokenizer": _BERT,
        "RobertaTokenizer": _Spec(_angled("<unk>", "<mask>"), _byte_pairs, _roberta_template),
        "XLMRobertaTokenizer": _Spec(_angled("<unk>", "<mask>"), _xlm_roberta, _xlm_template),
        "CamembertTokenizer": _Spec(_angled("<unk>", _SPACED_MASK), _camembert, _xlm_template),
        "MPNetTokenizer": _Spec(_angled("[UNK]", _SPACED_MASK), _word_pieces, _mpnet_template),
        "AlbertTokenizer": _Spec(
            {**_BRACKETS, **_ENDS, "unk_token": "<unk>", "pad_token": "<pad>"}, _albert
        ),
        "DebertaV2Tokenizer": _Spec(
            {**_BRACKETS, **_ENDS, "pad_token": "[PAD]"}, _deberta, _bert_template
        ),
        "CLIPTokenizer": _Spec(
            {
                "bos_token": "<|startoftext|>",
                "eos_token": "<|endoftext|>",
                "unk_token": "<|endoftext|>",
                "pad_token": "<|endoftext|>",
            },
            _clip,
            _clip_template,
        ),
        "SiglipTokenizer": _Spec(
            {
                role: {"content": content, "lstrip": True, "rstrip": True}
                for role, content in (
                    ("eos_token", "</s>"),
                    ("unk_token", "<unk>"),
                    ("pad_token", "</s>"),
                )
            },
            _siglip,
            _siglip_template,
        ),
        "Siglip2Tokenizer": _Spec(_GEMMA, _siglip2),
        "T5Tokenizer": _Spec(
            {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}, _t5, _t5_template
        ),
        "Qwen2Tokenizer": _Spec(
            dict.fromkeys(("unk_token", "eos_token", "pad_token"), "<|endoftext|>"), _qwen
        ),
        "GemmaTokenizer": _Spec(_GEMMA, _gemma),
    }
)
