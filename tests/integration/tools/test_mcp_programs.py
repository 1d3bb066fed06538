"""Model Context Protocol servers that are programs, by the settings and over a real socket."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress

import psutil
import pytest

from pagantic.common.v1 import error_pb2, message_pb2
from pagantic.tools.v1 import mcp_pb2
from pagantic.tools.v1 import tools_service_pb2 as pb
from tests.integration.tools.mcp_service import ROOT, call, hostile, mcp_service, program, said, status, tools, until

UNAVAILABLE = error_pb2.ERROR_CODE_TOOL_UNAVAILABLE
OUTCOME_UNKNOWN = error_pb2.ERROR_CODE_TOOL_OUTCOME_UNKNOWN


def children(*words):
    """Return this process's descendants whose command line has these words."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if set(words) <= set(process.cmdline()):
                found.append(process)
    return found


async def test_the_tools_of_a_program_are_listed_and_called(tmp_path):
    async with mcp_service(tmp_path, {"t": program(trustAnnotations=True)}) as stub:
        listed = await tools(stub)
        assert {"calculator", "t_echo", "t_add"} <= listed.keys()
        assert listed["t_echo"].definition.safety == message_pb2.TOOL_SAFETY_READ
        assert listed["t_add"].definition.safety == message_pb2.TOOL_SAFETY_WRITE
        assert listed["t_add"].definition.idempotent
        assert listed["t_fail"].definition.safety == message_pb2.TOOL_SAFETY_EXTERNAL
        assert await said(stub, "t_echo", text="hello") == "hello"
        assert '"sum": 3' in await said(stub, "t_add", a=1, b=2)
        server = await status(stub, "t")
        assert server.state == mcp_pb2.MCP_SERVER_STATE_CONNECTED
        assert server.protocol_version == "2026-07-28"
        assert server.tool_count == len(listed) - 4
        assert "tests" not in server.transport


async def test_annotations_of_a_server_that_is_not_trusted_are_not_believed(tmp_path):
    async with mcp_service(tmp_path, {"t": program()}) as stub:
        for tool in (await tools(stub)).values():
            if tool.definition.name.startswith("t_"):
                assert tool.definition.safety == message_pb2.TOOL_SAFETY_EXTERNAL
                assert not tool.definition.idempotent


async def test_arguments_are_checked_before_the_server_is_asked(tmp_path):
    async with mcp_service(tmp_path, {"t": program()}) as stub:
        refused = await call(stub, "t_add", a="one", b=2)
        assert refused.error.code == error_pb2.ERROR_CODE_TOOL_INVALID_ARGUMENTS
        assert refused.attempts == 0


async def test_content_that_is_not_text_is_described(tmp_path):
    async with mcp_service(tmp_path, {"t": program()}) as stub:
        assert (await said(stub, "t_show")).split("\n\n") == [
            "two",
            "[image: image/png, 8 bytes]",
            "[audio: audio/wav, 8 bytes]",
            '{"type":"resource_link","uri":"test://note","name":"note","mime_type":"text/plain"}',
            "[resource: test://note, text/plain]\ninside",
        ]


async def test_a_call_that_fails_gives_the_servers_words(tmp_path):
    async with mcp_service(tmp_path, {"t": program()}) as stub:
        failed = await call(stub, "t_fail", reason="no")
        assert failed.error.code == error_pb2.ERROR_CODE_TOOL_EXECUTION_FAILED
        assert "Error executing tool fail" in failed.result.content


async def test_a_server_that_asks_the_user_is_refused(tmp_path):
    async with mcp_service(tmp_path, {"t": program()}) as stub:
        assert (await call(stub, "t_ask")).error.code == error_pb2.ERROR_CODE_TOOL_EXECUTION_FAILED
        assert await said(stub, "t_echo", text="on") == "on"


async def test_progress_of_a_server_is_reported(tmp_path):
    async with mcp_service(tmp_path, {"t": program()}) as stub:
        called = message_pb2.ToolCall(id="c1", name="t_wait", arguments_json='{"seconds": 0.6}')
        *reports, end = [one async for one in stub.ExecuteToolStream(pb.ExecuteToolRequest(call=called))]
    assert [(report.progress.progress, report.progress.total) for report in reports] == [(n, 4) for n in range(4)]
    assert end.completed.result.content == "waited 0.6 s"


async def test_200_calls_at_once_all_get_their_own_result(tmp_path):
    async with mcp_service(tmp_path, {"t": program()}) as stub:
        texts = [f"text {number}" for number in range(200)]
        assert await asyncio.gather(*(said(stub, "t_echo", text=text) for text in texts)) == texts


async def test_a_call_that_is_cancelled_is_cancelled_at_the_server(tmp_path):
    async with mcp_service(tmp_path, {"t": program()}) as stub:
        called = message_pb2.ToolCall(id="c1", name="t_wait", arguments_json='{"seconds": 30}')
        following = stub.ExecuteToolStream(pb.ExecuteToolRequest(call=called))
        assert (await following.read()).HasField("progress")
        following.cancel()

        async def is_cancelled():
            return await said(stub, "t_count_cancelled") == "1"

        await until(is_cancelled)


async def test_a_tool_that_the_server_adds_is_offered(tmp_path):
    async with mcp_service(tmp_path, {"t": program()}) as stub:
        assert await said(stub, "t_grow", name="later") == "grown"

        async def is_there():
            return "t_later" in await tools(stub)

        await until(is_there)
        assert await said(stub, "t_later") == "grown"


async def test_a_program_that_ends_makes_its_tools_unavailable_until_it_is_back(tmp_path):
    servers = {"t": program(), "other": program()}
    async with mcp_service(tmp_path, servers, connection={"max_reconnect_s": 0.3}) as stub:
        waiting = asyncio.create_task(call(stub, "t_wait", seconds=30))
        crashed = await call(stub, "t_crash")
        assert crashed.error.code == OUTCOME_UNKNOWN
        assert "status 3" in crashed.result.content
        assert (await waiting).error.code == OUTCOME_UNKNOWN
        assert await said(stub, "other_echo", text="on") == "on"

        async def is_back():
            return (await status(stub, "t")).state == mcp_pb2.MCP_SERVER_STATE_CONNECTED

        await until(is_back)
        assert await said(stub, "t_echo", text="again") == "again"


async def test_a_program_that_is_killed_again_and_again_is_listed_with_the_reason(tmp_path):
    servers = {"t": program("--only", "echo")}
    async with mcp_service(tmp_path, servers, connection={"max_reconnect_s": 3600}) as stub:
        for _ in range(2):

            async def is_up():
                return bool(children("--only"))

            await until(is_up)
            for process in children("--only"):
                process.kill()

        async def is_lost():
            tool = (await tools(stub))["t_echo"]
            return tool.unavailable_reason == "its server 't' is not connected" and not tool.available

        await until(is_lost)
        assert "ended by signal 9" in (await status(stub, "t")).reason


async def test_a_program_gets_no_secrets_of_the_service(tmp_path, monkeypatch):
    monkeypatch.setenv("PAGANTIC_SOME_SECRET", "s3cret")
    monkeypatch.setenv("TOKEN_OF_TEST", "for the server")
    servers = {"t": program(env={"GIVEN": "${TOKEN_OF_TEST}"})}
    async with mcp_service(tmp_path, servers) as stub:
        names = (await said(stub, "t_environment")).split()
    assert "GIVEN" in names
    assert not {"PAGANTIC_SOME_SECRET", "TOKEN_OF_TEST"} & set(names)


@pytest.mark.parametrize("habit", ["endless-line", "mute"])
async def test_a_program_that_breaks_the_protocol_is_lost_and_says_why(tmp_path, habit):
    reasons = {
        "endless-line": "a message of more than 4096 bytes",
        "mute": "closed its standard output",
    }
    servers, waits = {"t": hostile(habit)}, {"max_reconnect_s": 3600}
    async with mcp_service(tmp_path, servers, connection=waits, mcp_max_message_bytes=4096) as stub:
        lost = await call(stub, "t_call", timeout_s=10)
        assert lost.error.code == OUTCOME_UNKNOWN
        assert reasons[habit] in lost.result.content
        assert await said(stub, "calculator", expression="1 + 1") == "2"


async def test_a_program_that_writes_other_lines_alone_is_lost_and_says_why(tmp_path):
    async with mcp_service(tmp_path, {"t": hostile("garbage")}, connection={"max_reconnect_s": 3600}) as stub:
        lost = await status(stub, "t")
        assert lost.state == mcp_pb2.MCP_SERVER_STATE_LOST
        assert "other lines than messages" in lost.reason
        assert await said(stub, "calculator", expression="1 + 1") == "2"


@pytest.mark.parametrize("habit", ["logs-lines", "logs-json", "logs-bytes", "logs-empty", "logs-much"])
async def test_a_server_that_logs_to_its_standard_output_stays_connected(tmp_path, habit):
    async with mcp_service(tmp_path, {"t": hostile(habit)}) as stub:
        for _ in range(3 if habit == "logs-much" else 130):
            assert await said(stub, "t_call") == "called"
        assert (await status(stub, "t")).state == mcp_pb2.MCP_SERVER_STATE_CONNECTED


async def test_a_picture_that_a_server_also_gives_as_structured_content_is_described(tmp_path):
    async with mcp_service(tmp_path, {"t": hostile("pictures")}) as stub:
        assert await said(stub, "t_call") == "[image: image/png, 60000 bytes]"


async def test_a_server_that_never_answers_costs_its_own_call_alone(tmp_path):
    servers = {"t": hostile("hangs", timeoutSeconds=0.3), "other": program()}
    async with mcp_service(tmp_path, servers) as stub:
        hanging = asyncio.create_task(call(stub, "t_call"))
        assert await said(stub, "other_echo", text="on") == "on"
        assert (await hanging).error.code == OUTCOME_UNKNOWN


async def test_a_server_that_floods_the_service_does_not_stop_the_others(tmp_path):
    async with mcp_service(tmp_path, {"t": hostile("floods", timeoutSeconds=2), "other": program()}) as stub:
        before = psutil.Process().memory_info().rss
        flooding = asyncio.create_task(call(stub, "t_call"))
        await asyncio.sleep(0.3)
        for number in range(20):
            assert await said(stub, "other_echo", text=str(number)) == str(number)
        assert psutil.Process().memory_info().rss - before < 500_000_000
        assert (await flooding).error.code == OUTCOME_UNKNOWN


async def test_a_caller_can_leave_a_server_that_does_not_read(tmp_path):
    async with mcp_service(tmp_path, {"t": hostile("deaf", timeoutSeconds=0.2)}) as stub:
        await said(stub, "t_call")
        calls = [call(stub, "t_call", text="x" * 2000) for _ in range(100)]
        replies = await asyncio.gather(*calls)
        # The circuit breaker is open for calls that arrive after others had no answer, as on a busy machine.
        late = [reply for reply in replies if reply.error.code == UNAVAILABLE]
        assert all("consecutive calls got no answer" in reply.result.content for reply in late)
        others = {reply.error.code for reply in replies if reply not in late}
        assert others == {OUTCOME_UNKNOWN}


async def test_tools_that_cannot_be_registered_are_left_out_with_the_reason(tmp_path):
    async with mcp_service(tmp_path, {"t": hostile("wrong-tools")}) as stub:
        names = {name for name in await tools(stub) if name.startswith("t_")}
        assert {"t_fine", "t_a_b"} < names
        assert len(names) == 3
        reasons = dict((await status(stub, "t")).left_out_tools)
        assert "registered already" in reasons["t_a_b (listed again)"]
        assert "not valid" in reasons["t_unreadable"]
        assert "remote $ref" in reasons["t_remote"]
        assert "at most 32768" in reasons["t_fat"]


@pytest.mark.parametrize(
    ("habit", "version"), [("malformed-tools", "2025-06-18"), ("malformed-tools-2026", "2026-07-28")]
)
async def test_tools_that_break_the_protocol_are_left_out_and_the_others_called(tmp_path, habit, version):
    async with mcp_service(tmp_path, {"t": hostile(habit)}) as stub:
        server = await status(stub, "t")
        assert (server.state, server.protocol_version) == (mcp_pb2.MCP_SERVER_STATE_CONNECTED, version)
        reasons = dict(server.left_out_tools)
        assert reasons.keys() == {"t_text", "t_unnamed_3", "t_annotated"}
        assert reasons["t_text"].endswith("inputSchema.type")
        assert reasons["t_unnamed_3"].endswith("name")
        assert reasons["t_annotated"].endswith("annotations")
        assert {name for name in await tools(stub) if name.startswith("t_")} == {"t_fine"}
        assert await said(stub, "t_fine") == "called"


@pytest.mark.parametrize(
    ("pages", "tool_count", "reason_count", "others"),
    [
        ("b129/g10", 10, 129, "and 1 more"),
        ("b256g10", 10, 129, "and 128 more"),
        ("g64b64/g10", 74, 64, ""),
        ("g1000", 128, 129, "and 744 more"),
        ("s64g128", 128, 64, ""),
        ("g128/g1/g1", 128, 2, ""),
        ("n1/n1/n1", 0, 3, ""),
        ("x1y1", 1, 1, ""),
        ("y1/x1", 1, 1, ""),
        ("g1i1p1", 1, 2, ""),
        ("b2000/g1", 0, 129, "and 1872 more, and those of further pages"),
        ("b300", 0, 129, "and 172 more"),
    ],
)
async def test_good_tools_are_found_among_broken_ones_and_the_others_have_reasons(
    tmp_path, pages, tool_count, reason_count, others
):
    async with mcp_service(tmp_path, {"t": hostile(f"lists:{pages}")}) as stub:
        server = await status(stub, "t")
        assert (server.state, server.tool_count) == (mcp_pb2.MCP_SERVER_STATE_CONNECTED, tool_count)
        reasons = dict(server.left_out_tools)
        assert len(reasons) == reason_count
        assert not reasons.keys() & (await tools(stub)).keys()
        assert [name for name in reasons if name.startswith("and ")] == [others] * bool(others)


async def test_a_list_of_large_broken_tools_is_not_read_to_its_end(tmp_path):
    async with mcp_service(tmp_path, {"t": hostile(f"lists:g1{'/h1' * 50}")}) as stub:
        server = await status(stub, "t")
        assert (server.state, server.tool_count) == (mcp_pb2.MCP_SERVER_STATE_CONNECTED, 1)
        assert int(await said(stub, "t_good1")) < 10
        reasons = dict(server.left_out_tools)
        assert "at most 32768 are taken: shorten its schema" in reasons["t_heavy2"]
        assert "more than 4194304 bytes" in reasons["and more, and those of further pages"]


async def test_a_server_whose_list_breaks_the_protocol_is_lost_and_the_reason_names_the_field(tmp_path):
    async with mcp_service(tmp_path, {"t": hostile("no-list")}) as stub:
        server = await status(stub, "t")
        assert server.state == mcp_pb2.MCP_SERVER_STATE_LOST
        assert "wrong fields: tools" in server.reason


async def test_a_server_has_no_more_tools_than_the_limit(tmp_path):
    async with mcp_service(tmp_path, {"t": hostile("many-tools"), "u": hostile("pages")}, mcp_max_tools=5) as stub:
        assert (await status(stub, "t")).tool_count == 5
        assert (await status(stub, "u")).tool_count == 2


async def test_a_slow_program_is_waited_for_and_the_others_do_not_wait(tmp_path):
    async with mcp_service(tmp_path, {"t": program("--sleep", "2"), "other": program()}) as stub:
        assert await said(stub, "other_echo", text="on") == "on"
        assert await said(stub, "t_echo", text="late") == "late"


async def test_nothing_of_a_program_is_left_when_the_service_ends(tmp_path):
    async with mcp_service(tmp_path, {"t": program(), "s": hostile("stays")}):
        assert children("stays")
    assert not children("stays")
    assert not children("tests.support.mcp_server")


async def test_a_program_that_cannot_be_run_does_not_keep_the_service_from_starting(tmp_path):
    servers = {"t": {"command": "no-such-program"}, "u": {"command": str(tmp_path)}, "v": {"command": "false"}}
    async with mcp_service(tmp_path, servers) as stub:
        assert "is not found" in (await status(stub, "t")).reason
        assert (await status(stub, "u")).state == mcp_pb2.MCP_SERVER_STATE_LOST
        assert "ended with status 1" in (await status(stub, "v")).reason


async def test_a_program_dies_with_a_service_that_is_killed(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(
        "import asyncio, pathlib\n"
        "from tests.integration.tools.mcp_service import mcp_service, hostile\n"
        "async def main():\n"
        f"    async with mcp_service(pathlib.Path({str(tmp_path)!r}), {{'t': hostile('stays')}}):\n"
        "        print('up', flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    service = await asyncio.create_subprocess_exec(
        sys.executable, str(script), stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    while await service.stdout.readline() != b"up\n":
        assert service.returncode is None
    (server,) = children("stays")
    service.send_signal(signal.SIGKILL)
    await service.wait()

    async def is_gone():
        return not server.is_running() or server.status() == psutil.STATUS_ZOMBIE

    await until(is_gone)
