"""Rules pass promtool, every alert is tested both ways, and all of them run on real data."""

import math
import re
import shutil
import subprocess

import pytest

from expressions import OF_DEVICES, PANELS, names, targets
from stack import DEPLOY, REPOSITORY

RULES = sorted((DEPLOY / "prometheus/rules").glob("*.yml"))
TESTS = sorted((REPOSITORY / "tests/dashboard/rules").glob("*_test.yml"))
CONSOLE = (DEPLOY / "prometheus/consoles/attnd.html").read_text()


def promtool(*arguments):
    binary = shutil.which("promtool")
    assert binary, "promtool is missing: deploy/install-deps --test installs it"
    run = subprocess.run([binary, *map(str, arguments)], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


def test_rules_are_well_formed():
    promtool("check", "rules", "--lint=all", "--lint-fatal", *RULES)


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_unit_tests_of_rules(path):
    promtool("test", "rules", path)


def test_every_alert_is_seen_firing_and_silent():
    alerts = set(re.findall(r"- alert: (\w+)", "".join(map(_read, RULES))))
    tests = "".join(map(_read, TESTS))
    assert alerts
    assert alerts == set(re.findall(r"alertname: (\w+)\n +exp_alerts:\n", tests))
    assert alerts == set(re.findall(r"alertname: (\w+), exp_alerts: \[\]", tests))


def test_rules_run_on_real_data(prometheus):
    rules = rules_of(prometheus)
    assert {rule["type"] for rule in rules} == {"recording", "alerting"}
    for rule in rules:
        assert rule["health"] == "ok", rule
        if rule["type"] == "recording":
            for expression in (rule["query"], rule["name"]):
                result = prometheus.query(expression)
                assert result, f"no data: {expression}"
                assert all(math.isfinite(value) for _, value in result), expression
        else:
            assert rule["annotations"].keys() == {"summary", "description", "runbook"}
            assert rule["labels"]["severity"] in ("critical", "warning")


def test_every_name_exists_and_every_metric_is_shown(stack):
    in_rules = set().union(*(names(rule["query"]) for rule in rules_of(stack.prometheus)))
    in_panels = set().union(*(names(target) for panel in PANELS for target in targets(panel)))
    served = set(re.findall(r"^# TYPE (\S+)", stack.server.metrics(), re.M))
    assert not OF_DEVICES & served
    served |= OF_DEVICES

    assert not (in_rules | in_panels) - served, "names that the server has not"
    assert not served - in_panels, "metrics that no panel shows"


def test_every_recording_is_used(prometheus):
    rules = rules_of(prometheus)
    texts = [rule["query"] for rule in rules] + [CONSOLE]
    texts += [target for panel in PANELS for target in targets(panel)]
    for rule in rules:
        if rule["type"] == "recording":
            assert any(rule["name"] in text for text in texts), rule["name"]


def rules_of(prometheus):
    return [rule for group in prometheus.api("rules")["groups"] for rule in group["rules"]]


def _read(path):
    return path.read_text()
