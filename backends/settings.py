"""Reads the settings of a backend process: from the environment, then the command line."""

import difflib
import math
import os
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from backends.cores import usable_cores
from backends.errors import StartProblem
from backends.otlp_variables import is_push_wanted, is_tracing_wanted

_PROJECT = "SLUICEGATE_"
PREFIX = f"{_PROJECT}BACKEND_"
# Settings of `sluicegate up`, which passes its whole environment on.
_OF_GATEWAYS = (f"{PREFIX}MEMORY_LIMIT_BYTES",)

_BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

Provider = Literal["cpu", "openvino", "cuda", "tensorrt", "open_inference", "paced"]
Duration = Annotated[float, msgspec.Meta(ge=0)]
Arena = Literal["kSameAsRequested", "kNextPowerOfTwo"]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Share = Annotated[int, msgspec.Meta(ge=0)]


class BackendSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds the settings of one process; each can be set as `SLUICEGATE_BACKEND_<NAME>`.

    `more_models` is a second repository: its models are served beside those of `models`, and of a
    name that is in both, that of `models`.
    `serves` names the models to serve, by patterns with commas between them; what these build on is
    loaded, too. Gateways may assign others.
    `threads` is the number of one-thread runs at a time per encoder (0: what `models tune`
    found, or one per core);
    `wide` says when a batch runs on all of them: by load, `always` or `never`.
    `expanded_bytes` bounds what large items may take of memory together, as their labels, choices
    or tokens are more than they themselves.
    `max_batch_rows` of 0 is what `models tune` found, or what the device wants; so are
    `max_batch_tokens` of 0, `gpu_memory_bytes` of 0 and `gpu_graph_rows` that are not given: see
    `device_defaults`. `gpu_fp16` and `gpu_tf32` say which precisions a graph in fp32 may run in.
    `batch_order` is `arrival` for what common batchers do, to measure against: the oldest rows
    of a class together, whatever their lengths.
    `bulk_share` is the share of the time in which a bulk batch runs while interactive work comes.
    `session_memory_bytes` bounds what the graphs of open sessions weigh together (0: nothing does):
    beyond it, the sessions used longest ago are closed until they are used again.
    After SIGTERM a backend serves on for `shutdown_delay` and says that it is not ready; then
    `drain` bounds the time that work in flight gets. `heartbeat_fd` is a pipe to a supervisor,
    which watches that the event loop writes to it. A revision that was replaced while
    serving answers calls that name it for `retire_after` more. `token` is a secret shared with
    the gateways, and `second_token` is accepted beside it, while the secret is rotated; both are
    taken from the environment alone. With `tls_certificate` (and `tls_key`,
    where that file does not hold the key) TLS is served; with `tls_client_ca` callers
    need a certificate of that CA. What begins with `gpu_` is for `cuda`
    and `tensorrt` only.
    `open_inference` has the graphs run by the server at `upstream_url`, so many batches at a time
    of each as `upstream_runs`. That is also the server of models that name none; `upstream_token`,
    from the environment alone, is sent to it and to no other.
    `paced` computes nothing: a batch takes `paced_base`, and `paced_token` for each of its tokens,
    in seconds of waiting. It is for tests of what surrounds a model.
    """

    models: Path = Path("models")
    more_models: Path | None = None
    serves: str = "*"
    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8100
    region: str = "local"
    backend_id: str = "local-0"
    threads: Share = 0
    wide: Literal["auto", "always", "never"] = "auto"
    tokenizer_threads: Positive = 2
    provider: Provider = "cpu"
    device: Share = 0
    gpu_runs: Annotated[int, msgspec.Meta(ge=1, le=3)] = 2
    gpu_processes: Positive = 1
    gpu_memory_bytes: Share = 0
    gpu_arena: Arena = "kSameAsRequested"
    gpu_length_multiple: Positive = 8
    gpu_bucket_steps: Positive = 4
    gpu_graph_rows: Share | None = None
    gpu_graph_tokens: Positive = 2048
    gpu_attention_kernels: Share = 0
    gpu_fp16: bool = True
    gpu_tf32: bool = True
    gpu_engine_cache: Path | None = None
    upstream_url: str = ""
    upstream_token: str = ""
    upstream_runs: Annotated[int, msgspec.Meta(ge=1, le=256)] = 4
    paced_base: Duration = 2e-3
    paced_token: Duration = 5e-4
    token: str = ""
    second_token: str = ""
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    shutdown_delay: Annotated[float, msgspec.Meta(ge=0)] = 5.0
    drain: Annotated[float, msgspec.Meta(ge=0)] = 10.0
    heartbeat_fd: Annotated[int, msgspec.Meta(ge=0)] | None = None
    retire_after: Annotated[float, msgspec.Meta(ge=0)] = 60.0
    exit_with_parent: bool = False
    max_body_bytes: Positive = 32 * 1024 * 1024
    expanded_bytes: Positive = 256 * 1024 * 1024
    max_batch_rows: Share = 0
    max_batch_tokens: Share = 0
    batch_order: Literal["length", "arrival"] = "length"
    bulk_share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.04
    max_queue_rows: Positive = 4096
    max_queue_tokens: Positive = 262_144
    session_memory_bytes: Share = 0
    row_cache_bytes: Share = 64 * 1024 * 1024
    traces: bool = False
    pushes_metrics: bool = False

    @property
    def own_assignment(self) -> tuple[str, ...]:
        """The patterns of `serves`."""
        return tuple(filter(None, (each.strip() for each in self.serves.split(","))))

    @property
    def tokens(self) -> tuple[str, ...]:
        """The secrets of which a caller must have one."""
        return tuple(filter(None, (self.token, self.second_token)))

    @property
    def worker_threads(self) -> int:
        """How many runs an encoder does at a time."""
        return self.threads or usable_cores()


def read_settings(environment: Mapping[str, str] | None = None, **given: object) -> BackendSettings:
    """Return the settings; `given` (what is not `None`) wins over `environment`.

    Raises:
        StartProblem: a value is wrong; the message names its variable.
    """
    if environment is None:
        environment = os.environ
    values: dict[str, Any] = {
        "traces": is_tracing_wanted(environment),
        "pushes_metrics": is_push_wanted(environment),
    }
    for field in msgspec.structs.fields(BackendSettings):
        if (text := environment.get(PREFIX + field.name.upper())) is not None:
            values[field.name] = _convert(field, text)
    values.update({name: value for name, value in given.items() if value is not None})
    try:
        settings = msgspec.convert(values, BackendSettings, dec_hook=_path)
    except msgspec.ValidationError as error:
        raise StartProblem(f"a setting is wrong: {error}") from None
    if not settings.own_assignment:
        raise StartProblem(
            f"`{PREFIX}SERVES` is wrong: it names no model; write `*` for all, or `-` for "
            "none until a gateway assigns some"
        )
    _check_tokens(settings)
    if not math.isfinite(settings.drain):
        raise StartProblem("a setting is wrong: `drain` must be a finite number of seconds")
    return settings


def _check_tokens(settings: BackendSettings) -> None:
    """Refuse tokens that no header can carry, without showing them."""
    for name in ("token", "second_token"):
        value = getattr(settings, name)
        if value != value.strip() or not value.isprintable():
            raise StartProblem(
                f"`{PREFIX}{name.upper()}` cannot be sent in a header: is there a line break in it,"
                " or a blank at one of its ends?"
            )


def unknown_variables(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each variable that begins like a setting of backends and is none."""
    known = [PREFIX + field.name.upper() for field in msgspec.structs.fields(BackendSettings)]
    for variable in sorted(environment):
        if not variable.startswith(PREFIX) or variable in (*known, *_OF_GATEWAYS):
            continue
        nearest = difflib.get_close_matches(variable, known, n=1)
        hint = f"; did you mean `{nearest[0]}`?" if nearest else ""
        yield f"`{variable}` is not a setting and is ignored{hint}"


def _convert(field: msgspec.structs.FieldInfo, text: str) -> object:
    try:
        return msgspec.convert(text, field.type, strict=False, dec_hook=_path)
    except msgspec.ValidationError as error:
        name = PREFIX + field.name.upper()
        raise StartProblem(f"`{name}` is wrong: {error}") from None


def _path(kind: type, value: object) -> object:
    """Make the one type msgspec does not know."""
    return Path(value) if kind is Path and isinstance(value, str) else value


def process_environment() -> MutableMapping[str, str]:
    """Return the process's environment, for libraries with variables of their own (`OTEL_*`)."""
    return os.environ


def foreign_environment() -> dict[str, str]:
    """Return the environment for a process that runs foreign code: no setting, so no secret."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_PROJECT)}


def quiet_libraries() -> None:
    """Configure native libraries, before their import, to send nothing and start no threads.

    ONNX Runtime sends telemetry by default; tokenizers would start a thread per core.
    """
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def limit_blas_threads() -> None:
    """Have numpy multiply matrices in the calling thread; to be called before its first import.

    OpenBLAS would start a thread for each core, which waits for the next product by spinning, and
    a product would wait for these threads: behind those that run models, for tenths of a second.
    """
    for name in _BLAS_THREADS:
        os.environ.setdefault(name, "1")
