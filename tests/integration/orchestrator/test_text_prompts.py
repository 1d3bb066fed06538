"""Raw prompts through a real orchestrator: run, streamed, kept, sent again and taken up after a crash."""

import base64
from dataclasses import replace

import pytest

from pagantic.inference.v1 import inference_service_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.domain.errors import Conflict, InvalidRequest
from pagantic_common.domain.messages import ToolChoice
from pagantic_common.rpc.call import call_stream, call_unary
from pagantic_common.rpc.channel import open_channel
from services.orchestrator.adapters.inference.grpc_inference import GrpcInference
from services.orchestrator.adapters.journal.sealing import read_journal_keys
from services.orchestrator.adapters.journal.sql_journal import SqlJournal
from services.orchestrator.core.model.request import Hints
from services.orchestrator.core.turn.answering import Infer
from tests.integration.orchestrator.test_grpc_inference import COMPLETED, STARTED, delta, end
from tests.support.orchestrator_app import crash, execute, journal_url, orchestrator, timeline
from tests.support.scripted_peers import ScriptedInference as InferencePeer
from tests.support.scripted_peers import served
from tests.support.scripted_services import ScriptedInference, ScriptedTools, answer, scripted_services

TEXT = "The harbour of Lindau"


def text_request(text=TEXT, **fields):
    return execution_pb2.SystemRequest(mode=execution_pb2.MODE_CHAT, text_prompt=text, **fields)


class NoPrompts:
    """A provider of system prompts that must not be asked."""

    async def system_prompt(self, request, session):
        raise AssertionError("a raw prompt has no system prompt")


async def test_a_text_is_continued_without_prompt_tools_or_history(tmp_path):
    inference, tools = ScriptedInference(answer(" opens at nine.")), ScriptedTools()
    services = replace(scripted_services(inference=inference, tools=tools), prompts=NoPrompts())
    async with orchestrator(tmp_path, services) as stub:
        response = await execute(stub, text_request(request_id="r"))
        events = await timeline(stub, "r")
    [command] = inference.commands
    assert response.content == " opens at nine."
    assert (command.text_prompt, command.messages, command.tools) == (TEXT, (), ())
    [start] = [event.inference_start for event in events if event.HasField("inference_start")]
    assert (start.message_count, start.tool_defs_count) == (0, 0)


async def test_the_text_streams_as_it_comes(tmp_path):
    services = scripted_services(inference=ScriptedInference(answer("it opens")))
    async with orchestrator(tmp_path, services) as stub:
        events = [event async for event in call_stream("orchestrator", stub.ExecuteStream, text_request())]
    deltas = [event.content_delta.text for event in events if event.HasField("content_delta")]
    assert deltas == ["it ", "opens"]


async def test_a_text_is_kept_with_its_execution_and_joined_by_its_id(tmp_path):
    inference = ScriptedInference(answer("one"), answer("two"))
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        sent = text_request(request_id="r", keep_request=True)
        first, again = await execute(stub, sent), await execute(stub, sent)
        with pytest.raises(Conflict):
            await execute(stub, text_request("Another text", request_id="r", keep_request=True))
        reply = await call_unary("orchestrator", stub.GetExecution, pb.GetExecutionRequest(request_id="r"))
    assert (first.content, again.content, len(inference.commands)) == ("one", "one", 1)
    assert reply.execution.request.text_prompt == TEXT


async def test_a_text_that_is_too_large_or_beside_messages_is_refused(tmp_path):
    async with orchestrator(tmp_path, max_request_bytes=2048) as stub:
        with pytest.raises(InvalidRequest, match="at most 2048 are taken"):
            await execute(stub, text_request("x" * 3000))
        with pytest.raises(InvalidRequest, match="leave session_id unset, or send messages"):
            await execute(stub, text_request(session_id="s"))


async def test_a_text_is_continued_after_a_crash(tmp_path):
    inference = ScriptedInference(None)
    sent = text_request(request_id="p")
    folder = await crash(tmp_path, scripted_services(inference=inference), sent, inference.waiting)
    inference = ScriptedInference(answer("opens at nine"))
    async with orchestrator(folder, scripted_services(inference=inference)) as stub:
        response = await execute(stub, sent)
    assert response.content == "opens at nine"
    assert [command.text_prompt for command in inference.commands] == [TEXT]


async def test_a_sealed_journal_has_the_text_in_no_file(tmp_path):
    folder, key_file = tmp_path / "journal", tmp_path / "keys"
    folder.mkdir()
    key_file.write_bytes(base64.b64encode(bytes(32)))
    journal = SqlJournal(journal_url(folder), sealing=read_journal_keys(key_file))
    async with orchestrator(folder, journal=journal) as stub:
        await execute(stub, text_request(request_id="r", keep_request=True))
        stored = b"".join(path.read_bytes() for path in folder.iterdir())
    assert TEXT.encode() not in stored


async def test_the_inference_service_gets_the_text_and_no_conversation():
    asked = []

    async def behave(_number, request):
        asked.append(request)
        for response in (STARTED, delta("hi"), end(), COMPLETED):
            yield response

    command = Infer((), (), ToolChoice(), "", None, max_tokens=5, text_prompt=TEXT)
    async with (
        served(InferencePeer(behave, with_request=True)) as (_, port),
        open_channel(f"127.0.0.1:{port}", max_message_bytes=1 << 20, waits=["Infer"]) as channel,
    ):
        *_, output = [one async for one in GrpcInference(channel, 1.0).infer(command, Hints(top_logprobs=2))]
    [request] = asked
    assert isinstance(request, inference_service_pb2.InferRequest)
    assert (request.WhichOneof("prompt"), request.text, output.content) == ("text", TEXT, "hi")
    assert (request.max_tokens, request.top_logprobs) == (5, 2)
