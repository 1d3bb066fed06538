"""OpenTelemetry's variables say what is sent, and a program does not start with one that it cannot follow."""

import pytest

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.telemetry.collector import Signal, resource_of, sends, transport

COLLECTOR = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317"}


@pytest.mark.parametrize(
    ("endpoint", "environment", "is_sent"),
    [
        ("", {}, False),
        ("127.0.0.1:4317", {}, True),
        ("", COLLECTOR, True),
        ("", {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4317"}, True),
        ("", {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://127.0.0.1:4317"}, False),
        ("", {**COLLECTOR, "OTEL_TRACES_EXPORTER": "none"}, False),
        ("127.0.0.1:4317", {"OTEL_SDK_DISABLED": "true"}, False),
        ("", {**COLLECTOR, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, True),
        ("", {**COLLECTOR, "OTEL_EXPORTER_OTLP_PROTOCOL": "", "OTEL_TRACES_EXPORTER": ""}, True),
        (
            "",
            {**COLLECTOR, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"},
            True,
        ),
    ],
)
def test_traces_are_sent_where_something_takes_them(endpoint, environment, is_sent):
    assert sends(Signal.TRACES, endpoint, environment) is is_sent


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"),
        ("OTEL_TRACES_EXPORTER", "zipkin"),
    ],
)
def test_what_this_program_cannot_do_is_refused_by_name(name, value):
    with pytest.raises(InvalidRequest, match=f"{name} is '{value}'") as refused:
        sends(Signal.TRACES, "", {**COLLECTOR, name: value})
    assert refused.value.code is ErrorCode.CONFIG_INVALID


def test_our_own_setting_says_whether_the_connection_is_encrypted():
    assert transport("host:4317") == {"endpoint": "host:4317", "insecure": True}
    assert transport("https://host:4317")["insecure"] is False
    assert transport("") == {}


def test_a_process_has_the_name_of_its_area_unless_it_is_given_one(monkeypatch):
    assert resource_of("tools").attributes["service.name"] == "pagantic-tools"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    named = resource_of("tools").attributes
    assert (named["service.name"], named["deployment.environment.name"]) == ("mine", "test")
