"""Reads and checks the settings of listeners, in processes that listen and in those that do not."""

from gateway.errors import ConfigurationError
from gateway.http.listener_tls import customers_tls, operators_tls
from gateway.settings import Settings
from gateway.sockets.networks import Networks


def trusted_proxies(settings: Settings) -> Networks:
    """Return the networks of trusted proxies.

    Raises:
        ConfigurationError: one is none, or there is none and the PROXY protocol is wanted.
    """
    trusted = Networks(settings.trusted_proxies)
    if settings.proxy_protocol and not trusted:
        raise ConfigurationError(
            "`SLUICEGATE_PROXY_PROTOCOL` needs the addresses of the proxies: set"
            " `SLUICEGATE_TRUSTED_PROXIES`"
        )
    return trusted


def check_listeners(settings: Settings) -> None:
    """Check certificates and networks of both listeners.

    Raises:
        ConfigurationError: they cannot be used.
    """
    trusted_proxies(settings)
    customers_tls(settings)
    operators_tls(settings)
