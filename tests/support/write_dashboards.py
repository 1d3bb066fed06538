"""`python -m tests.support.write_dashboards`: writes the Grafana dashboards, whose panels are listed here."""

import json
from dataclasses import dataclass
from itertools import count
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "deploy" / "observability" / "dashboards"
SCHEMA_VERSION = 39
IN_A_ROW, WIDTH, HEIGHT = 3, 8, 8
SOURCE = {"type": "prometheus", "uid": "${source}"}
SELECTED = 'instance=~"$instance"'
VARIANT = "experiment, variant"
VARIED = f'{SELECTED}, variant!=""'
MODEL = "gen_ai_response_model"
EXECUTIONS = "pagantic_orchestrator_execution_duration_seconds"
TOOLS = "pagantic_orchestrator_tool_duration_seconds"


@dataclass(frozen=True)
class Panel:
    """A panel: its title, its unit in Grafana's words, and its expressions by legend."""

    title: str
    unit: str
    expressions: dict


def quantiles(metric, by="", of=(0.5, 0.95, 0.99), where=SELECTED):
    """Return quantiles of a histogram, for each value of some labels."""
    labels, legend = "le", ""
    if by:
        labels, legend = f"le, {by}", "".join(f" {{{{{label}}}}}" for label in by.split(", "))
    buckets = f"sum by ({labels}) (rate({metric}_bucket{{{where}}}[$__rate_interval]))"
    return {f"p{round(quantile * 100)}{legend}": f"histogram_quantile({quantile}, {buckets})" for quantile in of}


def rates(metric, by, where=SELECTED):
    """Return the rate of a counter for each value of some labels."""
    legend = " ".join(f"{{{{{label}}}}}" for label in by.split(", "))
    return {legend: f"sum by ({by}) (rate({metric}{{{where}}}[$__rate_interval]))"}


def totals(**metrics):
    """Return the rates of counters by legend."""
    return {name: f"sum(rate({metric}{{{SELECTED}}}[$__rate_interval]))" for name, metric in metrics.items()}


def values(by="instance", **metrics):
    """Return gauges by legend, for each value of a label."""
    return {f"{name} {{{{{by}}}}}": f"sum by ({by}) ({metric}{{{SELECTED}}})" for name, metric in metrics.items()}


def failures(metric, by, label):
    """Return the rate of what failed, by the labels that say how."""
    return rates(metric, by, f'{SELECTED}, {label}!=""')


OVERVIEW = {
    "Executions": [
        Panel("Executions by mode", "reqps", rates(f"{EXECUTIONS}_count", "mode")),
        Panel("Failures by code", "reqps", failures(f"{EXECUTIONS}_count", "error_code", "error_code")),
        Panel("Duration of executions", "s", quantiles(EXECUTIONS, "mode", (0.5, 0.99))),
        Panel(
            "Running executions",
            "short",
            values(running="pagantic_orchestrator_running_executions", most="pagantic_orchestrator_max_executions"),
        ),
        Panel("Tokens per second", "short", rates("gen_ai_client_token_usage_sum", f"gen_ai_token_type, {MODEL}")),
        Panel("Cost per second", "currencyUSD", rates("pagantic_orchestrator_cost_usd_total", "model")),
    ],
    "HTTP": [
        Panel(
            "Requests by status",
            "reqps",
            rates("http_server_request_duration_seconds_count", "http_response_status_code"),
        ),
        Panel(
            "Failures and broken streams",
            "reqps",
            failures("http_server_request_duration_seconds_count", "http_route, error_type", "error_type"),
        ),
        Panel("Duration by route", "s", quantiles("http_server_request_duration_seconds", "http_route", (0.95,))),
        Panel("Time until a stream begins", "s", quantiles("pagantic_http_first_chunk_duration_seconds")),
        Panel(
            "Requests and streams",
            "short",
            values(
                requests="pagantic_http_running_requests",
                streams="pagantic_http_open_streams",
                most="pagantic_http_max_requests",
            ),
        ),
    ],
    "Parts of an execution": [
        Panel("Time until the first chunk", "s", quantiles("gen_ai_client_operation_time_to_first_chunk_seconds")),
        Panel("Time between chunks", "s", quantiles("gen_ai_client_operation_time_per_output_chunk_seconds")),
        Panel(
            "Calls of models",
            "s",
            quantiles("gen_ai_client_operation_duration_seconds", "gen_ai_operation_name", (0.5, 0.95)),
        ),
        Panel("Tool calls", "s", quantiles(TOOLS, "gen_ai_tool_name", (0.95,))),
        Panel("Failed tool calls", "reqps", failures(f"{TOOLS}_count", "gen_ai_tool_name, error_type", "error_type")),
        Panel("Retrievals", "s", quantiles("pagantic_orchestrator_retrieval_duration_seconds")),
        Panel("Findings of guards", "ops", rates("pagantic_orchestrator_guard_findings_total", "guard, stage, action")),
        Panel("Failed looks of guards", "ops", rates("pagantic_orchestrator_guard_failures_total", "guard")),
        Panel("Validations", "s", quantiles("pagantic_orchestrator_validation_duration_seconds")),
        Panel(
            "Validations by outcome",
            "reqps",
            rates("pagantic_orchestrator_validation_duration_seconds_count", "pagantic_validation_valid"),
        ),
    ],
}

EXPERIMENTS = {
    "Executions": [
        Panel("Executions by variant", "reqps", rates(f"{EXECUTIONS}_count", VARIANT, VARIED)),
        Panel(
            "Failures by variant",
            "reqps",
            rates(f"{EXECUTIONS}_count", f"{VARIANT}, error_code", f'{VARIED}, error_code!=""'),
        ),
        Panel("Duration of executions", "s", quantiles(EXECUTIONS, VARIANT, (0.5, 0.95), VARIED)),
    ],
    "Models": [
        Panel(
            "Time until the first chunk",
            "s",
            quantiles("gen_ai_client_operation_time_to_first_chunk_seconds", VARIANT, (0.5, 0.95), VARIED),
        ),
        Panel(
            "Tokens per second",
            "short",
            rates("gen_ai_client_token_usage_sum", f"{VARIANT}, gen_ai_token_type", VARIED),
        ),
        Panel("Cost per second", "currencyUSD", rates("pagantic_orchestrator_cost_usd_total", VARIANT, VARIED)),
        Panel(
            "Failed validations",
            "reqps",
            rates(
                "pagantic_orchestrator_validation_duration_seconds_count",
                VARIANT,
                f'{VARIED}, pagantic_validation_valid="false"',
            ),
        ),
    ],
}

INFERENCE = {
    "Answers": [
        Panel(
            "Time to the first token", "s", quantiles("gen_ai_server_time_to_first_token_seconds", MODEL, (0.5, 0.95))
        ),
        Panel(
            "Time per output token", "s", quantiles("gen_ai_server_time_per_output_token_seconds", MODEL, (0.5, 0.95))
        ),
        Panel("Duration of requests", "s", quantiles("gen_ai_server_request_duration_seconds", MODEL, (0.5, 0.95))),
        Panel(
            "Failed requests",
            "reqps",
            failures("gen_ai_server_request_duration_seconds_count", f"{MODEL}, error_type", "error_type"),
        ),
        Panel(
            "Tokens per second",
            "short",
            totals(
                prompt="pagantic_inference_prompt_tokens_total",
                cached="pagantic_inference_cached_prompt_tokens_total",
                computed="pagantic_inference_computed_tokens_total",
                output="pagantic_inference_output_tokens_total",
            ),
        ),
    ],
    "Queue": [
        Panel("Wait for the first step", "s", quantiles("pagantic_inference_queue_duration_seconds")),
        Panel(
            "Waiting requests",
            "short",
            values(waiting="pagantic_inference_queued_requests", most="pagantic_inference_queue_capacity"),
        ),
        Panel("Refused requests", "reqps", rates("pagantic_inference_refused_requests_total", "instance")),
        Panel("Prompt tokens to compute", "short", values(pending="pagantic_inference_pending_prompt_tokens")),
        Panel(
            "Sequences",
            "short",
            values(running="pagantic_inference_running_sequences", most="pagantic_inference_sequence_capacity"),
        ),
        Panel("Age of the current step", "s", values(age="pagantic_inference_step_age_seconds")),
        Panel("Preemptions", "ops", rates("pagantic_inference_preemptions_total", "instance")),
        Panel("Drafted tokens per second", "short", rates("pagantic_inference_drafted_tokens_total", "source")),
        Panel("Accepted tokens per second", "short", rates("pagantic_inference_accepted_tokens_total", "source")),
    ],
    "Cache": [
        Panel(
            "Share of prompts in the cache",
            "percentunit",
            {
                "cached": f"sum(rate(pagantic_inference_cached_prompt_tokens_total{{{SELECTED}}}[$__rate_interval])) "
                f"/ sum(rate(pagantic_inference_prompt_tokens_total{{{SELECTED}}}[$__rate_interval]))"
            },
        ),
        Panel("Share of cells in use", "percentunit", values(used="pagantic_inference_kv_used_ratio")),
        Panel(
            "Cells",
            "short",
            values(used="pagantic_inference_kv_used_tokens", all="pagantic_inference_kv_capacity_tokens"),
        ),
        Panel("Parked prompts", "bytes", values(parked="pagantic_inference_parked_bytes")),
        Panel(
            "Stored prefixes, tokens per second",
            "short",
            totals(
                read="pagantic_inference_prefix_read_tokens_total",
                written="pagantic_inference_prefix_written_tokens_total",
            ),
        ),
        Panel(
            "Blocks that were not stored", "ops", rates("pagantic_inference_prefix_dropped_blocks_total", "instance")
        ),
    ],
}

SERVICES = {
    "Calls": [
        Panel("Calls by method", "reqps", rates("grpc_server_call_duration_seconds_count", "grpc_method")),
        Panel(
            "Calls that failed",
            "reqps",
            rates(
                "grpc_server_call_duration_seconds_count", "grpc_method, grpc_status", f'{SELECTED}, grpc_status!="OK"'
            ),
        ),
        Panel("Duration by method", "s", quantiles("grpc_server_call_duration_seconds", "grpc_method", (0.95,))),
        Panel("Running calls", "short", values(running="pagantic_rpc_running_calls", most="pagantic_rpc_max_calls")),
        Panel("Retried calls", "reqps", rates("pagantic_rpc_retried_calls_total", "grpc_method")),
        Panel(
            "Calls moved to another replica", "reqps", rates("pagantic_orchestrator_rerouted_calls_total", "instance")
        ),
    ],
    "Reach": [
        Panel("Open circuits", "short", values("service", open="pagantic_rpc_open_circuits")),
        Panel("Calls that wait for a service", "short", values("service", waiting="pagantic_rpc_waiting_calls")),
        Panel("Calls refused for want of a service", "reqps", rates("pagantic_rpc_refused_calls_total", "service")),
        Panel(
            "Days until certificates expire",
            "d",
            {"{{instance}}": f"(pagantic_tls_certificate_expiry{{{SELECTED}}} - time()) / 86400"},
        ),
        Panel("Replicas", "short", {"{{job}}": f"sum by (job) (up{{{SELECTED}}})"}),
    ],
    "Journal and budgets": [
        Panel("Writes of the journal", "s", quantiles("pagantic_orchestrator_journal_write_duration_seconds")),
        Panel("Failed writes", "ops", rates("pagantic_orchestrator_journal_failed_writes_total", "instance")),
        Panel(
            "Size of the journal",
            "bytes",
            values(size="pagantic_orchestrator_journal_bytes", free="pagantic_orchestrator_journal_free_bytes"),
        ),
        Panel("Checks of budgets", "s", quantiles("pagantic_orchestrator_budget_check_duration_seconds")),
    ],
    "Worker processes": [
        Panel("Workers", "short", values(busy="pagantic_workers_busy", waiting="pagantic_workers_queued")),
        Panel("Workers that were killed", "ops", rates("pagantic_workers_killed_total", "instance")),
        Panel("Memory", "bytes", values(resident="process_resident_memory_bytes")),
        Panel("Processor time", "percentunit", rates("process_cpu_seconds_total", "instance")),
    ],
}

DASHBOARDS = {
    "overview": ("pagantic: what callers get", OVERVIEW),
    "experiments": ("pagantic: experiments", EXPERIMENTS),
    "inference": ("pagantic: inference", INFERENCE),
    "services": ("pagantic: services", SERVICES),
}


def dashboard(name):
    """Return a dashboard as Grafana imports it; the data source and the instances are chosen there."""
    title, rows = DASHBOARDS[name]
    return {
        "uid": f"pagantic-{name}",
        "title": title,
        "tags": ["pagantic"],
        "schemaVersion": SCHEMA_VERSION,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_source_variable(), _instance_variable()]},
        "panels": list(_panels(rows)),
    }


def _source_variable():
    return {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _instance_variable():
    return {
        "name": "instance",
        "label": "Instance",
        "type": "query",
        "datasource": SOURCE,
        "query": 'label_values(target_info{service_name=~"pagantic-.+"}, instance)',
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panels(rows):
    numbers, y = count(1), 0
    for title, panels in rows.items():
        place = {"x": 0, "y": y, "w": IN_A_ROW * WIDTH, "h": 1}
        yield {"id": next(numbers), "type": "row", "title": title, "gridPos": place, "collapsed": False, "panels": []}
        y += 1
        for position, panel in enumerate(panels):
            row, column = divmod(position, IN_A_ROW)
            place = {"x": column * WIDTH, "y": y + row * HEIGHT, "w": WIDTH, "h": HEIGHT}
            yield _graph(panel, next(numbers), place)
        y += -(-len(panels) // IN_A_ROW) * HEIGHT


def _graph(panel, number, place):
    targets = [
        {"refId": chr(ord("A") + position), "datasource": SOURCE, "expr": expression, "legendFormat": legend}
        for position, (legend, expression) in enumerate(panel.expressions.items())
    ]
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": targets,
    }


def text_of(name):
    """Return the text of a dashboard's file."""
    return json.dumps(dashboard(name), indent=1) + "\n"


if __name__ == "__main__":
    for dashboard_name in DASHBOARDS:
        (FOLDER / f"{dashboard_name}.json").write_text(text_of(dashboard_name), encoding="utf-8")
