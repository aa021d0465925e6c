"""Opens the tracer that the `OTEL_*` variables configure."""

from collections.abc import MutableMapping

from sluicegate.gateway.errors import ConfigurationError
from sluicegate.gateway.telemetry.propagation import ContextReader
from sluicegate.gateway.telemetry.tracing import Tracer
from sluicegate.wire.otlp.variables import TracingProblem, drop_unusable, is_tracing_wanted


def tracer_from(environ: MutableMapping[str, str], *, service: str, instance: str = "") -> Tracer:
    """Return the tracer that the `OTEL_*` variables in `environ` configure.

    `environ` must be the environment of this process, because the SDK reads the process's
    environment.

    Raises:
        ConfigurationError: the configuration is invalid, or a package is not installed.
    """
    drop_unusable(environ)
    contexts = ContextReader(environ.get("OTEL_PROPAGATORS", ""))
    if not is_tracing_wanted(environ):
        return Tracer(contexts)
    # Imported here, because the SDK reads the environment when it is imported.
    from sluicegate.gateway.telemetry.otel_tracer import open_tracer  # noqa: PLC0415

    attributes = {"service.name": service}
    if instance:
        attributes["service.instance.id"] = instance
    try:
        return open_tracer(environ, attributes, contexts)
    except TracingProblem as error:
        raise ConfigurationError(str(error)) from error
