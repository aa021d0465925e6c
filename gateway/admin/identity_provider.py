"""Opens the authenticator for an identity provider. The library for it is optional."""

import contextlib
from collections.abc import AsyncIterator, Sequence

from sluicegate.gateway.admin.operator_directory import OperatorAuthenticator
from sluicegate.gateway.errors import ConfigurationError
from sluicegate.gateway.settings import Settings
from sluicegate.wire.installing import install_command


@contextlib.asynccontextmanager
async def open_identity_provider(
    settings: Settings,
) -> AsyncIterator[Sequence[OperatorAuthenticator]]:
    """Open the authenticator for the identity provider in `settings`, and yield it in a list.

    The list is empty if `settings` names no identity provider.

    Raises:
        ConfigurationError: a setting is invalid, or the library is not installed.
    """
    if not settings.oidc_issuer:
        yield []
        return
    try:
        from sluicegate.gateway.admin import issuer_keys, oidc  # noqa: PLC0415 - the library is optional
    except ImportError as error:
        raise ConfigurationError(
            f"`SLUICEGATE_OIDC_ISSUER` needs the package `{error.name}`, which is not installed:"
            f" run {install_command('gateway,oidc')}"
        ) from error
    if not settings.oidc_audience:
        raise ConfigurationError(
            "`SLUICEGATE_OIDC_AUDIENCE` is missing: set it, or tokens for other services would be"
            " accepted"
        )
    addresses = {"OIDC_ISSUER": settings.oidc_issuer, "OIDC_JWKS_URL": settings.oidc_jwks_url}
    for name, url in addresses.items():
        if url and not issuer_keys.is_safe(url):
            raise ConfigurationError(f"`SLUICEGATE_{name}` must begin with `https://`")
    async with oidc.open_oidc(settings) as authenticator:
        yield [authenticator]
