"""Lists all generated pages."""

from tools.reference.api_pages import api_pages
from tools.reference.commands_page import commands_page
from tools.reference.configuration_page import configuration_page
from tools.reference.errors_page import errors_page
from tools.reference.metrics_page import metrics_page


def pages() -> dict[str, str]:
    """Return the text of each generated page, by its path below `docs`."""
    return {
        "reference/commands.md": commands_page(),
        "reference/configuration.md": configuration_page(),
        "reference/errors.md": errors_page(),
        "reference/metrics.md": metrics_page(),
        **api_pages(),
    }
