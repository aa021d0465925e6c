"""Lists the pages of the console, in the order of its navigation."""

from litestar import Controller

from sluicegate.gateway.console.audit import AuditController
from sluicegate.gateway.console.backends import BackendsController
from sluicegate.gateway.console.configuration import ConfigurationController
from sluicegate.gateway.console.dead_letters import DeadLettersController
from sluicegate.gateway.console.frame import ROOT, Page
from sluicegate.gateway.console.guards import GuardsController
from sluicegate.gateway.console.models import ModelPagesController
from sluicegate.gateway.console.overview import OverviewController
from sluicegate.gateway.console.playground import PlaygroundController
from sluicegate.gateway.console.tenant_keys import TenantKeysController
from sluicegate.gateway.console.tenants import TenantsController
from sluicegate.gateway.console.usage import UsageController
from sluicegate.gateway.operations.operators import Role


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
    _page("Guards", "/guards", GuardsController),
    _page("Backends", "/backends", BackendsController),
    _page("Tenants", "/tenants", TenantsController, TenantKeysController),
    _page("Usage", "/usage", UsageController),
    _page("Configuration", "/configuration", ConfigurationController),
    _page("Playground", "/playground", PlaygroundController, role=Role.OPERATOR),
    _page("Dead letters", "/dead-letters", DeadLettersController),
    _page("Audit", "/audit", AuditController),
)
