"""Lists the pages of the console, in the order of its navigation."""

from litestar import Controller

from gateway.console.audit import AuditController
from gateway.console.backends import BackendsController
from gateway.console.configuration import ConfigurationController
from gateway.console.dead_letters import DeadLettersController
from gateway.console.frame import ROOT, Page
from gateway.console.models import ModelPagesController
from gateway.console.overview import OverviewController
from gateway.console.playground import PlaygroundController
from gateway.console.tenant_keys import TenantKeysController
from gateway.console.tenants import TenantsController
from gateway.console.usage import UsageController
from gateway.operations.operators import Role


def _page(
    title: str,
    path: str,
    controller: type[Controller],
    *others: type[Controller],
    role: Role = Role.VIEWER,
) -> Page:
    return Page(title=title, path=f"{ROOT}{path}", role=role, controller=controller, others=others)


PAGES = (
    _page("Overview", "", OverviewController),
    _page("Models", "/models", ModelPagesController),
    _page("Backends", "/backends", BackendsController),
    _page("Tenants", "/tenants", TenantsController, TenantKeysController),
    _page("Usage", "/usage", UsageController),
    _page("Configuration", "/configuration", ConfigurationController),
    _page("Playground", "/playground", PlaygroundController, role=Role.OPERATOR),
    _page("Dead letters", "/dead-letters", DeadLettersController),
    _page("Audit", "/audit", AuditController),
)
