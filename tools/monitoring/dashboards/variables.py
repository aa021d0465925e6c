"""Defines the template variables that dashboards share, and the matchers that use them."""

from tools.monitoring.grafana import Variable

MODEL = Variable(name="model", metric="sluicegate_items_total", label="model", text="Model")
REGION = Variable(name="region", metric="sluicegate_endpoint_up", label="region", text="Region")
ENDPOINT = Variable(
    name="endpoint",
    metric='sluicegate_endpoint_up{region=~"$region"}',
    label="endpoint",
    text="Backend",
)
OF_MODEL = 'model=~"$model"'
OF_REGION = 'region=~"$region"'
OF_ENDPOINT = 'region=~"$region", endpoint=~"$endpoint"'
