"""Reads which modules a sentence transformer runs after its encoder.

`modules.json` lists the modules in order. Each module has a folder with a `config.json`. A module
or option that is not supported is an error, because every vector would be wrong without it.
"""

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args

import msgspec

from sluicegate.backends.errors import ModelProblem

Files = Callable[[str], Path]
PoolingMode = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
FILE = "modules.json"
_POOLING = "1_Pooling"
_CONFIG = "config.json"
_PREFIX = "sentence_transformers."
_REMEDY = "export the whole model to ONNX with an output `sentence_embedding`, and import that"
# The flags that older versions write instead of `pooling_mode`. Vectors are concatenated in the
# order of these flags.
_FLAGS: Mapping[str, PoolingMode] = MappingProxyType(
    {
        "pooling_mode_cls_token": "cls",
        "pooling_mode_max_tokens": "max",
        "pooling_mode_mean_tokens": "mean",
        "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
        "pooling_mode_weightedmean_tokens": "weightedmean",
        "pooling_mode_lasttoken": "lasttoken",
    }
)
_WIDTH = ("embedding_dimension", "word_embedding_dimension")
_PROJECTION = "pylate.models.Dense.Dense"
_SPLADE, _MASK = "SpladePooling", "MultiVectorMask"
_VECTOR, _TOKENS = "sentence_embedding", "token_embeddings"
_LOGIT_SCORE = "LogitScore"
_TokenId = Annotated[int, msgspec.Meta(ge=0)]
_OF_VECTORS = ("module_input_name", "module_output_name")


class DenseModule(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a linear layer and its activation."""

    folder: str
    inputs: int
    outputs: int
    bias: bool
    activation: str


class LayerNormModule(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a layer normalization."""

    folder: str
    width: int


class NormalizeModule(msgspec.Struct, frozen=True, kw_only=True):
    """Scales vectors to length one."""


class LogitScore(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks by the logit of one word, less the logit of another word if there is one."""

    true_token_id: _TokenId
    false_token_id: _TokenId | None = None
    module_input_name: Literal["causal_logits"] = "causal_logits"


class SpladeModule(msgspec.Struct, frozen=True, kw_only=True):
    """Describes how the logits of words become the weights of a sparse vector."""

    strategy: Literal["max", "sum"]
    doubles_log: bool


class LateModule(msgspec.Struct, frozen=True, kw_only=True):
    """Describes which tokens count in late interaction.

    `skipped` are words whose vectors are left out of documents. PyLate keeps them in another file,
    so they are `None` there.
    """

    skipped: tuple[str, ...] | None = None


VectorModule = DenseModule | LayerNormModule | NormalizeModule


class SentenceModules(msgspec.Struct, frozen=True, kw_only=True):
    """Holds how token vectors are pooled, and the modules that follow.

    The vectors of several pooling modes are concatenated. Without `include_prompt`, the tokens of a
    prompt are not pooled. `table` is the folder of a `StaticEmbedding`, which is an encoder and its
    pooling; `None` for other encoders. A model with `splade` or `late` has no pooling: it predicts
    words, or has a vector for each token, after the layers `projection`.
    """

    table: str | None = None

    pooling: tuple[PoolingMode, ...] = ("mean",)
    include_prompt: bool = True
    after: tuple[VectorModule, ...] = ()
    splade: SpladeModule | None = None
    projection: tuple[DenseModule, ...] = ()
    late: LateModule | None = None

    @property
    def is_pooled(self) -> bool:
        """Whether the model makes one dense vector of a text."""
        return self.splade is None and self.late is None


def read_modules(files: Files, known: Collection[str] = ()) -> SentenceModules | None:
    """Return the modules of a folder; `None` if no file describes modules of vectors.

    Classes of custom code are refused, unless they are `known` to do what the class of that name
    does in `sentence_transformers`.

    Raises:
        ModelProblem: a file cannot be read, or has a module or option that is not supported.
    """
    path = files(FILE)
    if path.is_file():
        listed = _listed(path)
        for kind, _ in listed:
            if not kind.startswith(_PREFIX) and kind not in {_PROJECTION, *known}:
                raise ModelProblem(f"{path}: `{kind}` is custom code, which is not run; {_REMEDY}")
        return _Reader(files).read([(_short(kind), folder) for kind, folder in listed])
    later = sorted(each.parent.name for each in path.parent.glob("[2-9]_*/config.json"))
    if later:
        raise ModelProblem(f"{path}: the file is missing, but the folder has `{later[0]}`")
    if not files(f"{_POOLING}/{_CONFIG}").is_file():
        return None
    return _Reader(files).read([("Transformer", ""), ("Pooling", _POOLING)])


def read_logit_score(files: Files) -> tuple[int, ...] | None:
    """Return the ids of the words by which a decoder ranks; `None` if it does not rank.

    Raises:
        ModelProblem: a file cannot be read, or has an option that is not supported.
    """
    path = files(FILE)
    listed = _listed(path) if path.is_file() else []
    if [_short(kind) for kind, _ in listed] != ["Transformer", _LOGIT_SCORE]:
        return None
    path = files(f"{listed[1][1]}/{_CONFIG}")
    try:
        found = msgspec.convert(read_object(path), LogitScore)
    except msgspec.ValidationError as error:
        raise ModelProblem(f"{path}: {error}") from None
    pair = (found.true_token_id, found.false_token_id)
    return tuple(number for number in pair if number is not None)


def module_folders(files: Files) -> set[str]:
    """Return the folders of the modules that `modules.json` lists.

    Without this file, only the folder of the pooling module is returned.

    Raises:
        ModelProblem: the list cannot be read.
    """
    path = files(FILE)
    return {folder for _, folder in _listed(path)} if path.is_file() else {_POOLING}


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; an empty object if there is no file.

    Raises:
        ModelProblem: the file cannot be read, or is not a JSON object.
    """
    document = _read_json(path, {})
    if not isinstance(document, dict):
        raise ModelProblem(f"{path}: the file is not a JSON object")
    return document


def _read_json(path: Path, default: Any) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return default
    except (OSError, ValueError, RecursionError) as error:
        raise ModelProblem(f"{path}: cannot be read as JSON: {error}") from None


def _listed(path: Path) -> list[tuple[str, str]]:
    """Return the class and the folder of each module."""
    found = []
    document = _read_json(path, [])
    for entry in document if isinstance(document, list) else [None]:
        if not isinstance(entry, dict) or not isinstance(entry.get("type"), str):
            raise ModelProblem(f"{path}: the file is not a list of modules")
        kind, folder = str(entry["type"]), str(entry.get("path") or "")
        folder = "" if folder == "." else folder
        if ".." in Path(folder).parts or Path(folder).is_absolute():
            raise ModelProblem(f"{path}: the module `{folder}` is outside of the model's folder")
        found.append((kind, folder))
    return found


def _short(kind: str) -> str:
    """Return the name of a class without its module; PyLate's `Dense` has its own defaults."""
    return kind if kind == _PROJECTION else kind.rpartition(".")[2]


class _Reader:
    def __init__(self, files: Files) -> None:
        self._files = files
        self._pooling: dict[str, Any] = {}
        self._after: list[VectorModule] = []

    def read(self, listed: list[tuple[str, str]]) -> SentenceModules | None:
        path = self._files(FILE)
        if listed and listed[0][0] == "StaticEmbedding":
            return self._with_later(listed[1:], table=listed[0][1])
        kinds = [kind for kind, _ in listed]
        if _SPLADE in kinds and kinds[:1] == ["MLMTransformer"]:
            listed = [("Transformer", listed[0][1]), *listed[1:]]
        if not listed or listed[0][0] != "Transformer":
            found = f"`{listed[0][0]}`, not `Transformer`" if listed else "missing"
            raise ModelProblem(f"{path}: the first module is {found}; {_REMEDY}")
        if listed[0][1]:
            raise ModelProblem(
                f"{path}: the model is in the subfolder `{listed[0][1]}`; load it with "
                "sentence-transformers and save it again"
            )
        if len(listed) == 1 or [kind for kind, _ in listed[1:]] == [_LOGIT_SCORE]:
            return None
        if (unpooled := self._read_unpooled(listed[1:])) is not None:
            return unpooled
        if listed[1][0] != "Pooling":
            raise ModelProblem(
                f"{path}: `{listed[1][0]}` before pooling is not supported; {_REMEDY}"
            )
        self._read_pooling(listed[1][1])
        return self._with_later(listed[2:])

    def _with_later(
        self, listed: list[tuple[str, str]], *, table: str | None = None
    ) -> SentenceModules:
        for kind, folder in listed:
            self._read_later(kind, folder)
        return SentenceModules(table=table, **self._pooling, after=tuple(self._after))

    def _read_unpooled(self, listed: list[tuple[str, str]]) -> SentenceModules | None:
        """Return the modules after the encoder of a SPLADE or ColBERT model; otherwise `None`."""
        kinds = {kind for kind, _ in listed}
        if kinds == {_PROJECTION} or (_MASK in kinds and kinds <= {"Dense", "Normalize", _MASK}):
            layers = [
                self._dense(folder, "torch.nn.Identity")
                for kind, folder in listed
                if kind in {_PROJECTION, "Dense"}
            ]
            masks = [self._mask(folder) for kind, folder in listed if kind == _MASK]
            return SentenceModules(
                projection=tuple(layers), late=masks[0] if masks else LateModule()
            )
        if kinds == {_SPLADE} and len(listed) == 1:
            return SentenceModules(splade=self._splade(listed[0][1]))
        return None

    def _read_pooling(self, folder: str) -> None:
        path, config = self._config(folder)
        if not config:
            raise ModelProblem(f"{path}: the file, which says how to pool tokens, is missing")
        modes: Any = config.pop("pooling_mode", None)
        flags = {name: config.pop(name, False) for name in _FLAGS}
        include_prompt = config.pop("include_prompt", True)
        _refuse_others(path, config, known=_WIDTH)
        if modes is None:
            modes = [_FLAGS[name] for name, is_on in flags.items() if is_on] or ["mean"]
        modes = [modes] if isinstance(modes, str) else modes
        for mode in modes:
            if mode not in get_args(PoolingMode):
                raise ModelProblem(f"{path}: the pooling `{mode}` is not supported; {_REMEDY}")
        self._pooling = {"pooling": tuple(modes), "include_prompt": bool(include_prompt)}

    def _read_later(self, kind: str, folder: str) -> None:
        if kind == "Dropout":
            return
        if kind not in {"Dense", "LayerNorm", "Normalize"}:
            raise ModelProblem(f"{self._files(FILE)}: `{kind}` is not supported; {_REMEDY}")
        if kind == "Dense":
            self._after.append(self._dense(folder, "torch.nn.Tanh", input_name=_VECTOR))
            return
        path, config = self._config(folder)
        _check_names(path, config, _VECTOR)
        try:
            if kind == "LayerNorm":
                width = int(config.pop("dimension"))
                self._after.append(LayerNormModule(folder=folder, width=width))
            else:
                self._after.append(NormalizeModule())
        except KeyError as error:
            raise ModelProblem(f"{path}: the field {error} is missing") from None
        _refuse_others(path, config)

    def _dense(self, folder: str, activation: str, *, input_name: str = _TOKENS) -> DenseModule:
        path, config = self._config(folder)
        _check_names(path, config, input_name)
        try:
            found = DenseModule(
                folder=folder,
                inputs=int(config.pop("in_features")),
                outputs=int(config.pop("out_features")),
                bias=bool(config.pop("bias", True)),
                activation=str(config.pop("activation_function", activation)),
            )
        except KeyError as error:
            raise ModelProblem(f"{path}: the field {error} is missing") from None
        _refuse_others(path, config)
        return found

    def _mask(self, folder: str) -> LateModule:
        path, config = self._config(folder)
        words = config.pop("skiplist_words", None) or []
        if config.pop("skiplist_tasks", None) not in (None, ["document"]):
            raise ModelProblem(f"{path}: `skiplist_tasks` must be `document`; {_REMEDY}")
        _refuse_others(path, config)
        return LateModule(skipped=tuple(map(str, words)))

    def _splade(self, folder: str) -> SpladeModule:
        path, config = self._config(folder)
        strategy = config.pop("pooling_strategy", "max")
        activation = config.pop("activation_function", "relu")
        if strategy not in {"max", "sum"} or activation not in {"relu", "log1p_relu"}:
            raise ModelProblem(
                f"{path}: `{strategy}` pooling with `{activation}` is not supported; {_REMEDY}"
            )
        _refuse_others(path, config, known=(*_WIDTH, "chunk_size"))
        return SpladeModule(strategy=strategy, doubles_log=activation == "log1p_relu")

    def _config(self, folder: str) -> tuple[Path, dict[str, Any]]:
        path = self._files(f"{folder}/{_CONFIG}")
        # The file may be missing: older versions save an empty folder for `Normalize`.
        return path, read_object(path)


def _check_names(path: Path, config: dict[str, Any], expected: str) -> None:
    """Refuse a module that reads or writes other values than `expected`."""
    for name in _OF_VECTORS:
        if config.pop(name, None) not in (None, expected):
            raise ModelProblem(f"{path}: `{name}` must be `{expected}`; {_REMEDY}")


def _refuse_others(path: Path, config: Mapping[str, Any], known: tuple[str, ...] = ()) -> None:
    """Refuse fields of a module's configuration that are set and that `known` does not name."""
    for name, value in config.items():
        if name not in known and value not in (None, False, [], {}):
            raise ModelProblem(f"{path}: `{name}` is not supported; {_REMEDY}")
