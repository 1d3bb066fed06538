"""The alerts speak of metrics that the services report."""

import re
from pathlib import Path

import yaml

from pagantic_common.telemetry import names

RULES = Path(__file__).parents[3] / "deploy" / "observability" / "alerts.yaml"
SUFFIXES = ("_seconds_count", "_seconds_bucket", "_total", "")


def test_every_metric_of_an_alert_exists():
    known = {value.replace(".", "_") for value in vars(names).values() if isinstance(value, str)}
    (group,) = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]:
        used = set(re.findall(r"\b(?:pagantic|grpc_server|http_server)_\w+", rule["expr"]))
        assert used
        unknown = {name for name in used if not any(name.removesuffix(suffix) in known for suffix in SUFFIXES)}
        assert not unknown, rule["alert"]


def test_every_alert_says_what_to_do():
    (group,) = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]:
        assert set(rule["annotations"]) == {"summary", "action"}
        assert rule["labels"]["severity"] in {"page", "ticket"}
