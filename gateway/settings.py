"""Reads the settings of a gateway process from its environment, once.

The reloadable document is `gateway.config.document`; these are the settings that need a restart.
Every variable is `SLUICEGATE_` and the field's name in capitals.
"""

import contextlib
import difflib
import os
import re
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from gateway.errors import ConfigurationError
from gateway.sockets.tcp_keepalive import TcpKeepalive

PREFIX = "SLUICEGATE_"
_SENT = ("admin_key", "metrics_key", "second_admin_key", "second_metrics_key", "backend_token")
_KEPT = ("events_keep", "events_keep_bytes", "usage_events_keep")
# Variables that commands, clients and `compose.yaml` read, and that are not settings.
_OTHERS = (
    *("admin_certificate", "admin_url", "demo_key", "key", "url"),
    *("database_password", "grafana_password", "redis_password"),
)
_REGION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")


# Bounded, since infinity has no value in milliseconds or nanoseconds.
_MAX_DURATION = 1e9
_Duration = Annotated[float, msgspec.Meta(ge=0, le=_MAX_DURATION)]
_Seconds = Annotated[int, msgspec.Meta(ge=1, le=32_767)]
_Bound = Annotated[int, msgspec.Meta(ge=0)]
# The supervisor checks once a second for heartbeats that come twice a second.
_MIN_HEARTBEAT_TIMEOUT = 2.0
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the process settings; URLs are those of redis-py and of SQLAlchemy."""

    data_dir: Path = Path(".sluicegate")
    """Event logs, the SQLite ledger, metrics files: must survive a restart of the process."""
    config: Path = Path("config")
    """The folder of the configuration document."""
    placement: Path | None = None
    """A YAML file whose `regions` replace the document's; written by `sluicegate up`."""
    cache_url: str = "redis://127.0.0.1:6379/0"
    state_url: str = "redis://127.0.0.1:6380/0"
    ledger_url: str = ""
    """Empty: SQLite in `data_dir`."""
    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 8080
    grpc_port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 0
    """Where clients of the Open Inference Protocol connect over gRPC, on `host`; 0: nowhere."""
    admin_host: str = "127.0.0.1"
    admin_port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 8081
    admin_key: str = ""
    """The key of the operator `admin`, who may do everything."""
    metrics_key: str = ""
    """The key by which Prometheus reads metrics of the operators' listener, and nothing else."""
    second_admin_key: str = ""
    """A second admin key, accepted during a rotation."""
    second_metrics_key: str = ""
    """A second metrics key, accepted during a rotation."""
    oidc_issuer: str = ""
    """The identity provider whose tokens operators may use: its `iss`; empty: none."""
    oidc_audience: str = ""
    """The `aud` that tokens must have."""
    oidc_jwks_url: str = ""
    """Where its keys are; empty: where its discovery document says."""
    oidc_ca: Path | None = None
    """CAs of the identity provider, PEM; `None`: those of the system."""
    oidc_name_claim: str = "sub"
    """The claim by which the audit names operators."""
    oidc_roles_claim: str = "roles"
    """The claim that has their roles; with dots where it is inside others."""
    oidc_roles: str = ""
    """What values of that claim stand for, as `platform-team=operator`, with blanks between; empty:
    they are names of roles."""
    playground_url: str = ""
    """Where the console's playground sends requests; empty: the customers' listener at `host`."""
    region: str = ""
    """The gateway region this is in, where there are several; each has Redis of its own, and limits
    are divided among them through the ledger. Empty: this is the only one."""
    stream_urls: str = ""
    """The state Redis of every region that billing reads, with blanks between; empty: its own."""
    secret: str = ""
    """Keys the cache's tags; gateways that share a Redis share it. Empty: a file in `data_dir`."""
    backend_token: str = ""
    """Shared with backends, which then refuse calls without it."""
    upstream_ca: Path | None = None
    """CAs of the backends at `https://`, PEM; `None`: those of the system."""
    upstream_certificate: Path | None = None
    """The certificate shown to backends, PEM, with its key if there is no `upstream_key`."""
    upstream_key: Path | None = None
    tls_certificate: Path | None = None
    """The certificate shown to customers, PEM, with its key if there is no `tls_key`; `None`: their
    listeners speak plain HTTP and gRPC."""
    tls_key: Path | None = None
    admin_tls_certificate: Path | None = None
    """The same for operators."""
    admin_tls_key: Path | None = None
    admin_tls_client_ca: Path | None = None
    """CAs of operators, PEM; their requests then need a certificate of one of them."""
    hsts_max_age: _Bound | None = None
    """Seconds of `Strict-Transport-Security`, 0: none; `None`: a year where TLS is served."""
    trusted_proxies: str = ""
    """Networks of proxies, with blanks or commas between, that say from whom a request came."""
    forwarded_header: Literal["x-forwarded-for", "forwarded"] = "x-forwarded-for"
    """The header by which they say it."""
    proxy_protocol: bool = False
    """Whether connections from trusted proxies begin with a header of the PROXY protocol."""
    max_connections_per_address: _Bound = 0
    """Connections of a worker that an address has at a time, without those of trusted proxies,
    whose requests under way count instead; 0: no bound."""
    worker: str = "0"
    """The name of this worker among those of the data directory."""
    listen_fd: int | None = None
    """An inherited listening socket; `None` binds `host` and `port`."""
    sibling_fds: str = ""
    """The inherited listening sockets of the other workers, with blanks between."""
    heartbeat_fd: int | None = None
    """An inherited pipe to the supervisor, which watches that the event loop writes to it."""
    heartbeat_timeout: _Duration = 10.0
    """Seconds without a heartbeat after which the supervisor replaces a process; 0: never."""
    memory_limit_bytes: _Bound = 1024 * 1024 * 1024
    """Resident memory above which the supervisor replaces a gateway process; 0: no bound."""
    backend_memory_limit_bytes: _Bound | None = None
    """The same for each backend of `sluicegate up`; `None`: four fifths of the memory of machine or
    container, divided among them."""
    fast_lane: bool = True
    """Whether a worker answers requests that need no waiting in its HTTP protocol."""
    max_loop_delay: _Duration = 0.5
    """Seconds of an event-loop iteration above which a worker sheds load; 0: never."""
    shutdown_delay: _Duration = 5.0
    """Seconds that a stopping process keeps serving while its readiness fails."""
    drain: _Duration = 10.0
    """Seconds that requests in flight are given at shutdown, after that."""
    head_timeout: _Duration = 10.0
    """Seconds from a request's first byte, or the connection's opening, to the end of its head."""
    keep_alive: _Duration = 75.0
    """Seconds that a connection may be idle between two requests."""
    files: str = ""
    """Where the contents of tenants' files are: a folder that all gateways of a ledger share, or
    `s3://bucket/prefix`; empty: `files` in `data_dir`."""
    files_keep: _Duration = 30 * 86_400.0
    """Seconds after which a file is removed, unless its owner says less."""
    file_max_bytes: Annotated[int, msgspec.Meta(ge=1)] = 200 << 20
    """The largest file."""
    files_max: Annotated[int, msgspec.Meta(ge=1)] = 1000
    """Files of a tenant."""
    files_max_bytes: Annotated[int, msgspec.Meta(ge=1)] = 20 << 30
    """Bytes of a tenant's files."""
    file_upload_timeout: _Duration = 600.0
    """Seconds that the upload of a file may take."""
    batches: bool = True
    """Whether the supervisor runs a process for batches."""
    batches_at_once: Annotated[int, msgspec.Meta(ge=1)] = 4
    """Batches that it runs at a time."""
    batches_max_open: Annotated[int, msgspec.Meta(ge=1)] = 20
    """Batches of a tenant that have not ended."""
    batch_max_lines: Annotated[int, msgspec.Meta(ge=1)] = 100_000
    """Lines of a batch."""
    batch_max_line_bytes: Annotated[int, msgspec.Meta(ge=1)] = 8 << 20
    """Bytes of a line."""
    batch_max_output_bytes: Annotated[int, msgspec.Meta(ge=1)] = 4 << 30
    """Bytes of a batch's output, after which its lines are refused."""
    batch_in_flight: Annotated[int, msgspec.Meta(ge=1)] = 16
    """Lines that are asked for at a time, of all batches that a process runs."""
    batch_part_lines: Annotated[int, msgspec.Meta(ge=1)] = 500
    """Lines after which the results of a batch are stored; so many may be asked for again after a
    crash."""
    webhooks: Path | None = None
    """A YAML file that says by tenant where to tell of the end of batches, and with what secret."""
    max_connections: Annotated[int, msgspec.Meta(ge=1)] = 4096
    """Connections that a worker has at a time; more are answered 503."""
    events_interval: Annotated[float, msgspec.Meta(ge=0.01, le=60.0)] = 1.0
    """Seconds between two looks for new events, which then travel together: usage appears in the
    ledger so much later."""
    events_sync_interval: Annotated[float, msgspec.Meta(ge=0.05, le=60.0)] = 0.5
    """Seconds after which a worker's usage events are synced to the device at the latest; a power
    cut loses what was answered since."""
    events_keep: float = 2 * 86_400.0
    """Seconds that segments of event logs are kept once the ledger has them, so that a ledger that
    is restored from a backup gets them again."""
    events_keep_bytes: int = 4 << 30
    """What those may take at most."""
    usage_events_keep: float = 3 * 86_400.0
    """Seconds that billing keeps each usage event in the ledger; then those of an hour that are
    alike are added up to one row."""
    state_timeout: Annotated[float, msgspec.Meta(ge=0.01, le=60.0)] = 1.0
    """The timeout of calls to the state Redis; limits then use the local share."""
    tcp_keepalive_idle: _Seconds = 5
    """Seconds without a packet after which the peer of a connection is probed."""
    tcp_keepalive_interval: _Seconds = 2
    """Seconds between two probes."""
    tcp_keepalive_count: Annotated[int, msgspec.Meta(ge=1, le=127)] = 3
    """Unanswered probes after which the connection is closed."""
    tcp_user_timeout: Annotated[float, msgspec.Meta(ge=0.001, le=1e6)] = 10.0
    """Seconds that sent data or probes may stay unacknowledged, on systems that support it."""
    log_level: str = "INFO"
    log_format: Literal["json", "text"] = "json"
    """What a line is: an object, or text to be read by people."""
    log_requests: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    """The share of requests that have a line; those that fail with 500 or above always have one."""
    log_requests_per_second: _Bound = 20
    """Lines of requests that a worker writes in a second."""
    logs: Literal["stdout", "files"] = "stdout"
    """Where `sluicegate gateway` has its processes' lines go: to its own standard output, or to a
    file of each below `data_dir`."""

    @property
    def streams(self) -> tuple[str, ...]:
        """The Redis of every stream that billing reads."""
        return tuple(self.stream_urls.split()) or (self.state_url,)

    @property
    def tcp_keepalive(self) -> TcpKeepalive:
        """The keep-alive of connections to Redis and to backends."""
        return TcpKeepalive(
            idle=self.tcp_keepalive_idle,
            interval=self.tcp_keepalive_interval,
            count=self.tcp_keepalive_count,
            user_timeout=self.tcp_user_timeout,
        )

    @property
    def ledger(self) -> str:
        """The SQLAlchemy URL of the ledger."""
        return self.ledger_url or f"sqlite:///{(self.data_dir / 'ledger.db').absolute()}"

    @property
    def metrics_dir(self) -> Path:
        """Where the workers' metric files are, for one page over all of them."""
        return self.data_dir / "metrics"

    @property
    def events_dir(self) -> Path:
        """Where event logs are, one folder per log."""
        return self.data_dir / "events"


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Return the settings that `environ` (the process's when `None`) spells.

    Raises:
        ConfigurationError: a variable does not fit its field.
    """
    source = os.environ if environ is None else environ
    own = (variable for variable in source if variable.startswith(PREFIX))
    values = {variable.removeprefix(PREFIX).lower(): source[variable] for variable in own}
    _check_sent(values)
    try:
        settings = msgspec.convert(values, Settings, strict=False, dec_hook=_decode)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"the environment does not fit the settings: {error}") from error
    _check(settings)
    if settings.region and not _REGION.fullmatch(settings.region):
        raise ConfigurationError(
            f"`{PREFIX}REGION` must be 1 to 32 letters, digits, `.`, `_` or `-`, the first a letter"
            " or digit"
        )
    return settings


def unknown_variables(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each `SLUICEGATE_` variable that is not a setting.

    Backends check the variables that begin with `SLUICEGATE_BACKEND_`.
    """
    known = [PREFIX + name.upper() for name in (*Settings.__struct_fields__, *_OTHERS)]
    for variable in sorted(environ):
        if variable in known or variable.startswith(f"{PREFIX}BACKEND_"):
            continue
        if variable.startswith(PREFIX):
            nearest = difflib.get_close_matches(variable, known, n=1)
            hint = f"; did you mean `{nearest[0]}`?" if nearest else ""
            yield f"`{variable}` is not a setting and is ignored{hint}"


def _check(settings: Settings) -> None:
    for name in _KEPT:
        if not getattr(settings, name) >= 0:
            raise ConfigurationError(f"`{PREFIX}{name.upper()}` must be 0 or more")
    for name in settings.__struct_fields__:
        if getattr(settings, name) != getattr(settings, name):
            raise ConfigurationError(f"`{PREFIX}{name.upper()}` must be a number")
    if 0 < settings.heartbeat_timeout < _MIN_HEARTBEAT_TIMEOUT:
        raise ConfigurationError(
            f"`{PREFIX}HEARTBEAT_TIMEOUT` must be 0 (never) or at least {_MIN_HEARTBEAT_TIMEOUT:g}"
        )
    if settings.log_level.upper() not in _LEVELS:
        raise ConfigurationError(f"`{PREFIX}LOG_LEVEL` must be one of {', '.join(_LEVELS)}")


def _decode(kind: type, value: object) -> object:
    if kind is Path:
        return Path(str(value))
    raise NotImplementedError(kind)


def _check_sent(values: Mapping[str, str]) -> None:
    """Refuse secrets that no header can carry, without showing them."""
    for name in _SENT:
        value = values.get(name, "")
        if value != value.strip() or not value.isprintable():
            raise ConfigurationError(
                f"`{PREFIX}{name.upper()}` cannot be sent in a header: is there a line break in it,"
                " or a blank at one of its ends?"
            )


def environment(settings: Settings) -> dict[str, str]:
    """Return the variables that make a child process load `settings`."""
    values = {name: getattr(settings, name) for name in settings.__struct_fields__}
    return {PREFIX + n.upper(): str(v) for n, v in values.items() if v is not None}


def process_environment() -> MutableMapping[str, str]:
    """Return the process's environment, for libraries with variables of their own (`OTEL_*`)."""
    return os.environ


def export_metrics_dir(settings: Settings) -> None:
    """Make the metrics library write to files that the admin listener adds up.

    Call it before the library is imported, which is when it decides.
    """
    with contextlib.suppress(OSError):  # on a full disk metrics stay in memory until there is room
        settings.metrics_dir.mkdir(parents=True, exist_ok=True)
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(settings.metrics_dir)
