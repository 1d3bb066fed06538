"""Tools of a deployment: functions in modules, called over a real socket."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import math
import sys
import threading
import time
from contextlib import asynccontextmanager
from importlib.metadata import EntryPoint

import grpc
import pytest

from pagantic.common.v1 import error_pb2, message_pb2
from pagantic.tools.v1 import tools_service_pb2 as pb
from pagantic.tools.v1 import tools_service_pb2_grpc as pb_grpc
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.rpc.process.server import start_server
from pagantic_common.tools import ToolContext, ToolFailed, tool
from services.tools.__main__ import open_app
from services.tools.adapters import loading
from services.tools.settings import ToolsSettings

MODULE = '''
from pydantic import BaseModel
from pagantic_common.tools import ToolFailed, tool

class Place(BaseModel):
    city: str

@tool(safety="read")
def greet(place: Place, times: int = 1) -> str:
    """Greets a place."""
    return ", ".join([f"hello {place.city}"] * times)

@tool(safety="none")
async def add(numbers: list[int]) -> dict:
    """Adds numbers."""
    return {"sum": sum(numbers)}
'''


@asynccontextmanager
async def service(*modules, **settings):
    settings = ToolsSettings(port=0, modules=tuple(map(str, modules)), **settings)
    async with open_app(settings) as registrations:
        server, _, port = await start_server(settings, registrations)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield pb_grpc.ToolServiceStub(channel)
        await server.stop(None)


async def call(stub, name, arguments=None, timeout_s=None):
    called = message_pb2.ToolCall(id="c1", name=name, arguments_json=json.dumps(arguments or {}))
    return await stub.ExecuteTool(pb.ExecuteToolRequest(call=called), timeout=timeout_s)


async def names(stub):
    reply = await stub.ListTools(pb.ListToolsRequest())
    return [one.definition.name for one in reply.tools]


@pytest.fixture
def module(tmp_path):
    path = tmp_path / "my_own_tools.py"
    path.write_text(MODULE)
    yield path
    sys.modules.pop(path.stem, None)


async def test_functions_of_a_file_are_tools(module):
    async with service(module) as stub:
        assert await names(stub) == ["add", "calculator", "clock", "greet", "json_query", "python"]
        assert (await call(stub, "greet", {"place": {"city": "Kiel"}, "times": 2})).result.content == (
            "hello Kiel, hello Kiel"
        )
        assert (await call(stub, "add", {"numbers": [1, 2]})).result.content == '{"sum":3}'
        refused = await call(stub, "greet", {"place": {}})
        assert refused.error.code == error_pb2.ERROR_CODE_TOOL_INVALID_ARGUMENTS
        assert "'place.city' is missing" in refused.error.message


async def test_functions_of_a_package_are_tools(module, monkeypatch):
    monkeypatch.syspath_prepend(module.parent)
    async with service("my_own_tools") as stub:
        assert "greet" in await names(stub)


async def test_a_name_that_leads_to_no_module_says_where_modules_are_searched():
    with pytest.raises(InvalidRequest, match=r"'nowhere_at_all'.*install its package.* the path of a \.py file"):
        async with service("nowhere_at_all"):
            pass


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x = 1", "has no tool: put @tool before a function"),
        ("import nowhere_at_all", "ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("def (", "SyntaxError"),
        ("from pagantic_common.tools import tool\n@tool\ndef f(a):\n  'Does.'", "'a' of 'f' has no annotation"),
        ("from pagantic_common.tools import tool\n@tool\ndef clock():\n  'Tells.'", "'clock' is registered already"),
    ],
)
async def test_a_module_without_tools_keeps_the_service_from_starting_and_says_why(module, text, reason):
    module.write_text(text)
    with pytest.raises(InvalidRequest, match=reason):
        async with service(module):
            pass


async def test_a_tool_that_two_modules_have_counts_once(module, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(module.parent)
    (tmp_path / "others.py").write_text("from my_own_tools import greet")
    async with service("my_own_tools", tmp_path / "others.py") as stub:
        assert (await names(stub)).count("greet") == 1


async def test_a_file_takes_the_name_of_no_other_module(tmp_path):
    path = tmp_path / "calendar.py"
    path.write_text(MODULE)
    async with service(path):
        import calendar  # noqa: PLC0415 - as a library would, later

        assert calendar.isleap(2028)


async def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InvalidRequest, match=r"missing\.py"):
        async with service(tmp_path / "missing.py"):
            pass


async def test_installed_packages_bring_tools_and_a_broken_one_is_left_out(module, monkeypatch):
    monkeypatch.syspath_prepend(module.parent)
    entries = [EntryPoint(name, value, loading.ENTRY_POINT_GROUP) for name, value in (
        ("all", "my_own_tools"), ("broken", "nowhere_at_all:tool"), ("none", "my_own_tools:BaseModel"),
    )]  # fmt: skip
    monkeypatch.setattr(loading, "entry_points", lambda **_: entries)
    async with service() as stub:
        assert {"greet", "add"} < set(await names(stub))
    async with service(installed=False) as stub:
        assert "greet" not in await names(stub)


running = threading.Event()
leave = threading.Event()
seen: list[ToolContext] = []


@tool(timeout_s=0.1, max_concurrent=2)
def stuck() -> str:
    """Does not return."""
    running.set()
    leave.wait(20)
    return "late"


@tool(timeout_s=0.2)
def patient(context: ToolContext) -> str:
    """Looks whether it was given up."""
    seen.append(context)
    while True:
        context.check()


@tool
async def waits() -> str:
    """Waits."""
    running.set()
    try:
        await asyncio.sleep(20)
    finally:
        leave.set()
    return "late"


@tool
def leaves() -> str:
    """Wants to end the service."""
    sys.exit(1)


@tool
def stops() -> str:
    """Raises what a future cannot have."""
    raise StopIteration


@tool
def fails() -> str:
    """Fails."""
    raise ToolFailed("there is no such city: name another")


@tool
def unsayable() -> str:
    """Fails with the name of a file that is not Unicode, and at length."""
    raise ToolFailed("\udcff" + "x" * 10_000)


@tool
def gives_up() -> str:
    """Waits for work of its own that was cancelled."""
    work = concurrent.futures.Future()
    work.cancel()
    return work.result()


@tool
async def gives_up_later() -> str:
    """Waits for a task of its own that was cancelled."""
    task = asyncio.ensure_future(asyncio.sleep(20))
    task.cancel()
    return await task


@tool
def odd() -> object:
    """Returns what has no JSON form."""
    return object()


@tool(safety="none")
def counts(to: int, context: ToolContext) -> int:
    """Counts, and says how far it is."""
    for number in range(to):
        context.report(number, to, f"counted {number}")
        time.sleep(0.11)
    return to


@tool(safety="none")
def floods(context: ToolContext) -> str:
    """Says how far it is again and again."""
    for number in range(100_000):
        context.report(number, message="x" * 1000)
    return "done"


@tool
def lies(context: ToolContext) -> str:
    """Says that it is nowhere."""
    context.report(math.nan)
    return "done"


@pytest.fixture(autouse=True)
def _fresh():
    running.clear()
    leave.clear()
    seen.clear()
    yield
    leave.set()


async def test_a_function_that_does_not_return_takes_no_more_than_its_own_threads():
    async with service(__name__) as stub:
        for _ in range(2):
            assert (await call(stub, "stuck")).error.code == error_pb2.ERROR_CODE_TOOL_OUTCOME_UNKNOWN
        refused = await call(stub, "stuck")
        assert refused.error.code == error_pb2.ERROR_CODE_TOOL_UNAVAILABLE
        assert "2 of its calls were given up and still run" in refused.error.message
        (listed,) = (await stub.ListTools(pb.ListToolsRequest(names=["stuck"]))).tools
        assert not listed.available
        assert (await call(stub, "calculator", {"expression": "1 + 1"})).result.content == "2"
        leave.set()
        async with asyncio.timeout(60):
            while (await call(stub, "stuck")).result.content != "late":  # noqa: ASYNC110 - as a caller would
                await asyncio.sleep(0.05)


async def test_a_function_learns_that_its_call_was_given_up():
    async with service(__name__) as stub:
        assert (await call(stub, "patient")).error.code == error_pb2.ERROR_CODE_TOOL_OUTCOME_UNKNOWN
    assert seen[0].is_cancelled


async def follow(stub, name, arguments=None):
    called = message_pb2.ToolCall(id="c1", name=name, arguments_json=json.dumps(arguments or {}))
    return [one async for one in stub.ExecuteToolStream(pb.ExecuteToolRequest(call=called))]


async def test_a_function_reports_its_progress_before_its_result():
    async with service(__name__) as stub:
        *reports, end = await follow(stub, "counts", {"to": 3})
    assert [(one.progress.progress, one.progress.total, one.progress.message) for one in reports] == [
        (number, 3, f"counted {number}") for number in range(3)
    ]
    assert end.completed.result.content == "3"


async def test_reports_that_follow_each_other_quickly_are_left_out_and_their_words_cut():
    async with service(__name__) as stub:
        *reports, end = await follow(stub, "floods")
    assert end.completed.result.content == "done"
    assert 1 <= len(reports) < 100
    assert len(reports[0].progress.message) == 200
    assert not reports[0].progress.HasField("total")


async def test_a_call_that_fails_ends_its_stream_as_one_that_gives_a_result():
    async with service(__name__) as stub:
        for name in ("lies", "nowhere"):
            (end,) = await follow(stub, name)
            assert end.completed.result.is_error


async def test_a_caller_that_leaves_a_stream_cancels_its_call():
    async with service(__name__) as stub:
        called = message_pb2.ToolCall(id="c1", name="waits", arguments_json="{}")
        stream = stub.ExecuteToolStream(pb.ExecuteToolRequest(call=called))
        reading = asyncio.ensure_future(stream.read())
        async with asyncio.timeout(60):
            await asyncio.to_thread(running.wait, 5)
            stream.cancel()
            assert await asyncio.to_thread(leave.wait, 5)
        await asyncio.wait([reading])


async def test_a_caller_that_leaves_cancels_an_async_function():
    async with service(__name__) as stub:
        calling = asyncio.ensure_future(call(stub, "waits"))
        async with asyncio.timeout(60):
            await asyncio.to_thread(running.wait, 5)
            calling.cancel()
            assert await asyncio.to_thread(leave.wait, 5)


@pytest.mark.parametrize("name", ["leaves", "stops", "odd", "unsayable", "gives_up", "gives_up_later"])
async def test_what_a_function_raises_ends_its_call_alone(name):
    async with service(__name__) as stub:
        failed = await call(stub, name)
        assert failed.error.code == error_pb2.ERROR_CODE_TOOL_EXECUTION_FAILED
        assert len(failed.error.message) < 5000
        assert (await call(stub, "fails")).error.message == "tool 'fails' failed: there is no such city: name another"


REQUIRING = '''
from pagantic_common.tools import tool

@tool(safety="read", requires=["binary:weathercalc"])
def weather() -> str:
    """Tells the weather."""
    return "sunny"
'''


async def test_a_tool_whose_program_is_missing_is_listed_and_refused_with_the_reason(tmp_path, monkeypatch):
    path = tmp_path / "requiring_tools.py"
    path.write_text(REQUIRING)
    monkeypatch.setenv("PATH", str(tmp_path))
    async with service(path) as stub:
        (listed,) = (await stub.ListTools(pb.ListToolsRequest(names=["weather"]))).tools
        assert not listed.available
        assert "requires the program 'weathercalc'" in listed.unavailable_reason
        assert list(listed.definition.requires) == ["binary:weathercalc"]
        (found,) = (await stub.SearchTools(pb.SearchToolsRequest(query="weather", names=["weather"]))).tools
        assert found.tool.unavailable_reason == listed.unavailable_reason
        refused = await call(stub, "weather")
        assert refused.error.code == error_pb2.ERROR_CODE_TOOL_UNAVAILABLE
        assert (refused.attempts, listed.unavailable_reason in refused.error.message) == (0, True)
        (tmp_path / "weathercalc").write_text("#!/bin/sh\n")
        (tmp_path / "weathercalc").chmod(0o755)
        for _ in range(50):
            if (answered := await call(stub, "weather")).result.content == "sunny":
                break
            await asyncio.sleep(0.1)
        assert answered.result.content == "sunny"


async def test_a_requirement_of_an_unknown_form_ends_the_start_and_is_named(tmp_path):
    path = tmp_path / "wrongly_requiring_tools.py"
    path.write_text(REQUIRING.replace("binary:weathercalc", "docker"))
    with pytest.raises(InvalidRequest, match="requires has 'docker': it takes network, binary:NAME and env:NAME"):
        async with service(path):
            pass
