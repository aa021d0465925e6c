"""Reads the settings of a backend process from the environment and the command line."""

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
# Variables of `sluicegate up`, which passes its whole environment to backends.
_OF_GATEWAYS = (f"{PREFIX}MEMORY_LIMIT_BYTES",)

_BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

Provider = Literal["cpu", "openvino", "cuda", "tensorrt", "open_inference", "paced"]
Duration = Annotated[float, msgspec.Meta(ge=0)]
Arena = Literal["kSameAsRequested", "kNextPowerOfTwo"]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Share = Annotated[int, msgspec.Meta(ge=0)]


class BackendSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds the settings of one process; each can be set as `SLUICEGATE_BACKEND_<NAME>`.

    Models:

    - `more_models` is a second repository. If both have a model with the same name, `models` wins.
    - `serves` has name patterns of the models to serve, separated by commas. Models that these
      build on are loaded, too. Gateways may assign other models.
    - `retire_after`: for these seconds, a replaced revision still answers calls that name it.

    Batches:

    - `threads` is the number of worker threads per encoder (0: the value that `models tune` found,
      or one per core). `wide` tells when one batch uses all threads: by load, `always` or `never`.
    - `max_batch_rows`, `max_batch_tokens` and `gpu_memory_bytes` of 0, and an unset
      `gpu_graph_rows`, mean the default for the device; see `device_defaults`.
    - `batch_order` of `arrival` batches the oldest rows regardless of their length. It is a
      baseline for benchmarks.
    - `bulk_share` is the fraction of time for bulk batches while interactive batches come.

    Memory:

    - `expanded_bytes` limits the memory of all large items in progress, with their labels, choices
      and tokens.
    - `session_memory_bytes` limits the total size of open graphs (0: no limit). The least recently
      used sessions are closed, and reopened on demand.

    Stopping:

    - After SIGTERM, a backend serves for another `shutdown_delay` and reports that it is not ready.
      Then calls in flight get `drain` seconds.
    - `heartbeat_fd` is a pipe to a supervisor, to which the event loop writes regularly.

    Trust:

    - `token` is a secret shared with the gateways. `second_token` is accepted, too, while the
      secret is rotated. Both can only be set in the environment.
    - `tls_certificate` enables TLS; `tls_key` is needed if the certificate's file does not contain
      the key. With `tls_client_ca`, callers need a certificate of this CA.

    Providers:

    - Settings that begin with `gpu_` apply to `cuda` and `tensorrt` only. `gpu_fp16` and `gpu_tf32`
      allow these precisions for a graph in fp32.
    - `open_inference` runs all graphs on the server at `upstream_url`, with `upstream_runs` batches
      of each graph at a time. This is also the default server of models with an `upstream`.
      `upstream_token` is only sent to this server, and can only be set in the environment.
    - `paced` computes nothing. A batch waits `paced_base` seconds, and `paced_token` seconds for
      each of its tokens. It is for tests without models.
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
        """The name patterns of `serves`."""
        return tuple(filter(None, (each.strip() for each in self.serves.split(","))))

    @property
    def tokens(self) -> tuple[str, ...]:
        """The accepted secrets; a caller must send one of them."""
        return tuple(filter(None, (self.token, self.second_token)))

    @property
    def worker_threads(self) -> int:
        """The number of concurrent runs of an encoder."""
        return self.threads or usable_cores()


def read_settings(environment: Mapping[str, str] | None = None, **given: object) -> BackendSettings:
    """Return the settings; values of `given` that are not `None` override `environment`.

    Raises:
        StartProblem: a value is invalid; the message names its variable.
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
        raise StartProblem(f"a setting is invalid: {error}") from None
    if not settings.own_assignment:
        raise StartProblem(
            f"`{PREFIX}SERVES` names no model; write `*` for all models, or `-` for none until a "
            "gateway assigns some"
        )
    _check_tokens(settings)
    if not math.isfinite(settings.drain):
        raise StartProblem("a setting is invalid: `drain` must be a finite number of seconds")
    return settings


def _check_tokens(settings: BackendSettings) -> None:
    """Refuse tokens that cannot be sent in a header, without showing them in the message."""
    for name in ("token", "second_token"):
        value = getattr(settings, name)
        if value != value.strip() or not value.isprintable():
            raise StartProblem(
                f"`{PREFIX}{name.upper()}` cannot be sent in a header; remove line breaks, and "
                "spaces at its ends"
            )


def unknown_variables(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each variable with the prefix of settings that is not a setting."""
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
        raise StartProblem(f"`{name}` is invalid: {error}") from None


def _path(kind: type, value: object) -> object:
    """Convert to `Path`, the only type here that msgspec does not support."""
    return Path(value) if kind is Path and isinstance(value, str) else value


def process_environment() -> MutableMapping[str, str]:
    """Return the process's environment, for libraries that read it, such as OpenTelemetry."""
    return os.environ


def foreign_environment() -> dict[str, str]:
    """Return the environment for a process with foreign code: without settings and secrets."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_PROJECT)}


def quiet_libraries() -> None:
    """Disable telemetry of ONNX Runtime and threads of tokenizers; call this before their import.

    By default, ONNX Runtime sends telemetry, and tokenizers start a thread per core.
    """
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def limit_blas_threads() -> None:
    """Make numpy multiply matrices in the calling thread; call this before importing numpy.

    By default, OpenBLAS starts a thread per core, and a product waits for all of them. They compete
    with the threads that run models, so a product may take tenths of a second.
    """
    for name in _BLAS_THREADS:
        os.environ.setdefault(name, "1")
