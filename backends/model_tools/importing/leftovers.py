"""Finds the files that an import would leave out, and refuses files that would change results.

Training state and second copies of the weights are reported and left out. Other files with weights
or modules are an error, unless the operator lists them as files to ignore.
"""

import difflib
import os
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path, PurePosixPath

import onnx
from google.protobuf.message import DecodeError
from onnx import external_data_helper

from sluicegate.backends.errors import StartProblem
from sluicegate.backends.model_tools.importing.adapter import WEIGHTS as ADAPTED
from sluicegate.backends.model_tools.importing.setfit_head import (
    HEADS,
    PICKLES as PICKLED_HEADS,
    how_to_convert,
)
from sluicegate.backends.model_tools.importing.source import (
    COLBERT_HEAD,
    SHARDS,
    SPARSE_HEAD,
    WEIGHTS,
    CheckpointFolder,
    read_json,
)
from sluicegate.backends.repository.sentence_modules import module_folders

_HOLDS_WEIGHTS = {
    *(".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".npz", ".npy"),
    *(".onnx", ".onnx_data", ".h5", ".msgpack", ".ot", ".gguf", ".skops"),
}
# The folder of a module in the form that sentence transformers use: a number and the class.
_MODULE = re.compile(r"\d{1,2}_[A-Z]\w*/")
_TRAINING = re.compile(
    r"(.*/)?(optimizer.*\.(pt|bin)|scheduler.*\.(pt|bin)|scaler.*\.pt|training_args\.bin"
    r"|trainer_state\.json"
    r"|(rng_state|random_states).*\.(pth|pkl|pt)|[\w.-]*optim_states\.pt)"
)
_TRAINING_FOLDERS = re.compile(
    r"((last|best)[-_])?checkpoints?([-_][\w.-]+)?|global_step\d+|runs|logs|wandb"
)
_COPIES = re.compile(
    r"pytorch_model[\w.-]*\.bin|adapter_model\.bin|tf_model[\w.-]*\.h5|flax_model[\w.-]*\.msgpack|rust_model\.ot"
    r"|model([.-][\w.-]*)?\.safetensors|[\w.-]+\.onnx(_data)?|model\.ckpt[\w.-]*"
    r"|[\w.-]+\.gguf"
)
_COPY_FOLDERS = {"onnx", "openvino", "coreml", "gguf", "mlx"}
_KNOWN = {
    "sparse_linear.pt": f"the sparse vectors of BGE-M3, a pickle: save it as `{SPARSE_HEAD}`",
    "colbert_linear.pt": f"the token vectors of BGE-M3, a pickle: save it as `{COLBERT_HEAD}`",
}
_STATE, _COPY = "training state", "a second copy of the weights"
_WORDS = ("ForMaskedLM", "ForPreTraining", "ForCausalLM")
_TOLD = ("tasks", "outputs", "pooling")
_MOST_NAMED = 3


def files_of(folder: Path) -> list[str]:
    """Return the names of all files below a folder, except hidden files.

    Entries that vanish meanwhile are left out.
    """
    found: list[str] = []
    for place, folders, names in os.walk(folder):  # unlike `Path.rglob`, it skips what vanishes
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = [Path(place, name) for name in names if not name.startswith(".")]
        found += [path.relative_to(folder).as_posix() for path in paths if path.is_file()]
    return sorted(found)


def check_leftovers(
    source: CheckpointFolder, names: Iterable[str], ignored: Collection[str]
) -> list[str]:
    """Return one line for each file or folder that is left out.

    `names` are the names of all files, and `ignored` the names that the operator wants to leave
    out.

    Raises:
        StartProblem: a file has weights or a module that the import cannot use, or an `ignored`
            name does not exist.
    """
    found = [*names, *(files_of(source.folder) if source.adapter is not None else ())]
    if source.graph is None and source.table is None and not {WEIGHTS, SHARDS}.intersection(found):
        return []  # reading the weights will raise a better error
    unread = dict(_unread(source, found))
    words = _words_alone(source)
    left = [given.rstrip("/") for given in ignored]
    _check_known(source.folder, left, [*unread, *found, *([words] if words else [])])
    wrong = [each for each, why in unread.items() if not why and not _is_left(each, left)]
    if wrong:
        raise StartProblem(_refusal(source, wrong))
    if words is not None and words not in left:
        raise StartProblem(
            f"`{source.folder / 'config.json'}` names `{words}`, a head that predicts words and is "
            "not supported; import a model that was trained for a task, or drop the head with "
            f"`--ignore {words}`, so that the mean of the tokens becomes the text's vector"
        )
    return [
        *(f"{name}: named by `--ignore`" for name in left),
        *(f"{name}: {why}" for name, why in unread.items() if why and not _is_left(name, left)),
    ]


def _check_known(folder: Path, left: Iterable[str], known: Collection[str]) -> None:
    for name in left:
        if not any(_is_left(each, [name]) for each in known):
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean `{close[0]}`?" if close else ""
            raise StartProblem(f"`--ignore {name}`: `{folder}` has no such file{hint}")


def _is_left(name: str, left: Iterable[str]) -> bool:
    """Return whether a file, or a folder that contains it, is in `left`."""
    return any(name == each or name.startswith(f"{each}/") for each in left)


def _refusal(source: CheckpointFolder, names: list[str]) -> str:
    for name in PICKLED_HEADS:
        if name in names:
            return how_to_convert(source.folder, name)
    folder = source.folder
    if source.adapter is not None and (source.adapter.folder / names[0]).exists():
        folder = source.adapter.folder
    named = [f"`{name}`{_meaning(name)}" for name in names[:_MOST_NAMED]]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    options = " ".join(f"--ignore {name}" for name in names)
    return (
        f"`{folder}` has {', '.join(named)}{more}: weights or modules that the import cannot use; "
        f"export the whole model to ONNX and import that, or leave them out with `{options}`"
    )


def _meaning(name: str) -> str:
    known = _KNOWN.get(PurePosixPath(name).name)
    return f" ({known})" if known else ""


def _unread(source: CheckpointFolder, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield files with weights, and folders of modules, that an import does not read.

    Each name comes with the reason why it may be left out. An empty reason means that it must not
    be left out.
    """
    listed = module_folders(source.find)
    used = {*_used_weights(source), *source.heads, *(f"{folder}/{WEIGHTS}" for folder in listed)}
    beside: set[str] | None = None
    for name in names:
        first, slash, _ = name.partition("/")
        if _MODULE.match(name) and first not in listed:
            yield first, ""
        elif slash and _is_training(first):
            yield first, _STATE
        elif _TRAINING.fullmatch(name):
            yield name, _STATE
        elif PurePosixPath(name).suffix in _HOLDS_WEIGHTS and name not in used:
            beside = _graph_files(source) if beside is None else beside
            if name in beside:
                continue
            if slash and first in _COPY_FOLDERS:
                yield first, _COPY
            else:
                yield name, _why_copy(source, PurePosixPath(name), listed)


def _is_training(folder: str) -> bool:
    return _TRAINING_FOLDERS.fullmatch(folder) is not None


def _why_copy(source: CheckpointFolder, name: PurePosixPath, listed: Collection[str]) -> str:
    """Return what a file, judged by its name, is a second copy of; empty if it is none."""
    if name.as_posix() in {*HEADS, *PICKLED_HEADS}:
        return "a second copy of the head" if source.head is not None else ""
    if name.with_suffix(".safetensors").name in source.heads:
        return _COPY
    is_beside = name.parent.as_posix() in {".", *listed}
    return _COPY if is_beside and _COPIES.fullmatch(name.name) is not None else ""


def _used_weights(source: CheckpointFolder) -> set[str]:
    used = {source.head.source} if source.head is not None else set()
    if source.adapter is not None:
        used.add(ADAPTED)
    if source.graph is not None:
        return used
    if source.table is not None or (source.folder / WEIGHTS).is_file():
        return {WEIGHTS, *used}
    places = read_json(source.folder / SHARDS).get("weight_map")
    return {str(name) for name in places.values()} | used if isinstance(places, dict) else used


def _graph_files(source: CheckpointFolder) -> set[str]:
    """Return the file of the graph, and the files of its external data."""
    if source.graph is None:
        return set()
    folder = source.graph.relative_to(source.folder).parent
    try:
        model = onnx.load(str(source.graph), load_external_data=False)
    except (OSError, DecodeError):
        return {(folder / source.graph.name).as_posix()}  # reading the graph will raise the error
    places = [
        external_data_helper.ExternalDataInfo(tensor).location
        for tensor in model.graph.initializer
        if external_data_helper.uses_external_data(tensor)
    ]
    return {(folder / name).as_posix() for name in (source.graph.name, *places)}


def _words_alone(source: CheckpointFolder) -> str | None:
    """Return the class of a checkpoint if its only head predicts words; else `None`.

    If the folder has modules, or fields such as `tasks`, the checkpoint has another use.
    """
    names = source.config.get("architectures") or [""]
    is_told = source.modules or source.ranking or any(name in source.fields for name in _TOLD)
    if source.graph is not None or is_told or not str(names[0]).endswith(_WORDS):
        return None
    return str(names[0])
