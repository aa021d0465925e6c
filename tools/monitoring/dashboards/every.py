"""Lists all dashboards."""

from tools.monitoring.dashboards.cache import CACHE
from tools.monitoring.dashboards.incident import INCIDENT
from tools.monitoring.dashboards.model import MODEL_PAGE
from tools.monitoring.dashboards.money import MONEY
from tools.monitoring.dashboards.overview import OVERVIEW
from tools.monitoring.dashboards.region import REGION_PAGE

DASHBOARDS = (OVERVIEW, INCIDENT, MODEL_PAGE, REGION_PAGE, CACHE, MONEY)
