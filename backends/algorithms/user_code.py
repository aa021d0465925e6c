"""Imports a model owner's algorithm, and reads the types of its parameters and result."""

import importlib
import importlib.machinery
import importlib.util
import inspect
import sys
import traceback
import typing
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
from typing_extensions import Buffer, override

from sluicegate.backends.algorithms import authoring

_FUNCTION = "run"
_FORMER_NAME = "backends.algorithms.authoring"
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class UserCode(msgspec.Struct, frozen=True, kw_only=True):
    """Holds `run(item, ask, **parameters)`, and the types of its item, result and parameters."""

    run: Callable[..., Awaitable[Any]]
    item: Any
    result: Any
    parameters: Any


class _Uncached(importlib.machinery.SourceFileLoader):
    """Imports a file without writing byte code, which would change the digest of the folder."""

    @override
    def set_data(self, path: str, data: Buffer, *, _mode: int = 0o666) -> None:
        pass


class _FormerName(ModuleType):
    """Stands for `sluicegate.algorithms` under its former name, and warns who uses it."""

    @override
    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):
            warnings.warn(
                f"`{_FORMER_NAME}` has moved: import `{name}` from `sluicegate.algorithms`",
                FutureWarning,  # Python shows it to everybody, unlike a `DeprecationWarning`
                stacklevel=2,
            )
        return getattr(authoring, name)


def read_user_code(code: str, folder: Path) -> UserCode:
    """Import `FILE.py` of a model's folder, or an entry point `package.module:function`.

    Raises:
        ValueError: the code is missing, cannot be imported, or has no valid `run`. The message
            names the source line.
    """
    sys.modules.setdefault(_FORMER_NAME, _FormerName(_FORMER_NAME))
    if code.endswith(".py"):
        module, name = _import_file(folder / Path(code).name), _FUNCTION
    else:
        path, _, name = code.partition(":")
        module, name = _import_module(path), name or _FUNCTION
    run = getattr(module, name, None)
    if not inspect.iscoroutinefunction(run):
        raise ValueError(f"found no `async def {name}(item, ask)` in `{code}`")
    try:
        return _read_types(run)
    except (TypeError, NameError) as error:
        raise ValueError(f"cannot use the types of `{name}` in `{code}`: {error}") from None


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ValueError(f"names a file that is missing: {path}")
    # A unique name, because two revisions of one algorithm may be loaded at the same time.
    name = f"_sluicegate_{path.stem}_{abs(hash(path.resolve())):x}"
    loader = _Uncached(name, str(path))
    spec = importlib.util.spec_from_loader(name, loader)
    if spec is None:
        raise ValueError(f"names a file that is not Python: {path}")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look up their module by name.
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except BaseException as error:  # noqa: BLE001 - foreign code may raise anything
        del sys.modules[name]
        raise ValueError(f"cannot import {error_location(error, path.name)}: {error}") from None
    return module


def _import_module(path: str) -> ModuleType:
    try:
        return importlib.import_module(path)
    except BaseException as error:  # noqa: BLE001 - foreign code may raise anything
        raise ValueError(f"cannot import `{path}`: {type(error).__name__}: {error}") from None


def _read_types(run: Callable[..., Awaitable[Any]]) -> UserCode:
    hints = typing.get_type_hints(run, include_extras=True)
    arguments = list(inspect.signature(run).parameters.values())
    if len(arguments) < 2 or any(p.kind not in _POSITIONAL for p in arguments[:2]):  # noqa: PLR2004
        raise TypeError("its first two parameters must be `item` and `ask`")
    fields: list[Any] = []
    for parameter in arguments[2:]:
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            raise TypeError(f"`{parameter.name}` must be keyword-only: put it after a `*`")
        kind = hints.get(parameter.name, Any)
        has_default = parameter.default is not inspect.Parameter.empty
        fields.append(
            (parameter.name, kind, parameter.default) if has_default else (parameter.name, kind)
        )
    found = UserCode(
        run=run,
        item=hints.get(arguments[0].name, Any),
        result=hints.get("return", Any),
        parameters=msgspec.defstruct(
            "Parameters", fields, kw_only=True, forbid_unknown_fields=True
        ),
    )
    for kind in (found.item, found.result, found.parameters):
        msgspec.json.Decoder(kind)  # raises `TypeError` if JSON cannot represent the type
    return found


def error_location(error: BaseException, file: str) -> str:
    """Return the type of an error and its line in `file`.

    The error's message is left out, because it may contain input.
    """
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).name == file]
    where = f"{file}, line {lines[-1]}" if lines else file
    return f"`{type(error).__name__}` in {where}"
