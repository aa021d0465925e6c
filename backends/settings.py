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
    """Holds the settings of one process; each can be set as `SLUICEGATE_BACKEND_<NAME>`."""

    models: Path = Path("models")
    """The folder of the model repository."""
    more_models: Path | None = None
    """A second repository; the first one wins a name that both have."""
    serves: str = "*"
    """The models to serve: names and patterns, separated by commas; `-`: none until a gateway
    assigns some. Models that these build on are loaded, too."""
    host: str = "127.0.0.1"
    """The address of the listener for gateways."""
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8100
    """The port of the listener for gateways."""
    region: str = "local"
    """The region of the backend."""
    backend_id: str = "local-0"
    """The name of the backend, unique in its region."""
    threads: Share = 0
    """Batches at a time for each encoder, one thread each; 0: the result of `sluicegate models
    tune` on this machine, or one for each core. Cores are those of the process or its container's
    quota, rounded up."""
    wide: Literal["auto", "always", "never"] = "auto"
    """When a batch runs on all threads: `auto` (while it is alone and that is faster), `always`,
    `never`."""
    tokenizer_threads: Positive = 2
    """The number of threads that tokenize."""
    provider: Provider = "cpu"
    """`cpu` (ONNX Runtime), `openvino`, `cuda` or `tensorrt`; a missing one is an error, without
    fallback to the CPU. `open_inference`: another server runs the graphs. `paced`: for tests,
    computes nothing and takes a set time."""
    device: Share = 0
    """The index of the GPU."""
    gpu_runs: Annotated[int, msgspec.Meta(ge=1, le=3)] = 2
    """The number of runs in flight on the GPU for each encoder, 1 to 3."""
    gpu_processes: Positive = 1
    """The number of backends that share the GPU."""
    gpu_memory_bytes: Share = 0
    """The most GPU memory of an encoder's arena. 0 is its share: nine tenths of the device's
    memory, divided by `GPU_PROCESSES` and by the encoders that are served and one more. A tenth is
    left for libraries and captured graphs, and the share of one more encoder for a revision that is
    loaded while the one before it serves."""
    gpu_arena: Arena = "kSameAsRequested"
    """How the arena grows: `kSameAsRequested` or `kNextPowerOfTwo`."""
    gpu_length_multiple: Positive = 8
    """Batches are padded to a multiple of this many tokens."""
    gpu_bucket_steps: Positive = 4
    """Rows and tokens of a batch are rounded up to this many sizes in each doubling."""
    gpu_graph_rows: Share | None = None
    """Batches of at most this many rows run as CUDA graphs; 0 is none. Unset is 4 for the forms
    that can be captured, on CUDA: a small batch takes less time on the device than the start of its
    kernels, which a graph starts together. Larger batches gain nothing, and every shape takes time
    at the start and memory."""
    gpu_graph_tokens: Positive = 2048
    """Batches of at most this many tokens, padding included, run as CUDA graphs."""
    gpu_attention_kernels: Share = 0
    """ONNX Runtime's `sdpa_kernel`; 0 is its own choice."""
    gpu_fp16: bool = True
    """A model in fp32 runs in fp16 on a GPU where the gate passes: half the memory traffic, and the
    fastest tensor cores. The model's `profile` is then `fp16`; set `false` where its answers are to
    be those of CPUs."""
    gpu_tf32: bool = True
    """A model in fp32 that does not run in fp16 computes its products in TF32, with the 10 bits of
    fp16 and the range of fp32: the tensor cores of a GPU have no fp32, and a product takes several
    times as long without them. The model's `profile` is then `tf32`; set `false` where its answers
    are to be those of CPUs."""
    gpu_engine_cache: Path | None = None
    """The folder in which TensorRT keeps the engines it built; unset is `.engines` in the model
    repository, so that a start need not build them for minutes."""
    upstream_url: str = ""
    """An Open Inference Protocol v2 server: it runs all graphs with `open_inference`, else graphs
    whose `upstream` has no `url`."""
    upstream_token: str = ""
    """The bearer token for this server only; from the environment only."""
    upstream_runs: Annotated[int, msgspec.Meta(ge=1, le=256)] = 4
    """With `open_inference`, the most batches of a graph in flight on that server."""
    paced_base: Duration = 2e-3
    """With `paced`, the seconds that a batch takes."""
    paced_token: Duration = 5e-4
    """With `paced`, the seconds that each token of a batch adds."""
    token: str = ""
    """The secret shared with gateways; from the environment only."""
    second_token: str = ""
    """A second token, accepted during a rotation; from the environment only."""
    tls_certificate: Path | None = None
    """The file with the certificate, PEM. If set, the backend serves TLS only."""
    tls_key: Path | None = None
    """The file with the key of the certificate; unset: the certificate's file has the key."""
    tls_client_ca: Path | None = None
    """The file with the CAs of gateways, PEM. If set, calls need a client certificate."""
    shutdown_delay: Annotated[float, msgspec.Meta(ge=0)] = 5.0
    """Seconds that a backend serves after SIGTERM while it reports that it is not ready. Must
    exceed 1.2 times the time between two probes: set more than 5 from 1,600 backends on, at least 7
    for 2,000."""
    drain: Annotated[float, msgspec.Meta(ge=0)] = 10.0
    """Seconds that calls in flight have to end after the shutdown delay."""
    heartbeat_fd: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """An inherited pipe, set by the supervisor."""
    retire_after: Annotated[float, msgspec.Meta(ge=0)] = 60.0
    """Seconds that a replaced revision still answers calls that name it."""
    exit_with_parent: bool = False
    """Whether the backend stops when its parent process ends."""
    max_body_bytes: Positive = 32 * 1024 * 1024
    """The largest body of a call; larger calls are refused."""
    expanded_bytes: Positive = 256 * 1024 * 1024
    """Memory for large items (labels in a template, choices, shown or counted tokens), divided
    fairly among tenants. Items wait for room within their deadline, else get 503; one above 8/9 of
    it is refused."""
    max_batch_rows: Share = 0
    """Rows of a batch. 0 is what `sluicegate models tune` found on this machine, or 16 on a CPU,
    which gains nothing beyond, and 256 on a GPU, which is idle with fewer short rows."""
    max_batch_tokens: Share = 0
    """Tokens of a batch, padding included. 0 is 4,096 on a CPU; on a GPU it is 32,768, so that 256
    rows of 128 tokens fill it, or the power of two below that leaves 64 KiB of the arena for each
    token of the `GPU_RUNS` batches in flight, but at least 4,096."""
    batch_order: Literal["length", "arrival"] = "length"
    """`arrival`, a baseline for measurements, batches the oldest rows of one traffic class and
    output whatever their lengths."""
    bulk_share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.04
    """The share of the time in which a batch of bulk rows (of request batches, refreshes of stale
    answers, shadow revisions) runs, within 10 s of interactive work; one at a time, whatever the
    device's slots. A batch that runs is not interrupted, so more of it makes callers wait longer,
    and less of it makes request batches slower. Pauses between them are 2 s at most. Without
    interactive work, bulk work has the whole device."""
    max_queue_rows: Positive = 4096
    """Rows that may wait; admitted items wait for room for half of their time, new calls get
    `overloaded`."""
    max_queue_tokens: Positive = 262_144
    """The largest number of tokens that may wait."""
    session_memory_bytes: Share = 0
    """Bytes of open graphs, by the size of their files; 0: no bound. Beyond it the least recently
    used sessions close, and reopen with their next batch, which waits."""
    row_cache_bytes: Share = 64 * 1024 * 1024
    """The size of the cache of rows."""
    traces: bool = False
    """Whether spans are recorded; set by the variables of OpenTelemetry."""
    pushes_metrics: bool = False
    """Whether metrics are pushed; set by the variables of OpenTelemetry."""

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
