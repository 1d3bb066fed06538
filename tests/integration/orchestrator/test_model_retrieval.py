"""Retrieval that asks the model: for further queries, and whether the chunks have the answer; over a real socket."""

import asyncio
import json

import pytest

from pagantic.common.v1 import error_pb2
from pagantic.constraint.v1 import contract_pb2
from pagantic.context.v1 import policy_pb2
from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.domain.chunks import Chunk, lay_out
from pagantic_common.domain.errors import Cancelled, ErrorCode, InvalidRequest, Overloaded, Unavailable
from pagantic_common.domain.text.citations import NOT_IN_SOURCES
from pagantic_common.rpc.call import call_unary
from tests.support.orchestrator_app import crash, ended, execute, orchestrator, system_request, timeline
from tests.support.scripted_services import (
    ScriptedConstraint,
    ScriptedContext,
    ScriptedInference,
    answer,
    scripted_services,
)

CHUNKS = (Chunk("1", "Hats are red.", "hats.txt", 2.0, "bm25"), Chunk("2", "Boxes.", "boxes.txt", 1.0, "bm25"))
WORDINGS = json.dumps(["Which hue?", "What tint?"])
HYBRID = policy_pb2.RETRIEVER_HYBRID


def expanding(**fields):
    expansion = policy_pb2.QueryExpansion(**fields)
    return policy_pb2.ContextPolicy(collection="c", retriever=HYBRID, query_expansion=expansion)


def weighing(**fields):
    return policy_pb2.ContextPolicy(collection="c", answerability=policy_pb2.Answerability(**fields))


def purposes(events):
    starts = [event.inference_start.purpose for event in events if event.HasField("inference_start")]
    return [event_pb2.InferencePurpose.Name(one).removeprefix("INFERENCE_PURPOSE_") for one in starts]


def weighed_of(events):
    (weighed,) = [event for event in events if event.action == "context.weighed"]
    return weighed


# ---- further queries


async def test_the_model_writes_queries_which_are_searched_in_one_call_and_charged(tmp_path):
    inference = ScriptedInference(answer(WORDINGS), answer("Hats are blue."), answer())
    context = ScriptedContext(*CHUNKS)
    policy = expanding(queries=2, hypothetical_document=True, model="small")
    request = system_request("Which color?", request_id="r1", context=policy)
    request.hints.seed = 7
    async with orchestrator(tmp_path, scripted_services(inference, context=context)) as stub:
        response = await execute(stub, request)
        events = await timeline(stub, "r1")
    assert response.content == "hello"
    assert context.searched == ("Which color?", "Which hue?", "What tint?", "Hats are blue.")
    assert purposes(events) == ["QUERY", "QUERY", "ANSWER"]
    wordings, document, _ = inference.commands
    assert (wordings.engine_text, document.engine_text) == ("engine text", "")
    assert [(command.seed, command.is_streamed) for command in (wordings, document)] == [(7, False)] * 2
    asked = inference.hinted[:2]
    assert [(hints.temperature, hints.model, hints.max_tokens) for hints in asked] == [(0, "small", 160)] * 2
    assert response.token_usage.output_tokens == 3 * 3
    (retrieved,) = [event for event in events if event.action == "context.retrieved"]
    assert retrieved.context_retrieved.more_query_count == 3
    assert retrieved.correlation.caused_by == "inference-2"


@pytest.mark.parametrize(
    "failure",
    [
        Unavailable("no service"),
        Overloaded("no room", code=ErrorCode.INFERENCE_OVERLOADED),
        InvalidRequest("too long", code=ErrorCode.INFERENCE_CONTEXT_EXCEEDED),
    ],
)
async def test_without_the_model_the_question_alone_is_searched_with_a_warning(tmp_path, failure):
    inference, context = ScriptedInference(failure, answer()), ScriptedContext(*CHUNKS)
    async with orchestrator(tmp_path, scripted_services(inference, context=context)) as stub:
        response = await execute(stub, system_request("Which?", context=expanding(queries=2)))
    assert context.searched == ("Which?",)
    assert response.content == "hello"
    (warning,) = response.warnings
    assert warning.code == "query_expansion_unavailable"
    assert warning.message.startswith("searched the question alone: ")


async def test_queries_that_were_written_before_an_outage_are_searched(tmp_path):
    inference = ScriptedInference(answer(WORDINGS), Unavailable("gone"), answer())
    context, policy = ScriptedContext(*CHUNKS), expanding(queries=2, hypothetical_document=True)
    async with orchestrator(tmp_path, scripted_services(inference, context=context)) as stub:
        response = await execute(stub, system_request("Which?", context=policy))
    assert context.searched == ("Which?", "Which hue?", "What tint?")
    assert [warning.code for warning in response.warnings] == ["query_expansion_unavailable"]
    assert response.token_usage.output_tokens == 3 * 2


async def test_a_constraint_service_that_is_away_is_an_outage_too(tmp_path):
    constraint, context = ScriptedConstraint(), ScriptedContext(*CHUNKS)
    constraint.failure = Unavailable("away")
    async with orchestrator(tmp_path, scripted_services(constraint=constraint, context=context)) as stub:
        response = await execute(stub, system_request("Which?", context=expanding(queries=1)))
    assert (context.searched, response.content) == (("Which?",), "hello")
    assert [warning.code for warning in response.warnings] == ["query_expansion_unavailable"]


async def test_a_model_that_does_not_exist_fails_the_request(tmp_path):
    inference = ScriptedInference(InvalidRequest("no such model", code=ErrorCode.CONFIG_NO_ENGINE))
    async with orchestrator(tmp_path, scripted_services(inference, context=ScriptedContext(*CHUNKS))) as stub:
        response = await execute(stub, system_request("Which?", context=expanding(queries=1, model="none")))
    assert response.error.code == error_pb2.ERROR_CODE_CONFIG_NO_ENGINE


async def test_a_deadline_ends_a_request_whose_queries_are_being_written_and_the_usage_counts(tmp_path):
    inference = ScriptedInference(answer(WORDINGS), None)
    request = system_request("Which?", context=expanding(queries=2, hypothetical_document=True))
    request.hints.timeout.FromMilliseconds(400)
    async with orchestrator(tmp_path, scripted_services(inference, context=ScriptedContext(*CHUNKS))) as stub:
        response = await execute(stub, request)
    assert response.error.code == error_pb2.ERROR_CODE_CANCELLED_TIMEOUT
    assert inference.stopped.is_set()
    assert response.content == ""
    assert response.token_usage.output_tokens == 3 * 2


async def test_a_cancel_stops_the_writing_of_queries(tmp_path):
    inference = ScriptedInference(None)
    async with orchestrator(tmp_path, scripted_services(inference, context=ScriptedContext(*CHUNKS))) as stub:
        request = system_request("Which?", request_id="r1", context=expanding(queries=2))
        running = asyncio.create_task(execute(stub, request))
        await asyncio.wait_for(inference.waiting.wait(), 60)
        await call_unary("orchestrator", stub.CancelExecution, pb.CancelExecutionRequest(request_id="r1"))
        response = await running
    assert response.error.code == error_pb2.ERROR_CODE_CANCELLED_SIGNAL
    assert inference.stopped.is_set()


async def test_a_retrieval_that_fails_after_its_queries_were_written_is_charged_for_them(tmp_path):
    context = ScriptedContext()
    context.failure = InvalidRequest("no collection")
    async with orchestrator(tmp_path, scripted_services(ScriptedInference(answer(WORDINGS)), context=context)) as stub:
        response = await execute(stub, system_request("Which?", context=expanding(queries=2)))
    assert response.error.message == "no collection"
    assert response.token_usage.output_tokens == 3


# ---- answerability


async def test_the_probability_that_the_chunks_answer_is_the_confidence_and_is_charged(tmp_path):
    inference = ScriptedInference()
    policy = weighing(slope=2.0, intercept=1.0, model="small")
    async with orchestrator(tmp_path, scripted_services(inference, context=ScriptedContext(*CHUNKS))) as stub:
        response = await execute(stub, system_request("Which?", request_id="r1", context=policy))
        events = await timeline(stub, "r1")
    assert response.content == "hello"
    assert response.confidence == pytest.approx(0.268941, abs=1e-6)  # log-odds of -1, scaled to -1
    assert response.confidence_source == execution_pb2.CONFIDENCE_SOURCE_RETRIEVAL
    assert response.token_usage.prompt_tokens == 10 + 10
    command, continuations = inference.scored
    assert continuations == ("Yes", "No")
    assert "[1] (hats.txt): Hats are red." in command.messages[0].content
    assert inference.scored_hints.model == "small"
    weighed = weighed_of(events).context_weighed
    assert (weighed.log_odds, weighed.tokens_in) == (-1, 10)
    assert weighed.probability == response.confidence


async def test_chunks_are_quoted_where_the_model_is_asked_whatever_the_role_of_the_context(tmp_path):
    inference, policy = ScriptedInference(answer("Red.")), weighing()
    policy.role = policy_pb2.CONTEXT_ROLE_SYSTEM
    async with orchestrator(tmp_path, scripted_services(inference, context=ScriptedContext(*CHUNKS))) as stub:
        await execute(stub, system_request("Which color?", context=policy))
    command, _ = inference.scored
    assert command.messages[0].content.startswith(lay_out(CHUNKS, is_fenced=True))


async def test_a_context_that_is_too_unlikely_to_answer_is_refused_without_decoding(tmp_path):
    inference = ScriptedInference()
    async with orchestrator(tmp_path, scripted_services(inference, context=ScriptedContext(*CHUNKS))) as stub:
        response = await execute(stub, system_request("Which?", context=weighing(min_probability=0.3)))
    assert response.error.code == error_pb2.ERROR_CODE_ORCHESTRATION_NOT_ANSWERABLE
    assert "probability 0.269, and context.answerability.min_probability is 0.3" in response.error.message
    assert json.loads(response.error.details_json)["min_probability"] == 0.3
    assert inference.commands == []
    assert response.token_usage.prompt_tokens == 10


async def test_an_answer_with_citations_abstains_instead(tmp_path):
    inference = ScriptedInference()
    fields = {
        "mode": execution_pb2.MODE_CHAT,
        "context": weighing(min_probability=0.3),
        "output": contract_pb2.OutputContract(citations=contract_pb2.Citations()),
    }
    async with orchestrator(tmp_path, scripted_services(inference, context=ScriptedContext(*CHUNKS))) as stub:
        response = await execute(stub, system_request("Which?", session_id="s", **fields))
        session = (await call_unary("orchestrator", stub.GetSession, pb.GetSessionRequest(session_id="s"))).session
    assert (response.content, response.structured_output_json) == (NOT_IN_SOURCES, '{"in_sources": false}')
    assert response.confidence == pytest.approx(0.268941, abs=1e-6)
    assert not response.HasField("error")
    assert inference.commands == []
    assert session.messages[-1].content == NOT_IN_SOURCES


async def test_where_nothing_is_found_the_probability_is_0_and_nobody_is_asked(tmp_path):
    inference = ScriptedInference()
    async with orchestrator(tmp_path, scripted_services(inference, context=ScriptedContext())) as stub:
        response = await execute(stub, system_request("Which?", request_id="r1", context=weighing()))
        events = await timeline(stub, "r1")
        refused = await execute(stub, system_request("Which?", context=weighing(min_probability=0.01)))
    assert (response.content, response.HasField("confidence"), response.confidence) == ("hello", True, 0)
    weighed = weighed_of(events).context_weighed
    assert (weighed.HasField("log_odds"), weighed.HasField("probability")) == (False, True)
    assert refused.error.code == error_pb2.ERROR_CODE_ORCHESTRATION_NOT_ANSWERABLE
    assert not hasattr(inference, "scored")


@pytest.mark.parametrize(
    "failure", [Unavailable("no room"), InvalidRequest("too long", code=ErrorCode.INFERENCE_CONTEXT_EXCEEDED)]
)
async def test_an_answer_is_not_lost_for_its_probability(tmp_path, failure):
    inference = ScriptedInference()
    inference.logprobs = failure
    policy = weighing(min_probability=1.0)
    async with orchestrator(tmp_path, scripted_services(inference, context=ScriptedContext(*CHUNKS))) as stub:
        response = await execute(stub, system_request("Which?", request_id="r1", context=policy))
        events = await timeline(stub, "r1")
    assert (response.content, response.HasField("confidence")) == ("hello", False)
    assert [warning.code for warning in response.warnings] == ["answerability_unavailable"]
    assert weighed_of(events).error.code
    assert not weighed_of(events).context_weighed.HasField("probability")


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (InvalidRequest("no model", code=ErrorCode.CONFIG_NO_ENGINE), error_pb2.ERROR_CODE_CONFIG_NO_ENGINE),
        (Cancelled("stopped"), error_pb2.ERROR_CODE_CANCELLED_SIGNAL),
    ],
)
async def test_a_wrong_model_and_a_cancellation_end_the_request(tmp_path, failure, code):
    inference = ScriptedInference()
    inference.logprobs = failure
    async with orchestrator(tmp_path, scripted_services(inference, context=ScriptedContext(*CHUNKS))) as stub:
        response = await execute(stub, system_request("Which?", context=weighing()))
    assert response.error.code == code


async def test_a_resumed_execution_asks_neither_for_queries_nor_for_the_probability_again(tmp_path):
    policy = expanding(queries=2)
    policy.answerability.min_probability = 0.2
    waiting = ScriptedInference(answer(WORDINGS), None)
    request = system_request("Which?", request_id="r1", context=policy)
    before = scripted_services(waiting, context=ScriptedContext(*CHUNKS))
    left = await crash(tmp_path, before, request, waiting.waiting, stores=["context.retrieved", "context.weighed"])
    inference, context = ScriptedInference(answer("done")), ScriptedContext()
    async with orchestrator(left, scripted_services(inference, context=context)) as stub:
        await call_unary("orchestrator", stub.ResumeExecution, pb.ResumeExecutionRequest(request_id="r1"))
        response = (await ended(stub, "r1")).response
    assert response.content == "done"
    assert response.confidence == pytest.approx(0.268941, abs=1e-6)
    assert len(inference.commands) == 1
    assert not hasattr(inference, "scored")
    assert not hasattr(context, "searched")
    assert response.token_usage.prompt_tokens == 10 + 10 + 10  # the queries, the probability, the answer
