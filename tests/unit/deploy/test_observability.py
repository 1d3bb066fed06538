"""Alerts and dashboards speak of metrics that the services report, and each alert has its page."""

import json
import re
from pathlib import Path

import pytest
import yaml

from pagantic_common.telemetry import genai, names
from tests.support.write_dashboards import DASHBOARDS, FOLDER, text_of

ROOT = Path(__file__).parents[3]
ALERTS = ROOT / "deploy" / "observability" / "alerts.yaml"
RULES = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"][0]["rules"]
RUNBOOKS = (ROOT / "deploy/docs/runbooks.md").read_text(encoding="utf-8")
SUFFIXES = (
    "_seconds_count",
    "_seconds_bucket",
    "_seconds_sum",
    "_seconds",
    "_bucket",
    "_sum",
    "_count",
    "_total",
    "",
)
# What the client library of Prometheus reports of each process, and Prometheus of each target.
OTHERS = {
    "process_start_time_seconds",
    "process_resident_memory_bytes",
    "process_cpu_seconds_total",
    "up",
    "target_info",
}
METRIC = re.compile(r"\b(?:pagantic|grpc_server|http_server|gen_ai|process|target)_\w+(?=[\[{ )]|$)")
LABELS = {"gen_ai_response_model", "gen_ai_token_type", "gen_ai_operation_name", "gen_ai_tool_name"} | {
    "pagantic_validation_valid"
}


def metrics_of(expression):
    """Return the metrics that an expression names."""
    return set(METRIC.findall(expression)) - LABELS


def unknown_of(expression):
    """Return the metrics of an expression that no service reports."""
    known = {
        value.replace(".", "_")
        for module in (names, genai)
        for value in vars(module).values()
        if isinstance(value, str)
    }
    used = metrics_of(expression) - OTHERS
    return {name for name in used if not any(name.removesuffix(suffix) in known for suffix in SUFFIXES)}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_every_metric_of_an_alert_exists(rule):
    assert METRIC.findall(rule["expr"])
    assert not unknown_of(rule["expr"])


def test_a_metric_that_does_not_exist_is_found():
    assert unknown_of('rate(pagantic_orchestrator_answered_riddles_total{x="y"}[5m])')


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_every_alert_says_what_to_do_and_has_a_runbook(rule):
    assert set(rule["annotations"]) == {"summary", "action", "runbook"}
    assert rule["labels"]["severity"] in {"page", "ticket"}
    assert rule["annotations"]["runbook"] == f"deploy/docs/runbooks.md#{rule['alert'].lower()}"
    assert f"\n## {rule['alert']}\n" in RUNBOOKS


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_metric_of_a_dashboard_exists(name):
    panels = [panel for panel in json.loads(text_of(name))["panels"] if panel["type"] != "row"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    assert expressions
    assert not set().union(*map(unknown_of, expressions))


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboard_is_what_its_list_of_panels_makes(name):
    assert (FOLDER / f"{name}.json").read_text(encoding="utf-8") == text_of(name), "run `make dashboards`"


def test_every_metric_of_ours_is_on_a_dashboard():
    shown = "".join(text_of(name) for name in DASHBOARDS)
    ours = [value for name, value in vars(names).items() if name.isupper() and value.startswith("pagantic_")]
    hidden = {"pagantic_inference_cache_config_info"}  # for endpoint pickers
    assert {name for name in ours if name not in shown} == hidden
