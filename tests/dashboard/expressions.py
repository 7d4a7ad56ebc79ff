"""The expressions of the dashboard, the console page and the rules."""

import json
import re

from stack import DEPLOY

DASHBOARD = json.loads((DEPLOY / "grafana/dashboards/attnd.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
VARIABLES = [variable["name"] for variable in DASHBOARD["templating"]["list"]]
# Grafana's values of "All", with an interval for scrapes of one second.
ALL = {"job": "attnd", "instance": ".+", "method": ".+", "direction": ".+"}
RATE_INTERVAL = "10s"

# Of devices with memory of their own, and of drivers that read them: the server of these tests has
# neither. tests/e2e/test_device_metrics.py sees that they are served.
OF_DEVICES = {
    "attnd_device_budget_bytes",
    "attnd_device_budget_charged_bytes",
    "attnd_device_copied_bytes_total",
    "attnd_device_memory_bytes",
    "attnd_device_power_watts",
    "attnd_device_self_test_passed",
    "attnd_device_temperature_celsius",
    "attnd_device_unusable",
    "attnd_device_utilisation_ratio",
}

_STRING = re.compile(r"\"[^\"]*\"|'[^']*'")
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


def targets(panel):
    """The expressions of a panel, as written."""
    return [target["expr"] for target in panel["targets"]]


def as_grafana(expression, selection):
    """`expression` with the variables replaced by the selected values."""
    for name, value in {**selection, "__rate_interval": RATE_INTERVAL}.items():
        expression = expression.replace(f"${name}", value)
    return expression


def names(expression):
    """Names of attnd and process metrics in it; of histograms without _bucket, _sum, _count."""
    found = _NAME.findall(_STRING.sub("''", expression))
    return {
        re.sub(r"_(bucket|sum|count)$", "", name)
        for name in found
        if name.startswith(("attnd_", "process_"))
    }
