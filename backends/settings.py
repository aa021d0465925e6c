"""Reads the settings of a backend process from the environment and the command line."""

import os
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from sluicegate.backends.errors import StartProblem
from sluicegate.wire import settings as variables
from sluicegate.wire.cores import usable_cores
from sluicegate.wire.otlp.variables import is_push_wanted, is_tracing_wanted
from sluicegate.wire.settings import (
    COUNT,
    Bytes,
    Count,
    Duration,
    FileDescriptor,
    HeaderSecret,
    Port,
    PositiveBytes,
    PositiveCount,
    Seconds,
    unit,
)

_PROJECT = "SLUICEGATE_"
PREFIX = f"{_PROJECT}BACKEND_"
# Variables of `sluicegate up`, which passes its whole environment to backends.
_OF_GATEWAYS = (f"{PREFIX}MEMORY_LIMIT_BYTES",)

_BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

Provider = Literal["cpu", "openvino", "cuda", "tensorrt", "open_inference", "paced"]
Arena = Literal["kSameAsRequested", "kNextPowerOfTwo"]


class BackendSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds the settings of one process; each can be set as `SLUICEGATE_BACKEND_<NAME>`.

    A setting is `None` if the backend chooses the value.
    """

    models: Path = Path("models")
    """The folder of the model repository."""
    more_models: Path | None = None
    """A second model repository. If both have a model of the same name, the model of the first is
    used."""
    serves: str = "*"
    """The models to serve: names and patterns, separated by commas. With `-`, no model is served
    until a gateway assigns models. The backend also loads the models that the served models build
    on."""
    host: str = "127.0.0.1"
    """The address of the listener for gateways."""
    port: Port = 8100
    """The port of the listener for gateways."""
    region: str = "local"
    """The region of the backend."""
    backend_id: str = "local-0"
    """The name of the backend, unique in its region."""
    threads: PositiveCount | None = None
    """The number of batches that each encoder runs at a time, with one thread each. Unset: the
    result of `sluicegate models tune` on this machine, else one for each core. If the container has
    a quota, its number of cores is the quota, rounded up."""
    wide: Literal["auto", "always", "never"] = "auto"
    """When a batch runs on all threads: `always`, `never`, or `auto`. With `auto`, a batch runs on
    all threads if no other batch runs, and if all threads are faster than one thread."""
    tokenizer_threads: PositiveCount = 2
    """The number of threads that tokenize."""
    provider: Provider = "cpu"
    """What runs the graphs: `cpu` (ONNX Runtime), `openvino`, `cuda`, `tensorrt`, or
    `open_inference` (another server). If the chosen runtime is missing, the backend does not
    start, and does not fall back to the CPU. `paced` is for tests: it computes nothing and takes
    a set time."""
    device: Annotated[int, unit("number"), Meta(ge=0)] = 0
    """The index of the GPU."""
    gpu_runs: Annotated[int, COUNT, Meta(ge=1, le=3)] = 2
    """The number of runs in flight on the GPU for each encoder."""
    gpu_processes: PositiveCount = 1
    """The number of backends that share the GPU."""
    gpu_memory_bytes: PositiveBytes | None = None
    """The most GPU memory of an encoder's memory arena. Unset: nine tenths of the device's memory
    are divided into equal shares, and an arena gets one share. There is a share for each encoder in
    each of the `GPU_PROCESSES` backends. One more share in each backend is for a new revision,
    which is loaded while the old one serves. The last tenth of the memory is for libraries and
    captured graphs."""
    gpu_arena: Arena = "kSameAsRequested"
    """How the memory arena grows: `kSameAsRequested` or `kNextPowerOfTwo`."""
    gpu_length_multiple: PositiveCount = 8
    """The length of a batch is rounded up to a multiple of this many tokens."""
    gpu_bucket_steps: PositiveCount = 4
    """The number of rows and the length of a batch are rounded up. This setting is the number of
    allowed sizes between a power of two and the next power of two."""
    gpu_graph_rows: Count | None = None
    """The most rows of a batch that runs as a CUDA graph; 0: no batch runs as a CUDA graph. Unset:
    4 with the provider `cuda` and a graph that can be captured, else 0. For a small batch, starting
    the kernels one by one takes longer than the kernels themselves, and a CUDA graph starts them
    together. Larger batches gain nothing. Each captured shape takes memory, and time at the
    start."""
    gpu_graph_tokens: PositiveCount = 2048
    """The most tokens, with padding, of a batch that runs as a CUDA graph."""
    gpu_attention_kernels: PositiveCount | None = None
    """The value of ONNX Runtime's option `sdpa_kernel`. Unset: ONNX Runtime chooses."""
    gpu_fp16: bool = True
    """Whether a GPU computes in fp16 for a model that is stored in fp32, if its outputs stay close
    enough to fp32. fp16 halves the memory traffic, and uses the fastest tensor cores. The model's
    `profile` is then `fp16`. Set `false` if a GPU must give the same results as CPUs."""
    gpu_tf32: bool = True
    """Whether a GPU multiplies matrices in TF32 for a model in fp32 that does not run in fp16. TF32
    has a mantissa of 10 bits, as fp16 has, and the range of fp32. Tensor cores do not support fp32,
    and products without tensor cores take several times as long as products in TF32. The model's
    `profile` is then `tf32`. Set `false` if a GPU must give the same results as CPUs."""
    gpu_engine_cache: Path | None = None
    """The folder in which TensorRT keeps the engines that it has built, because building them takes
    minutes. Unset: `.engines` in the model repository."""
    upstream_url: str = ""
    """The URL of a server that speaks the Open Inference Protocol v2. With the provider
    `open_inference`, this server runs all graphs. With another provider, it runs the models whose
    `upstream` has no `url`."""
    upstream_token: str = ""
    """The bearer token for the server at `SLUICEGATE_BACKEND_UPSTREAM_URL`. No other server gets
    the token. It is read from the environment only."""
    upstream_runs: Annotated[int, COUNT, Meta(ge=1, le=256)] = 4
    """With the provider `open_inference`, the most batches of a graph that are in flight on the
    other server."""
    paced_base: Seconds = 2e-3
    """With the provider `paced`, the seconds that a batch takes."""
    paced_token: Seconds = 5e-4
    """With the provider `paced`, the seconds that each token of a batch adds."""
    token: HeaderSecret = ""
    """The secret that gateways must send. It is read from the environment only."""
    second_token: HeaderSecret = ""
    """A second secret that is also accepted, during a rotation. It is read from the environment
    only."""
    tls_certificate: Path | None = None
    """The file with the backend's certificate, PEM. If set, the backend only accepts TLS."""
    tls_key: Path | None = None
    """The file with the private key of `SLUICEGATE_BACKEND_TLS_CERTIFICATE`. Unset: the
    certificate's file also contains the key."""
    tls_client_ca: Path | None = None
    """The file with the certificate authorities of gateways, PEM. If set, calls need a client
    certificate from one of them."""
    shutdown_delay: Seconds = 5.0
    """Seconds for which a backend still serves after SIGTERM, while it reports that it is not
    ready. This time must exceed 1.2 times the gateways' probe interval, which grows with the number
    of backends. Use more than 5 seconds from 1,600 backends on, and at least 7 seconds for 2,000
    backends."""
    drain: Duration = 10.0
    """Seconds that calls in flight have to end after the shutdown delay."""
    heartbeat_fd: FileDescriptor | None = None
    """The descriptor of an inherited pipe for heartbeats of the event loop. The supervisor sets
    it."""
    retire_after: Seconds = 60.0
    """Seconds for which a replaced revision still answers calls that name it."""
    exit_with_parent: bool = False
    """Whether the backend stops when its parent process ends."""
    max_body_bytes: PositiveBytes = 32 * 1024 * 1024
    """The largest body of a call; larger calls are refused."""
    expanded_bytes: PositiveBytes = 256 * 1024 * 1024
    """Memory for items that take much more memory than their bodies. These are items with labels in
    a template, with choices, or with tokens to show or count. Tenants share this memory fairly. An
    item waits for room until its deadline, and then gets 503. An item that needs more than 8/9 of
    this memory is refused."""
    max_batch_rows: PositiveCount | None = None
    """The most rows of a batch. Unset: the result of `sluicegate models tune` on this machine, else
    16 on a CPU (64 for a static model) and 256 on a GPU. A CPU gains nothing from more rows. A GPU
    needs 256 short rows to be busy."""
    max_batch_tokens: PositiveCount | None = None
    """The most tokens of a batch, with padding. Unset: 4,096 on a CPU, and 32,768 on a GPU, which
    is 256 rows of 128 tokens. With a small arena, a GPU's default is lower. Then it is the largest
    power of two for which `GPU_RUNS` batches, with 64 KiB for each token, fit into the arena. It is
    at least 4,096."""
    batch_order: Literal["length", "arrival"] = "length"
    """`length` batches rows of similar lengths. `arrival` batches the oldest rows of one traffic
    class and output, whatever their lengths. `arrival` is a baseline for measurements."""
    bulk_share: Annotated[float, unit("share"), Meta(gt=0, le=1)] = 0.04
    """The share of the time in which bulk batches run while there is interactive work, and until 10
    s after the last interactive batch. Bulk rows are the rows of batch jobs, of refreshes of stale
    results, and of shadow revisions. During this time, bulk batches run one at a time, with pauses
    of at most 2 s. A running batch is not interrupted. So a larger share makes interactive callers
    wait longer, and a smaller share makes batch jobs slower. Without interactive work, bulk batches
    may use the whole device."""
    max_queue_rows: PositiveCount = 4096
    """The most rows that may wait. While the queue is full, new calls get `overloaded`, and
    admitted items wait for room, for at most half of their remaining time."""
    max_queue_tokens: PositiveCount = 262_144
    """The most tokens that may wait."""
    model_memory_bytes: Bytes = 0
    """The most bytes of loaded models, measured by the size of their files; 0: all models are
    loaded at the start. With a bound, a model is loaded when a call needs it, and a model that is
    little used makes room. See [Many models](../models.md#many-models)."""
    pinned: str = ""
    """With `MODEL_MEMORY_BYTES`, the models that are always loaded: names and patterns, separated
    by commas."""
    row_cache_bytes: Bytes = 64 * 1024 * 1024
    """The size of the row cache."""
    traces: bool = False
    """Whether the backend records spans. By default, OpenTelemetry's variables decide."""
    pushes_metrics: bool = False
    """Whether the backend pushes metrics. By default, OpenTelemetry's variables decide."""

    @property
    def own_assignment(self) -> tuple[str, ...]:
        """The name patterns of `serves`."""
        return tuple(filter(None, (each.strip() for each in self.serves.split(","))))

    @property
    def pinned_models(self) -> tuple[str, ...]:
        """The name patterns of `pinned`."""
        return tuple(filter(None, (each.strip() for each in self.pinned.split(","))))

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
    try:
        settings = variables.read_variables(
            BackendSettings,
            PREFIX,
            environment,
            defaults={
                "traces": is_tracing_wanted(environment),
                "pushes_metrics": is_push_wanted(environment),
            },
            overrides={name: value for name, value in given.items() if value is not None},
        )
    except variables.InvalidVariable as error:
        raise StartProblem(str(error)) from None
    if not settings.own_assignment:
        raise StartProblem(
            f"`{PREFIX}SERVES` names no model; write `*` for all models, or `-` for none until a "
            "gateway assigns some"
        )
    return settings


def unknown_variables(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each `SLUICEGATE_BACKEND_` variable that is not a setting."""
    yield from variables.unknown_variables(BackendSettings, PREFIX, environment, _OF_GATEWAYS)


def process_environment() -> MutableMapping[str, str]:
    """Return the process's environment, for libraries that read it, such as OpenTelemetry."""
    return os.environ


def foreign_environment() -> dict[str, str]:
    """Return the environment for a process that runs foreign code.

    It lacks the project's own variables, which hold settings and secrets.
    """
    return {name: value for name, value in os.environ.items() if not name.startswith(_PROJECT)}


def quiet_libraries() -> None:
    """Disable telemetry of ONNX Runtime and threads of tokenizers; call this before their import.

    By default, ONNX Runtime sends telemetry, and tokenizers start a thread per core.
    """
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def limit_blas_threads() -> None:
    """Make numpy multiply matrices in the calling thread; call this before importing numpy.

    By default, OpenBLAS starts a thread per core, and a product waits for all of them. These
    threads compete with the threads that run models, so a product may take tenths of a second.
    """
    for name in _BLAS_THREADS:
        os.environ.setdefault(name, "1")
