"""Programs that mean harm harm nobody: each gets its code, and the service answers as before. -s prints the table."""

from __future__ import annotations

import platform
import sys

import psutil
import pytest
import pytest_asyncio

from services.tools.adapters.builtin import programs, python_code
from tests.support.hostile_programs import CODE, PROGRAMS
from tests.support.tool_service import tool_service

UNREACHED = "the-secret-of-the-service"
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def beside(tmp_path_factory):
    path = tmp_path_factory.mktemp("beside") / "secret.txt"
    path.write_text(UNREACHED)
    return path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tools():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEXT_OF_TESTS", UNREACHED)
        patch.setattr(python_code, "MAX_RUN_S", 1.0)
        patch.setattr(programs, "MAX_RUN_S", 3.0)
        async with tool_service(run_programs=True) as tools:
            yield tools


@pytest.fixture(scope="module")
def table():
    rows = []
    yield rows
    sys.stdout.write("\n".join(["", *rows, ""]))


async def judge(tools, table, what, answer, expected):
    code, words = expected
    table.append(f"{what:54} {answer.code:22} {' '.join(answer.text.split())[-90:]}")
    assert answer.code == code, answer
    assert words in answer.text
    assert UNREACHED not in answer.text
    await tools.assert_healthy()


@pytest.mark.parametrize("name", CODE)
async def test_code_in_monty(name, tools, table, beside):
    source, *expected = CODE[name]
    answer = await tools.call("python", code=source.replace("{file}", str(beside)))
    await judge(tools, table, f"python: {name}", answer, expected)


@pytest.mark.parametrize("name", PROGRAMS)
async def test_programs_in_the_sandbox(name, tools, table, beside):
    if reason := await tools.reason_for_absence("run_program"):
        pytest.skip(reason)
    source, *expected = PROGRAMS[name]
    if "syscall(" in source and platform.machine() != "x86_64":
        pytest.skip("the numbers of the calls are those of x86-64")
    answer = await tools.call("run_program", program=source.replace("{file}", str(beside)))
    await judge(tools, table, f"run_program: {name}", answer, expected)


async def test_a_caller_that_waits_no_longer_stops_its_code(tools, monkeypatch):
    monkeypatch.setattr(python_code, "MAX_RUN_S", 100.0)
    for _ in range(2 * python_code.MAX_WORKERS):
        assert (await tools.call_within(0.3, "python", code="while True: pass")).code == "TOOL_TIMEOUT"
    assert (await tools.call("python", code="6 * 7")).text == "42\n"


async def test_a_caller_that_waits_no_longer_stops_its_program(tools):
    if reason := await tools.reason_for_absence("run_program"):
        pytest.skip(reason)
    answer = await tools.call_within(0.5, "run_program", program="while True: pass")
    assert answer.code == "TOOL_TIMEOUT"
    assert not [child for child in psutil.Process().children(recursive=True) if "bwrap" in child.name()]
    await tools.assert_healthy()
