"""Reads the settings of a gateway process from its environment, once.

A change of these settings needs a restart. (The configuration document, which
`gateway.config.document` defines, can be reloaded.) The name of a variable is `SLUICEGATE_` and the
field's name in capitals.
"""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from sluicegate.gateway.errors import ConfigurationError
from sluicegate.gateway.sockets.tcp_keepalive import TcpKeepalive
from sluicegate.wire.settings import (
    COUNT,
    SECONDS,
    Bytes,
    Count,
    Duration,
    FileDescriptor,
    HeaderSecret,
    InvalidVariable,
    Port,
    PositiveBytes,
    PositiveCount,
    Seconds,
    Share,
    read_variables,
    unit,
    unknown_variables,
)

PREFIX = "SLUICEGATE_"
# Variables that are not settings of the gateway. Commands, clients and `compose.yaml` read them.
_OTHERS = (
    *("admin_certificate", "admin_url", "demo_key", "key", "url"),
    *("database_password", "grafana_password", "redis_password"),
)
_REGION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
_WholeSeconds = Annotated[int, SECONDS, Meta(ge=1, le=32_767)]
# A shorter timeout would be unsafe: heartbeats are sent twice a second, and the supervisor checks
# once a second.
_MIN_HEARTBEAT_TIMEOUT = 2.0
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the settings of a process. URLs have the formats of redis-py and SQLAlchemy."""

    data_dir: Path = Path(".sluicegate")
    """The folder of event logs, the SQLite ledger and metrics files. It must survive a restart."""
    config: Path = Path("config")
    """The folder of the configuration document."""
    placement: Path | None = None
    """A YAML file with `regions`. They replace the regions in the configuration document.
    `sluicegate up` writes such a file."""
    cache_url: str = "redis://127.0.0.1:6379/0"
    """The Redis of the result cache: one server (`redis://host:port/0`), Sentinels
    (`redis-sentinel://host:port,host:port/0?primary=name`), or a cluster
    (`redis-cluster://host:port,host:port`). Use `rediss…` for TLS."""
    state_url: str = "redis://127.0.0.1:6380/0"
    """The Redis of limits, events and configuration, in the same
    forms as `SLUICEGATE_CACHE_URL`."""
    ledger_url: str = ""
    """The SQLAlchemy URL of the ledger: `postgresql+psycopg://user:password@host/name`, or
    `…@host:5432,other:5432/name` for a primary and its standbys. If it is unset, the ledger is a
    SQLite file in the data directory."""
    host: str = "127.0.0.1"
    """The address of the customers' listener."""
    port: Port = 8080
    """The port of the customers' listener."""
    grpc_port: Port = 0
    """The port for gRPC clients, on `SLUICEGATE_HOST`. With 0, gRPC is off. gRPC needs the extra
    `grpc`, which the images have. If the port is unset, `sluicegate up` uses 8001 if gRPC is
    installed and this port is free."""
    admin_host: str = "127.0.0.1"
    """The address of the operators' listener."""
    admin_port: Port = 8081
    """The port of the operators' listener."""
    admin_key: HeaderSecret = ""
    """The key of the operator `admin`, who may do everything."""
    metrics_key: HeaderSecret = ""
    """The key with which Prometheus reads `/metrics` of the operators' listener. It permits nothing
    else. It must differ from the admin key."""
    second_admin_key: HeaderSecret = ""
    """A second admin key. Both keys are accepted, so that the key can be rotated."""
    second_metrics_key: HeaderSecret = ""
    """A second metrics key. Both keys are accepted, so that the key can be rotated."""
    oidc_issuer: str = ""
    """The identity provider (`iss`) whose tokens operators may use. This needs the extra `oidc`,
    which the gateway's image has."""
    oidc_audience: str = ""
    """The audience (`aud`) that tokens must have."""
    oidc_jwks_url: str = ""
    """The URL of the identity provider's keys. If it is unset, the gateway reads it from the
    provider's discovery document."""
    oidc_ca: Path | None = None
    """The file with the CAs of the identity provider, in PEM. The default is the system's CAs."""
    oidc_name_claim: str = "sub"
    """The claim with the operator's name for the audit log, such as `email`."""
    oidc_roles_claim: str = "roles"
    """The claim with the operator's roles. A dot leads to a nested claim, as in
    `realm_access.roles`. A claim that has a dot in its own name is found, too."""
    oidc_roles: str = ""
    """The role for each value of `SLUICEGATE_OIDC_ROLES_CLAIM`, such as `platform-team=operator`.
    Spaces separate the pairs. If it is unset, the values themselves are names of roles."""
    playground_url: str = ""
    """The address to which the console's playground sends requests, as `http://host:port`. The
    default is the customers' listener of this machine. Set the address if that listener accepts
    connections only from a load balancer."""
    region: str = ""
    """The name of this gateway region, if there are several. Each region has its own Redis, and the
    ledger divides limits among the regions. If it is empty, there is only one region."""
    stream_urls: str = ""
    """For billing with several regions: the URL of each region's state Redis. The URLs have the
    same forms as `SLUICEGATE_CACHE_URL`, and spaces separate them. The default is
    `SLUICEGATE_STATE_URL`."""
    secret: str = ""
    """The secret for the tags of cache keys. All gateways that share a Redis need the same secret.
    If it is unset, each data directory has its own secret, in a file."""
    backend_token: HeaderSecret = ""
    """The token that the gateway sends to backends. A backend that has a token refuses calls
    without it."""
    upstream_ca: Path | None = None
    """The file with the CAs of backends with `https://`, in PEM. The default is the system's
    CAs."""
    upstream_certificate: Path | None = None
    """The file with the gateway's client certificate for backends, in PEM. It also has the key,
    unless `SLUICEGATE_UPSTREAM_KEY` is set."""
    upstream_key: Path | None = None
    """The file with the key of `SLUICEGATE_UPSTREAM_CERTIFICATE`. If it is unset, the certificate's
    file must also have the key."""
    tls_certificate: Path | None = None
    """The file with the certificate of the customers' listeners, in PEM. It also has the key,
    unless `SLUICEGATE_TLS_KEY` is set. Without a certificate, HTTP and gRPC have no TLS."""
    tls_key: Path | None = None
    """The file with the key of `SLUICEGATE_TLS_CERTIFICATE`. If it is unset, the certificate's file
    must also have the key."""
    admin_tls_certificate: Path | None = None
    """The file with the certificate of the operators' listener, in PEM. Without a certificate, the
    listener has no TLS."""
    admin_tls_key: Path | None = None
    """The file with the key of `SLUICEGATE_ADMIN_TLS_CERTIFICATE`. If it is unset, the
    certificate's file must also have the key."""
    admin_tls_client_ca: Path | None = None
    """The file with the CAs of operators, in PEM. If it is set, operators need a client certificate
    in addition to a key or token."""
    hsts_max_age: Annotated[int, SECONDS, Meta(ge=0)] | None = None
    """The seconds in the header `Strict-Transport-Security`. With 0, there is no header. The
    default is a year on listeners with TLS, and no header on others. Set it if a load balancer in
    front of the gateway ends TLS, because the listener then has no TLS."""
    trusted_proxies: str = ""
    """The networks of the proxies that may state the client's address. Spaces or commas separate
    them."""
    forwarded_header: Literal["x-forwarded-for", "forwarded"] = "x-forwarded-for"
    """The header in which proxies send the client's address: `x-forwarded-for`, or `forwarded` (RFC
    7239). The gateway reads only this header."""
    proxy_protocol: bool = False
    """Whether trusted proxies begin each connection to the customers' HTTP listener with a header
    of the PROXY protocol, version 1 or 2."""
    max_connections_per_address: Count = 0
    """The most connections of one client address to a worker. 0 means no limit. Behind a trusted
    proxy, the worker limits the concurrent requests of each client address instead."""
    worker: str = "0"
    """The name of this worker, unique in the data directory. The supervisor sets it."""
    listen_fd: FileDescriptor | None = None
    """An inherited listening socket. The supervisor sets it. If it is unset, the worker itself
    listens on `SLUICEGATE_HOST` and `SLUICEGATE_PORT`."""
    sibling_fds: str = ""
    """The inherited listening sockets of other workers, separated by spaces. The supervisor sets
    it."""
    heartbeat_fd: FileDescriptor | None = None
    """An inherited pipe for heartbeats of the event loop. The supervisor sets it."""
    heartbeat_timeout: Duration = 10.0
    """Seconds without a heartbeat after which the supervisor replaces a process. At least 2, or 0
    for never. For backends of `sluicegate up`, the time is three times as long."""
    memory_limit_bytes: Bytes = 1024 * 1024 * 1024
    """The supervisor replaces a gateway process whose memory, without mapped files, exceeds this
    size. 0 means no limit. The limit must be at least 256 MiB above the document's
    `cache.memory_bytes`. Otherwise, the document is refused."""
    backend_memory_limit_bytes: Bytes | None = None
    """The supervisor of `sluicegate up` replaces a backend whose memory, without mapped files,
    exceeds this size. By default, the backends share four fifths of the memory of the machine or
    container."""
    max_loop_delay: Duration = 0.5
    """The longest event-loop iteration of an overloaded worker, in seconds. 0 means no limit. The
    worker also keeps iterations below a twentieth of the time that callers allow for a request.
    Requests that would make an iteration longer get 503 `overloaded`."""
    shutdown_delay: Duration = 5.0
    """Seconds for which a gateway still serves requests after SIGTERM, while it reports that it is
    not ready. The load balancer must notice this within that time."""
    drain: Duration = 10.0
    """Seconds within which requests in flight must end, counted from the end of
    `SLUICEGATE_SHUTDOWN_DELAY`."""
    head_timeout: Duration = 10.0
    """Seconds within which the head of a request must be complete, counted from the opening of the
    connection or from the first byte of the request. After that, the worker responds with 408, or
    only closes the connection if no byte has arrived. The same limit applies to a TLS handshake
    together with a proxy's header. Over gRPC, it applies to a head and to each message."""
    keep_alive: Duration = 75.0
    """Seconds for which a customer's connection may be idle between requests. The worker also
    closes a connection if its client reads nothing of a response for this time."""
    files: str = ""
    """The place of tenants' files: a folder, or `s3://bucket/prefix`. All gateways that share a
    ledger need the same place. The default is the folder `files` in the data directory, which
    suffices for one machine."""
    files_keep: Duration = 30 * 86_400.0
    """Seconds after which a file is deleted, unless its owner chose a shorter time."""
    file_max_bytes: PositiveBytes = 200 << 20
    """The largest size of a file."""
    files_max: PositiveCount = 1000
    """The most files of a tenant."""
    files_max_bytes: PositiveBytes = 20 << 30
    """The most bytes of a tenant's files, including the files of batch jobs. A tenant that has more
    cannot upload files or create batch jobs."""
    file_upload_timeout: Duration = 600.0
    """Seconds that the upload of a file may take."""
    batches: bool = True
    """Whether the supervisor runs a process for batch jobs."""
    batches_at_once: PositiveCount = 4
    """The number of batch jobs that run at a time. A tenant that has no running batch job may still
    start one in addition."""
    batches_max_open: PositiveCount = 20
    """The most batch jobs of a tenant that have not ended."""
    batch_max_lines: PositiveCount = 100_000
    """The most lines of a batch job."""
    batch_max_line_bytes: PositiveBytes = 8 << 20
    """The most bytes of a line of a batch job."""
    batch_max_output_bytes: PositiveBytes = 4 << 30
    """The most bytes of a batch job's results. When the results reach this size, the remaining
    lines are not run, and fail with `output_too_large`."""
    batch_in_flight: PositiveCount = 16
    """The number of lines that a process runs at a time, of all its batch jobs together. While a
    tenant's lines are refused for lack of capacity, the process runs fewer of this tenant's
    lines."""
    batch_part_lines: PositiveCount = 500
    """The results of a batch job are stored after each chunk of this many lines. After a crash, at
    most this many lines run again."""
    webhooks: Path | None = None
    """A YAML file with the URL and secret of each tenant's webhook. The gateway calls it when a
    batch job ends."""
    max_connections: PositiveCount = 4096
    """The most connections of a worker, including unfinished TLS handshakes. It must be below the
    worker's limit on open files. Up to 256 further connections at a time (16 with TLS) get 503
    `overloaded` with `Retry-After`. Other connections are closed without a response."""
    events_interval: Annotated[float, SECONDS, Meta(ge=0.01, le=60)] = 1.0
    """Seconds between two checks for new usage events. Usage appears in the ledger with this
    delay."""
    events_sync_interval: Annotated[float, SECONDS, Meta(ge=0.05, le=60)] = 0.5
    """The most seconds until a worker's usage events are synced to the disk. A power cut destroys
    events that are not synced."""
    events_keep: Seconds = 2 * 86_400.0
    """Seconds for which event logs are kept after the ledger has their events. A ledger that was
    restored from a backup can then read the events again."""
    events_keep_bytes: Bytes = 4 << 30
    """The most bytes of event logs that are kept after the ledger has their events. The oldest
    events are deleted first."""
    usage_events_keep: Seconds = 3 * 86_400.0
    """Seconds for which the ledger keeps single usage events. `inf` means for ever. After this
    time, the ledger adds up the events of each hour that differ only in their amounts."""
    state_timeout: Annotated[float, SECONDS, Meta(ge=0.01, le=60)] = 1.0
    """Seconds for which workers wait for the state Redis. If it does not respond
    within this time, they admit the fraction `limits.local_share` of each limit."""
    tcp_keepalive_idle: _WholeSeconds = 5
    """Seconds without a packet after which a connection to Redis or a backend is probed."""
    tcp_keepalive_interval: _WholeSeconds = 2
    """Seconds between two keep-alive probes."""
    tcp_keepalive_count: Annotated[int, COUNT, Meta(ge=1, le=127)] = 3
    """A connection is given up after this many keep-alive probes without a response. On Linux,
    `SLUICEGATE_TCP_USER_TIMEOUT` decides instead."""
    tcp_user_timeout: Annotated[float, SECONDS, Meta(ge=0.001, le=1e6)] = 10.0
    """Seconds for which sent data or probes may stay unacknowledged before the connection is given
    up, on systems that support it."""
    log_level: str = "INFO"
    """`DEBUG`, `INFO`, `WARNING` or `ERROR`."""
    log_format: Literal["json", "text"] = "json"
    """The format of log lines: `json` for JSON objects, or `text` for text that people read."""
    log_requests: Share = 0.0
    """The fraction of requests that are logged. Requests that end with 5xx are always logged."""
    log_requests_per_second: Annotated[int, unit("count a second"), Meta(ge=0)] = 20
    """The most requests that a worker logs in a second."""
    logs: Literal["stdout", "files"] = "stdout"
    """Where `sluicegate gateway` writes the log lines of all processes: `stdout`, or `files` in the
    data directory."""

    @property
    def streams(self) -> tuple[str, ...]:
        """The URLs of the Redis servers whose streams billing reads."""
        return tuple(self.stream_urls.split()) or (self.state_url,)

    @property
    def tcp_keepalive(self) -> TcpKeepalive:
        """The TCP keep-alive of connections to Redis and backends."""
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
        """The folder of the metrics files of all processes."""
        return self.data_dir / "metrics"

    @property
    def events_dir(self) -> Path:
        """The folder of event logs. Each log has its own folder in it."""
        return self.data_dir / "events"


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Return the settings in `environ`. The default is the process's environment.

    Raises:
        ConfigurationError: a variable is invalid.
    """
    source = os.environ if environ is None else environ
    try:
        settings = read_variables(Settings, PREFIX, source)
    except InvalidVariable as error:
        raise ConfigurationError(str(error)) from None
    _check(settings)
    if settings.region and not _REGION.fullmatch(settings.region):
        raise ConfigurationError(
            f"`{PREFIX}REGION` must be 1 to 32 letters, digits, `.`, `_` or `-`, the first a letter"
            " or digit"
        )
    return settings


def variable_warnings(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each `SLUICEGATE_` variable that is not a setting.

    Variables that begin with `SLUICEGATE_BACKEND_` are skipped, because backends check them.
    """
    own = [variable for variable in environ if not variable.startswith(f"{PREFIX}BACKEND_")]
    others = [PREFIX + name.upper() for name in _OTHERS]
    yield from unknown_variables(Settings, PREFIX, own, others)


def _check(settings: Settings) -> None:
    if 0 < settings.heartbeat_timeout < _MIN_HEARTBEAT_TIMEOUT:
        raise ConfigurationError(
            f"`{PREFIX}HEARTBEAT_TIMEOUT` must be 0 (never) or at least {_MIN_HEARTBEAT_TIMEOUT:g}"
        )
    if settings.log_level.upper() not in _LEVELS:
        raise ConfigurationError(f"`{PREFIX}LOG_LEVEL` must be one of {', '.join(_LEVELS)}")


def environment(settings: Settings) -> dict[str, str]:
    """Return environment variables that give a child process the same settings."""
    values = {name: getattr(settings, name) for name in settings.__struct_fields__}
    return {PREFIX + n.upper(): str(v) for n, v in values.items() if v is not None}


def process_environment() -> MutableMapping[str, str]:
    """Return the process's environment, for libraries that read their own variables (`OTEL_*`)."""
    return os.environ


def export_metrics_dir(settings: Settings) -> None:
    """Set the environment variable that makes the metrics library write to files.

    Call this before the library is imported, because the import reads the variable.
    """
    with contextlib.suppress(OSError):  # on a full disk, metrics stay in memory
        settings.metrics_dir.mkdir(parents=True, exist_ok=True)
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(settings.metrics_dir)
