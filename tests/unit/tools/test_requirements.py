"""Requirements of tools: their forms, and what the machine has."""

import contextlib
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.testing.clock import FakeClock
from pagantic_common.tools import tool
from pagantic_common.tools.requirements import Requirement, RequirementKind
from services.tools.adapters.function_tool import KEPT_S, FunctionToolAdapter, Machine


@tool(requires="binary:weathercalc")
def weather() -> str:
    """Tells the weather."""
    return "sunny"


@given(st.text(max_size=20) | st.from_regex(r"(network|binary|env|file):?[\w.=/ -]{0,6}", fullmatch=True))
def test_a_text_is_a_requirement_with_a_name_or_is_refused(text):
    with contextlib.suppress(InvalidRequest):
        requirement = Requirement.parse(text)
        has_name = requirement.kind is not RequirementKind.NETWORK
        assert text == (f"{requirement.kind}:{requirement.name}" if has_name else "network")
        assert bool(requirement.name) == has_name
        assert not {"/", "\0", "=", " "} & set(requirement.name)


def missing(text, clock=None):
    return Machine(clock or FakeClock()).lacks([Requirement.parse(text)])


def test_a_program_is_seen_soon_after_its_installation(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    clock = FakeClock()
    adapter = FunctionToolAdapter(weather, Machine(clock))
    assert adapter.unavailable_reason == (
        "it requires the program 'weathercalc', which is not on the PATH of the tools service: install it there"
    )
    program = tmp_path / "weathercalc"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert adapter.unavailable_reason
    clock.advance(KEPT_S)
    assert not adapter.unavailable_reason
    program.unlink()
    clock.advance(KEPT_S)
    assert adapter.unavailable_reason


def test_a_variable_is_named_and_its_value_is_not_shown(monkeypatch):
    monkeypatch.setenv("WEATHER_KEY", "")
    assert "the environment variable WEATHER_KEY" in missing("env:WEATHER_KEY")
    monkeypatch.setenv("WEATHER_KEY", "s3cret")
    assert missing("env:WEATHER_KEY") == ""
    assert all("s3cret" not in missing(f"env:{name}") for name in ("WEATHER", "KEY_OF_NOTHING"))


@pytest.mark.parametrize(
    ("interfaces", "is_missing"),
    [
        ({}, True),
        ({"lo": (True, "up,loopback,running")}, True),
        ({"lo": (True, "up,loopback,running"), "eth0": (False, "broadcast")}, True),
        ({"lo": (True, "up,loopback,running"), "eth0": (True, "up,broadcast,running")}, False),
    ],
)
def test_the_network_is_an_interface_beside_the_loopback_that_is_up(monkeypatch, interfaces, is_missing):
    stats = {name: SimpleNamespace(isup=is_up, flags=flags) for name, (is_up, flags) in interfaces.items()}
    monkeypatch.setattr(psutil, "net_if_stats", lambda: stats)
    assert ("no network interface is up" in missing("network")) is is_missing


def test_the_first_missing_requirement_is_named(monkeypatch):
    monkeypatch.delenv("NO_SUCH_VARIABLE", raising=False)
    texts = ("binary:sh", "env:NO_SUCH_VARIABLE", "binary:no-such-program")
    assert "NO_SUCH_VARIABLE" in Machine(FakeClock()).lacks(map(Requirement.parse, texts))
