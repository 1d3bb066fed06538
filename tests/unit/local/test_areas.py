"""Where services listen and how they find each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.local.areas import ConfigurationError, child_environment, read_areas


def test_an_overridden_port_is_told_to_the_services_that_call_it():
    given = {"PAGANTIC_INFERENCE_PORT": "6002", "PAGANTIC_TOOLS_HOST": "0.0.0.0", "PATH": "p"}  # noqa: S104
    child = child_environment(read_areas(given), Path("state"), given)
    assert child["PAGANTIC_ORCHESTRATOR_INFERENCE_ADDRESS"] == "127.0.0.1:6002"
    assert child["PAGANTIC_CONTEXT_INFERENCE_ADDRESS"] == "127.0.0.1:6002"
    assert child["PAGANTIC_CONSTRAINT_INFERENCE_ADDRESS"] == "127.0.0.1:6002"
    assert child["PAGANTIC_ORCHESTRATOR_TOOLS_ADDRESS"] == "127.0.0.1:50056"
    assert child["PATH"] == "p"


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
