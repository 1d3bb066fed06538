"""Answers with citations, over a real socket, with scripted services behind it."""

import asyncio
import json
from dataclasses import replace

import pytest

from pagantic.common.v1 import error_pb2, message_pb2
from pagantic.constraint.v1 import contract_pb2
from pagantic.context.v1 import policy_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.domain.chunks import Chunk, ChunkLocation
from pagantic_common.domain.errors import InvalidRequest, Unavailable
from pagantic_common.domain.text.citations import ABSTENTION_JSON, NOT_IN_SOURCES
from pagantic_common.domain.validation import Stage, StageOutcome, StageReport
from pagantic_common.rpc.call import call_unary
from services.orchestrator.core.model.response import FinishReason
from tests.support.orchestrator_app import crash, ended, execute, orchestrator, system_request, timeline
from tests.support.scripted_services import (
    ScriptedConstraint,
    ScriptedContext,
    ScriptedInference,
    answer,
    scripted_services,
)

CHUNKS = (
    Chunk("1", "Hats are red.", "hats.txt", 2.0, "bm25"),
    Chunk("2", "It is the blue box.", "boxes.pdf", 1.0, "bm25", location=ChunkLocation(100, 119, 4, "Boxes")),
)
NO_TOOLS = message_pb2.ToolChoice(mode=message_pb2.TOOL_CHOICE_MODE_NONE)
FIELDS = {
    "hints": execution_pb2.ExecutionHints(tool_choice=NO_TOOLS),
    "context": policy_pb2.ContextPolicy(collection="c"),
    "output": contract_pb2.OutputContract(citations=contract_pb2.Citations(max_claims=2)),
}


def cited(*claims):
    listed = [{"source": source, "quote": quote, "text": text} for text, source, quote in claims]
    return json.dumps({"in_sources": True, "claims": listed})


RIGHT = cited(("A box is blue.", 2, "the blue box"), ("Hats are, too.", 1, "Hats are red"))
WRONG = cited(("A box is red.", 2, "the red box"))


@pytest.mark.parametrize("mode", [execution_pb2.MODE_CHAT, execution_pb2.MODE_STRUCTURED])
async def test_claims_come_as_text_with_marks_and_as_places_in_the_documents(tmp_path, mode):
    inference, constraint = ScriptedInference(answer(RIGHT)), ScriptedConstraint()
    services = scripted_services(inference, constraint, context=ScriptedContext(*CHUNKS))
    async with orchestrator(tmp_path, services) as stub:
        response = await execute(stub, system_request("Which?", mode=mode, request_id="r1", **FIELDS))
        events = await timeline(stub, "r1")
    assert response.content == "A box is blue. [2] Hats are, too. [1]"
    assert response.structured_output_json == RIGHT
    first, second = response.citations
    assert (first.claim, first.source, first.document, first.page) == ("A box is blue.", 2, "boxes.pdf", 4)
    assert (first.start, first.end, first.quote) == (106, 118, "the blue box")
    assert (second.document, second.page, second.start, second.end) == ("hats.txt", 0, 0, 12)
    assert {one.guarantee for one in response.citations} == {contract_pb2.GUARANTEE_ENFORCED}
    assert response.not_in_sources == pytest.approx(0.268941, abs=1e-6)  # logprobs -2 and -1
    assert constraint.compiled_sources == tuple(chunk.content for chunk in CHUNKS)
    assert inference.scored[1] == ('{"in_sources": false', '{"in_sources": true')
    assert events[-1].completed.response == response
    assert response.token_usage.prompt_tokens == 20


async def test_a_stored_conversation_and_a_stream_have_the_text_and_not_its_json(tmp_path):
    services = scripted_services(ScriptedInference(answer(RIGHT)), context=ScriptedContext(*CHUNKS))
    async with orchestrator(tmp_path, services) as stub:
        request = system_request("Which?", mode=execution_pb2.MODE_CHAT, session_id="s", **FIELDS)
        told = [event async for event in stub.ExecuteStream(request)]
        session = (await stub.GetSession(pb.GetSessionRequest(session_id="s"))).session
    content = told[-1].completed.response.content
    assert session.messages[-1].content == content
    # The scripted service leaves out the spaces between the words that it streams.
    assert "".join(event.content_delta.text for event in told).replace(" ", "") == content.replace(" ", "")


async def test_an_invented_quote_is_told_to_the_model_and_never_cited(tmp_path):
    constraint = ScriptedConstraint(WRONG)
    inference = ScriptedInference(answer(WRONG), answer(RIGHT))
    services = scripted_services(inference, constraint, context=ScriptedContext(*CHUNKS))
    async with orchestrator(tmp_path, services) as stub:
        response = await execute(stub, system_request("Which?", **FIELDS))
        assert len(response.citations) == 2
        assert "Your answer is not right" in inference.commands[1].messages[-1].content
        loose = system_request("Which?", **FIELDS)
        loose.output.strict_validation = False
        loose.retry.max_retries = 0
        inference.outputs = [answer(WRONG)]
        response = await execute(stub, loose)
        assert response.validation.guarantee == contract_pb2.GUARANTEE_PARTIAL
        assert (response.content, list(response.citations)) == ("A box is red. [2]", [])
        constraint.invalid.clear()  # a service that checks nothing
        response = await execute(stub, loose)
        assert (response.content, list(response.citations)) == ("A box is red. [2]", [])


async def test_an_answer_that_is_cut_is_the_text_that_streamed(tmp_path):
    piece = RIGHT[: RIGHT.index("Hats are, too") + 4]
    constraint = ScriptedConstraint(piece)
    inference = ScriptedInference(replace(answer(piece), finish_reason=FinishReason.LENGTH))
    services = scripted_services(inference, constraint, context=ScriptedContext(*CHUNKS))
    async with orchestrator(tmp_path, services) as stub:
        asked = system_request("Which?", **FIELDS)
        asked.retry.max_retries = 0
        response = await execute(stub, asked)
    assert response.HasField("error")
    assert (response.content, list(response.citations)) == ("A box is blue. [2] Hats", [])


@pytest.mark.parametrize("piece", ["{", '{"in_sources": tr', RIGHT[: RIGHT.index("A box")]])
async def test_an_answer_that_is_cut_before_its_text_has_none(tmp_path, piece):
    inference = ScriptedInference(replace(answer(piece), finish_reason=FinishReason.LENGTH))
    services = scripted_services(inference, ScriptedConstraint(piece), context=ScriptedContext(*CHUNKS))
    async with orchestrator(tmp_path, services) as stub:
        asked = system_request("Which?", **FIELDS)
        asked.retry.max_retries = 0
        response = await execute(stub, asked)
    assert response.HasField("error")
    assert response.content == ""


class _ClosingConstraint(ScriptedConstraint):
    """Repairs any output to the same answer."""

    async def enforce(self, _text, _request, *, is_decoder_enforced, sources=()):
        enforcement = await super().enforce(RIGHT, _request, is_decoder_enforced=is_decoder_enforced, sources=sources)
        return replace(enforcement, stages=(StageReport(Stage.JSON_REPAIR, StageOutcome.REPAIRED),))


async def test_an_answer_that_is_cut_and_closed_by_repair_has_no_citations(tmp_path):
    inference = ScriptedInference(replace(answer(RIGHT[:-2]), finish_reason=FinishReason.LENGTH))
    services = scripted_services(inference, _ClosingConstraint(), context=ScriptedContext(*CHUNKS))
    async with orchestrator(tmp_path, services) as stub:
        asked = system_request("Which?", **FIELDS)
        asked.retry.max_retries = 0
        asked.output.strict_validation = False
        response = await execute(stub, asked)
    assert response.warnings[0].code == "output_truncated"
    assert (response.content, list(response.citations)) == ("A box is blue. [2] Hats are, too. [1]", [])


async def test_without_chunks_nothing_is_weighed_and_an_outage_is_no_abstention(tmp_path):
    inference, context = ScriptedInference(answer(ABSTENTION_JSON)), ScriptedContext()
    async with orchestrator(tmp_path, scripted_services(inference, context=context)) as stub:
        response = await execute(stub, system_request("Which?", **FIELDS))
        assert (response.content, list(response.citations)) == (NOT_IN_SOURCES, [])
        assert not response.HasField("not_in_sources")
        context.failure = Unavailable("the context service does not answer")
        response = await execute(stub, system_request("Which?", **FIELDS))
        assert response.error.message == "the context service does not answer"
    assert not hasattr(inference, "scored")


async def test_chunks_without_words_fail_before_decoding_where_the_model_may_not_abstain(tmp_path):
    inference, context = ScriptedInference(answer(ABSTENTION_JSON)), ScriptedContext(Chunk("1", "--- * ---", "a.txt"))
    asked = system_request("Which?", **FIELDS)
    async with orchestrator(tmp_path, scripted_services(inference, context=context)) as stub:
        response = await execute(stub, asked)
        assert response.content == NOT_IN_SOURCES
        asked.output.citations.may_abstain = False
        response = await execute(stub, asked)
    assert response.error.code == error_pb2.ERROR_CODE_ORCHESTRATION_NOT_ANSWERABLE
    assert "none of the 1 chunks retrieved has words that can be quoted" in response.error.message
    assert len(inference.commands) == 1


async def test_an_answer_is_not_lost_for_a_probability(tmp_path):
    inference = ScriptedInference(answer(RIGHT))
    inference.logprobs = Unavailable("no room")
    async with orchestrator(tmp_path, scripted_services(inference, context=ScriptedContext(*CHUNKS))) as stub:
        response = await execute(stub, system_request("Which?", **FIELDS))
    assert len(response.citations) == 2
    assert not response.HasField("not_in_sources")


async def test_a_request_that_is_stopped_while_the_score_is_asked_keeps_its_text_and_pays(tmp_path):
    inference, asked = ScriptedInference(answer(RIGHT)), asyncio.Event()

    async def never(*_):
        asked.set()
        await asyncio.Event().wait()

    inference.score = never
    services = scripted_services(inference, context=ScriptedContext(*CHUNKS))
    async with orchestrator(tmp_path, services) as stub:
        request = system_request("Which?", request_id="r", mode=execution_pb2.MODE_CHAT, session_id="s", **FIELDS)
        running = asyncio.create_task(execute(stub, request))
        await asyncio.wait_for(asked.wait(), 60)
        await stub.CancelExecution(pb.CancelExecutionRequest(request_id="r"))
        response = await running
        (record,) = (await stub.GetSession(pb.GetSessionRequest(session_id="s"))).session.messages[-1:]
    text = "A box is blue. [2] Hats are, too. [1]"
    assert response.error.code == error_pb2.ERROR_CODE_CANCELLED_SIGNAL
    assert (response.content, record.content) == (text, text)
    assert response.token_usage.output_tokens == 3


async def test_a_resumed_execution_cites_the_chunks_that_it_found_before(tmp_path):
    waiting = ScriptedInference(None)
    request = system_request("Which?", request_id="r1", **FIELDS)
    before = scripted_services(waiting, context=ScriptedContext(*CHUNKS))
    left = await crash(tmp_path, before, request, waiting.waiting, stores=["context.retrieved"])
    after = scripted_services(ScriptedInference(answer(RIGHT)), context=ScriptedContext())
    async with orchestrator(left, after) as stub:
        await call_unary("orchestrator", stub.ResumeExecution, pb.ResumeExecutionRequest(request_id="r1"))
        response = (await ended(stub, "r1")).response
    assert [one.quote for one in response.citations] == ["the blue box", "Hats are red"]
    assert response.citations[0].start == 106


async def test_citations_without_context_are_refused_before_admission(tmp_path):
    async with orchestrator(tmp_path) as stub:
        with pytest.raises(InvalidRequest, match="name a collection in context"):
            await execute(stub, system_request("Which?", output=FIELDS["output"]))
