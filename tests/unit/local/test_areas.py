"""Where services listen and how they find each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.local.areas import ConfigurationError, child_environment, read_areas, read_gateway, read_start_limit
from deploy.local.known_settings import check_names, check_values


def test_an_overridden_port_is_told_to_the_services_that_call_it():
    given = {"PAGANTIC_INFERENCE_PORT": "6002", "PAGANTIC_TOOLS_HOST": "0.0.0.0", "PATH": "p"}  # noqa: S104
    child = child_environment(read_areas(given), Path("state"), given)
    assert child["PAGANTIC_ORCHESTRATOR_INFERENCE_ADDRESS"] == "127.0.0.1:6002"
    assert child["PAGANTIC_CONTEXT_INFERENCE_ADDRESS"] == "127.0.0.1:6002"
    assert child["PAGANTIC_CONSTRAINT_INFERENCE_ADDRESS"] == "127.0.0.1:6002"
    assert child["PAGANTIC_ORCHESTRATOR_TOOLS_ADDRESS"] == "127.0.0.1:50056"
    assert child["PATH"] == "p"


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("::1", "[::1]"),
        ("[::1]", "[::1]"),
        ("fd00::5", "[fd00::5]"),
        ("::", "127.0.0.1"),
        ("[::]", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),  # noqa: S104
        ("localhost", "localhost"),
    ],
)
def test_services_find_each_other_at_every_form_of_host(host, address):
    given = {"PAGANTIC_HOST": host}
    child = child_environment(read_areas(given), Path("state"), given)
    assert child["PAGANTIC_ORCHESTRATOR_INFERENCE_ADDRESS"] == f"{address}:50052"
    assert child["PAGANTIC_RERANK_INFERENCE_ADDRESS"] == f"{address}:50052"


def test_an_address_that_is_set_is_kept():
    given = {"PAGANTIC_ORCHESTRATOR_TOOLS_ADDRESS": "tools.example:1"}
    child = child_environment(read_areas(given), Path("state"), given)
    assert child["PAGANTIC_ORCHESTRATOR_TOOLS_ADDRESS"] == "tools.example:1"


def test_state_of_the_services_lies_in_the_state_folder():
    child = child_environment(read_areas({}), Path("state"), {})
    assert child["PAGANTIC_CONTEXT_DATA_FOLDER"] == str(Path("state") / "context")


@pytest.mark.parametrize("port", ["0", "65536", "-1", "http"])
def test_an_impossible_port_is_named(port):
    with pytest.raises(ConfigurationError, match="PAGANTIC_RERANK_PORT"):
        read_areas({"PAGANTIC_RERANK_PORT": port})


def test_two_services_on_one_port_are_both_named():
    with pytest.raises(ConfigurationError, match=r"inference and tools both have port 50052"):
        read_areas({"PAGANTIC_TOOLS_PORT": "50052"})


def test_the_gateway_on_the_port_of_a_service_is_refused():
    given = {"PAGANTIC_SERVE_HTTP": "on", "PAGANTIC_HTTP_PORT": "50053"}
    with pytest.raises(ConfigurationError, match=r"constraint and http both have port 50053"):
        read_gateway(given)
    assert read_gateway({**given, "PAGANTIC_SERVE_HTTP": "off"}) == ()


@pytest.mark.parametrize(
    ("host", "address"),
    [("::", "[::1]:8080"), ("[::]", "[::1]:8080"), ("0.0.0.0", "127.0.0.1:8080"), ("::1", "[::1]:8080")],  # noqa: S104
)
def test_a_gateway_that_listens_everywhere_is_asked_on_this_machine(host, address):
    (gateway,) = read_gateway({"PAGANTIC_SERVE_HTTP": "on", "PAGANTIC_HTTP_HOST": host})
    assert gateway.address == address


@pytest.mark.parametrize("limit", ["0", "soon", "inf", "nan"])
def test_an_impossible_start_limit_is_named(limit):
    with pytest.raises(ConfigurationError, match="PAGANTIC_START_LIMIT_S"):
        read_start_limit({"PAGANTIC_START_LIMIT_S": limit})


def test_a_start_checks_the_settings_of_the_gateway_only_where_it_starts_one():
    given = {"PAGANTIC_HTTP_HOST": "0.0.0.0"}  # noqa: S104
    check_values(given)
    with pytest.raises(ConfigurationError, match="configuration error: settings PAGANTIC_HTTP_…: others can call it"):
        check_values({**given, "PAGANTIC_SERVE_HTTP": "on"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PAGANTIC_MCP_MAX_CALLS", "many"),
        ("PAGANTIC_MODELS_HUB_ENDPOINT", "ftp://x"),
        ("PAGANTIC_HTTP_PORT", "x"),
        ("PAGANTIC_START_LIMIT_S", "soon"),
    ],
)
def test_doctor_checks_the_settings_of_other_programs_too(name, value):
    with pytest.raises(ConfigurationError, match=name):
        check_values({name: value}, for_all=True)


def test_a_misspelt_setting_of_a_door_is_named():
    with pytest.raises(ConfigurationError, match=r"did you mean PAGANTIC_MCP_MAX_CALLS\?"):
        check_names({"PAGANTIC_MCP_MAX_CALL": "1"})
